// Package request checks and translates what arrives over CSI. It is pure: a
// function per RPC takes the message as it came and returns a typed value that
// the services can rely on, or an error of kind errs.Invalid (where the
// contract wants another kind the function says so). Nothing here knows which
// objects exist; secrets are never looked at and never quoted.
package request

import (
	"strings"
	"unicode/utf8"

	"github.com/cleatproject/cleat/errs"
)

// Bounds of the specification ("Size Limits"), in bytes.
const (
	// MaxString bounds every string that has no bound of its own.
	MaxString = 128
	// MaxMap bounds keys and values of one map together, and the mount flags
	// of one capability.
	MaxMap = 4096
	// MaxNodeID bounds a node id.
	MaxNodeID = 256
	// MaxPath bounds a path: PATH_MAX counts the NUL that ends it.
	MaxPath = 4095
	// maxPathElement bounds one name in a path, on every file system of Linux.
	maxPathElement = 255
)

func invalidf(format string, args ...any) error {
	return errs.Errorf(errs.Invalid, format, args...)
}

// checkString bounds an optional string.
func checkString(field, value string, most int) error {
	if len(value) > most {
		return invalidf("%s is %d bytes long, at most %d are allowed", field, len(value), most)
	}
	return nil
}

// requireString bounds a string that must be there.
func requireString(field, value string, most int) error {
	if value == "" {
		return invalidf("%s is missing", field)
	}
	return checkString(field, value, most)
}

// checkID admits any id within the contract's bounds: one that is not ours is
// unknown, not invalid, and only the engine can say so.
func checkID(field, id string) error { return requireString(field, id, MaxString) }

// checkName checks a suggested name of a volume, snapshot or group.
func checkName(field, name string) error {
	if err := requireString(field, name, MaxString); err != nil {
		return err
	}
	if i := strings.IndexFunc(name, isBanned); i >= 0 {
		r, _ := utf8.DecodeRuneInString(name[i:])
		return invalidf("%s %s holds the control character %U at byte %d, which the specification bans", field, errs.Quote(name), r, i)
	}
	return nil
}

// isBanned tells the characters that no name may hold: control characters
// other than tab, line feed and carriage return.
func isBanned(r rune) bool {
	switch {
	case r == '\t' || r == '\n' || r == '\r':
		return false
	default:
		return r < 0x20 || r >= 0x7f && r <= 0x9f
	}
}

// checkMap bounds a map.
func checkMap(field string, m map[string]string) error {
	size := 0
	for k, v := range m {
		size += len(k) + len(v)
	}
	if size > MaxMap {
		return invalidf("%s holds %d bytes in keys and values, at most %d are allowed", field, size, MaxMap)
	}
	return nil
}

// firstError returns the first of several findings.
func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
