package csi

import (
	"fmt"
	"math"
	"path"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	spec "github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/volume"
)

// CSI specification ("Size Limits") and Linux, in bytes.
const (
	maxString      = 128  // default for strings
	maxMap         = 4096 // all keys and values, or all mount flags
	maxNodeID      = 256
	maxPath        = 4095 // PATH_MAX counts the NUL that ends a path
	maxPathElement = 255  // NAME_MAX
)

func invalidf(format string, args ...any) error {
	return errs.Errorf(errs.Invalid, format, args...)
}

func clip(s string) string { return errs.Clip(s, maxString) }

func checkString(field, value string, most int) error {
	if len(value) > most {
		return invalidf("%s is %d bytes long, at most %d are allowed", field, len(value), most)
	}
	return nil
}

func requireString(field, value string, most int) error {
	if value == "" {
		return invalidf("%s is missing", field)
	}
	return checkString(field, value, most)
}

func checkID(field, id string) error { return requireString(field, id, maxString) }

// parseSet rejects duplicates and sorts.
func parseSet[T ~string](field string, ids []string) ([]T, error) {
	set := make([]T, len(ids))
	for i, id := range ids {
		if err := checkID(fmt.Sprintf("%s[%d]", field, i), id); err != nil {
			return nil, err
		}
		set[i] = T(id)
	}
	slices.Sort(set)
	for i := 1; i < len(set); i++ {
		if set[i] == set[i-1] {
			return nil, invalidf("%s holds %s twice", field, errs.Quote(string(set[i])))
		}
	}
	return set, nil
}

func checkName(field, name string) error {
	if err := requireString(field, name, maxString); err != nil {
		return err
	}
	if i := strings.IndexFunc(name, isBanned); i >= 0 {
		r, _ := utf8.DecodeRuneInString(name[i:])
		return invalidf("%s %s holds the control character %U at byte %d, which the specification bans", field, errs.Quote(name), r, i)
	}
	return nil
}

// isBanned (specification): control characters except tab, line feed and
// carriage return.
func isBanned(r rune) bool {
	return (r < 0x20 || r >= 0x7f && r <= 0x9f) && r != '\t' && r != '\n' && r != '\r'
}

func checkMap(field string, m map[string]string) error {
	size := 0
	for k, v := range m {
		size += len(k) + len(v)
	}
	if size > maxMap {
		return invalidf("%s holds %d bytes in keys and values, at most %d are allowed", field, size, maxMap)
	}
	return nil
}

// checkPath accepts absolute, clean paths except the root directory.
func checkPath(field, p string) error {
	if err := requireString(field, p, maxPath); err != nil {
		return err
	}
	switch {
	case strings.ContainsRune(p, 0):
		return invalidf("%s %s holds a NUL", field, errs.Quote(p))
	case !path.IsAbs(p):
		return invalidf("%s %s is relative; an absolute path is needed", field, errs.Quote(p))
	case path.Clean(p) != p:
		return invalidf("%s %s is not a clean path; %s would be", field, errs.Quote(p), errs.Quote(path.Clean(p)))
	case p == "/":
		return invalidf("%s is the root directory, where nothing can be mounted", field)
	}
	for element := range strings.SplitSeq(p, "/") {
		if len(element) > maxPathElement {
			return invalidf("%s holds the name %s, at most %d bytes are possible", field, errs.Quote(element), maxPathElement)
		}
	}
	return nil
}

// parseRange translates a capacity range; an absent one accepts any size.
func parseRange(field string, r *spec.CapacityRange) (volume.SizeRange, error) {
	s := volume.SizeRange{Required: r.GetRequiredBytes(), Limit: r.GetLimitBytes()}
	switch {
	case r == nil:
		return s, nil
	case s.Required < 0:
		return s, invalidf("%s.required_bytes is %d; it cannot be negative", field, s.Required)
	case s.Limit < 0:
		return s, invalidf("%s.limit_bytes is %d; it cannot be negative", field, s.Limit)
	case s.Required == 0 && s.Limit == 0:
		return s, invalidf("%s holds neither required_bytes nor limit_bytes", field)
	case s.Limit != 0 && s.Limit < s.Required:
		return s, invalidf("%s.limit_bytes %d is less than required_bytes %d", field, s.Limit, s.Required)
	}
	return s, nil
}

// parseQuantity parses a Kubernetes quantity: a whole number of bytes with an
// optional suffix. OutOfRange: above 63 bits.
func parseQuantity(field, s string) (int64, error) {
	digits := strings.TrimRight(s, "kKMGTPEi")
	n, err := strconv.ParseInt(digits, 10, 64)
	unit, known := map[string]int64{
		"": 1, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18,
		"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40, "Pi": 1 << 50, "Ei": 1 << 60,
	}[s[len(digits):]]
	if err != nil || n <= 0 || !known {
		return 0, invalidf("%s %s is not a size; write for example 512Mi or 10Gi", field, errs.Quote(s))
	}
	if n > math.MaxInt64/unit {
		return 0, errs.Errorf(errs.OutOfRange, "%s %s is larger than any volume can be", field, errs.Quote(s))
	}
	return n * unit, nil
}
