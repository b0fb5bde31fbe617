// Package access says how a volume is reached. An Access travels as CSI's
// volume_context and publish_context, so it is a flat map of strings; this
// package is the one place that writes and reads such maps. It is pure.
package access

import (
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
)

// Access is one way to reach a volume. The set of kinds is closed: a consumer
// may switch over them and refuse the rest.
type Access interface {
	// Protocol is the word of the kind, as it stands under targetType.
	Protocol() string
	encode() map[string]string
}

// File is a volume that is a file in a pool directory of the same machine.
type File struct {
	Pool string // UUID of the pool, in lower case
	Name string // slash-separated, relative to the pool
}

// Protocol returns "file".
func (File) Protocol() string { return protocolFile }

// Keys of the canonical dialect. targetType is the word that the published
// storage plugins already use.
const (
	keyType      = "targetType"
	keyPool      = "pool"
	keyFile      = "file"
	protocolFile = "file"
)

func (f File) encode() map[string]string {
	return map[string]string{keyType: protocolFile, keyPool: f.Pool, keyFile: f.Name}
}

// Encode writes an Access in the canonical dialect.
func Encode(a Access) map[string]string { return a.encode() }

// ErrNone is the answer of Decode when the contexts hold no locator at all.
var ErrNone = fmt.Errorf("no locator: the key %q is missing from the volume context", keyType)

// Decode reads the Access out of contexts (volume_context first, then
// publish_context); where two hold a key, the later wins. Other people's keys
// in the contexts are ignored. ErrNone: there is no locator.
func Decode(contexts ...map[string]string) (Access, error) {
	all := map[string]string{}
	for _, c := range contexts {
		maps.Copy(all, c)
	}
	switch t := all[keyType]; t {
	case "":
		return nil, ErrNone
	case protocolFile:
		return decodeFile(all)
	default:
		return nil, fmt.Errorf("%s %q is not known here, known is %q", keyType, t, protocolFile)
	}
}

var uuidPattern = regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)

func decodeFile(all map[string]string) (Access, error) {
	f := File{Pool: all[keyPool], Name: all[keyFile]}
	if !uuidPattern.MatchString(f.Pool) {
		return nil, fmt.Errorf("%s %q is not a UUID in lower case", keyPool, f.Pool)
	}
	if !isLocalName(f.Name) {
		return nil, fmt.Errorf("%s %q is not a plain path relative to the pool", keyFile, f.Name)
	}
	return f, nil
}

// isLocalName admits only names that mean the same after cleaning and stay
// below the pool; the opener uses os.Root all the same.
func isLocalName(name string) bool {
	return name != "" && len(name) <= 255 && path.Clean(name) == name && !path.IsAbs(name) &&
		!slices.Contains(strings.Split(name, "/"), "..") && name != "." && !strings.ContainsRune(name, 0)
}
