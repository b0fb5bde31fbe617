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
	"sync"
)

// Access is one way to reach a volume: File, NVMe, RBD, CephFS or NFS. The set
// of kinds is closed: a consumer may switch over them and refuse the rest. Two
// of them are compared with Equal; kinds hold lists, for which == panics.
type Access interface {
	// Protocol is the word of the kind. It stands under targetType, save for
	// NVMe, where the field's word is the transport.
	Protocol() string
	encode() map[string]string
}

// File is a volume that is a file, or a directory, in a pool directory of the
// same machine. A DPU's AIO files and host directories are Files too: who runs
// the machine says which directories are pools, never a context.
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

// KeyName is the key of a volume's name in its context. It is no part of the
// locator: lists show it to people, who know a PersistentVolume by it.
const KeyName = "volumeName"

// Encode writes an Access in the canonical dialect.
func Encode(a Access) map[string]string { return a.encode() }

// ErrNone is the answer of Decode when the contexts hold no locator at all.
var ErrNone = fmt.Errorf("no locator: the key %q is missing from the volume context", keyType)

// Equal tells whether two locators are the same, to the order of paths. Nil is
// equal to nil only.
func Equal(a, b Access) bool {
	if a == nil || b == nil {
		return a == nil && b == nil
	}
	return maps.Equal(a.encode(), b.encode())
}

// Decode reads the Access out of contexts (volume_context first, then
// publish_context); where two hold a key, the later wins, but they must mean
// the same volume. It knows the keys of NVIDIA's sample plugins, of spdk-csi,
// simplyblock, ceph-csi and csi-driver-nfs, with or without targetType. Other
// people's keys in the contexts are ignored, misspelt ones of ours are not.
// ErrNone: there is no locator.
func Decode(contexts ...map[string]string) (Access, error) {
	all := map[string]string{}
	for _, c := range contexts {
		maps.Copy(all, c)
	}
	protocol, err := protocolOf(contexts)
	switch {
	case err != nil:
		return nil, err
	case protocol == "", protocol == protocolFile && all[keyType] == "":
		return nil, ErrNone
	case protocol == protocolFile:
		return decodeFile(all)
	}
	for _, d := range dialects() {
		if d.protocol == protocol {
			return d.decode(contexts)
		}
	}
	return nil, ErrNone
}

// protocolOf says of which kind the contexts speak: by targetType, else by keys
// that no other kind has.
func protocolOf(contexts []map[string]string) (string, error) {
	protocol, word := "", ""
	for _, c := range contexts {
		for name, value := range c {
			if !strings.EqualFold(name, keyType) || value == "" {
				continue
			}
			p := protocolNamed(name, value)
			switch {
			case p == "":
				return "", fmt.Errorf("%s %s is not known here, known are %q", keyType, Quote(value),
					[]string{protocolFile, "tcp", "rdma", protocolRBD, protocolCephFS, protocolNFS})
			case protocol != "" && p != protocol:
				return "", fmt.Errorf("the contexts contradict each other: %s is %s and %s", keyType, Quote(word), Quote(value))
			}
			protocol, word = p, value
		}
	}
	if protocol == "" {
		protocol = protocolByKeys(contexts)
	}
	return protocol, nil
}

// protocolNamed returns the kind that a word under targetType stands for.
// "file" stands in one way only; nobody else writes it.
func protocolNamed(key, word string) string {
	switch lower := strings.ToLower(word); {
	case word == protocolFile && key == keyType:
		return protocolFile
	case transportOf(word) != "":
		return protocolNVMe
	case lower == protocolRBD, lower == protocolCephFS, lower == protocolNFS:
		return lower
	}
	return ""
}

func protocolByKeys(contexts []map[string]string) string {
	has := map[string]bool{}
	for _, c := range contexts {
		for name, value := range c {
			has[strings.ToLower(name)] = has[strings.ToLower(name)] || value != ""
		}
	}
	switch {
	case has["nqn"], has["subnqn"], has["targetaddr"], has["connections"]:
		return protocolNVMe
	case has["imagename"] && has["pool"]:
		return protocolRBD
	case has["subvolumepath"], has["fsname"] && has["rootpath"]:
		return protocolCephFS
	case has["server"] && has["share"]:
		return protocolNFS
	}
	return ""
}

// pattern compiles a regular expression when it is first used.
func pattern(expr string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(expr) })
}

var uuidPattern = pattern(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)

func decodeFile(all map[string]string) (Access, error) {
	f := File{Pool: all[keyPool], Name: all[keyFile]}
	if !uuidPattern().MatchString(f.Pool) {
		return nil, fmt.Errorf("%s %s is not a UUID in lower case", keyPool, Quote(f.Pool))
	}
	if !isLocalName(f.Name) {
		return nil, fmt.Errorf("%s %s is not a plain path relative to the pool", keyFile, Quote(f.Name))
	}
	return f, nil
}

// isLocalName admits only names that mean the same after cleaning and stay
// below the pool; the opener uses os.Root all the same.
func isLocalName(name string) bool {
	return name != "" && len(name) <= 255 && path.Clean(name) == name && !path.IsAbs(name) &&
		!slices.Contains(strings.Split(name, "/"), "..") && name != "." && !strings.ContainsRune(name, 0)
}
