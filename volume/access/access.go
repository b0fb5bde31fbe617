// Package access describes how a volume is reached. An Access is sent in CSI's
// volume_context and publish_context as a map of strings, which only this
// package writes and parses. It does no I/O.
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

// Access is a way to reach a volume: File, NVMe, RBD, CephFS or NFS. The set is
// closed. Compare with Equal: == panics for kinds with slices.
type Access interface {
	// Protocol returns the value of targetType, except for NVMe, where that is
	// the transport.
	Protocol() string
	encode() map[string]string
}

// File is a file or directory in a pool of this machine, also on a DPU (AIO
// files, host directories). Only the machine's configuration defines pools.
type File struct {
	Pool string // UUID, in lower case
	Name string // slash-separated, relative to the pool
}

func (File) Protocol() string { return protocolFile }

// targetType is the key that published storage plugins use.
const (
	keyType      = "targetType"
	keyPool      = "pool"
	keyFile      = "file"
	protocolFile = "file"
)

func (f File) encode() map[string]string {
	return map[string]string{keyType: protocolFile, keyPool: f.Pool, keyFile: f.Name}
}

// KeyName is the key of the volume's name. It is not part of the locator: lists
// show it as the name of the PersistentVolume.
const KeyName = "volumeName"

// KeyFormat is the key of the file system type that a node creates when it
// stages the blank volume for the first time (volume.Backend.FormatOnNode). It
// is not part of the locator.
const KeyFormat = "formatFSType"

// Encode returns an Access in the canonical dialect.
func Encode(a Access) map[string]string { return a.encode() }

// ErrNone is returned by Decode for contexts without a locator.
var ErrNone = fmt.Errorf("no locator: the key %q is missing from the volume context", keyType)

// Equal compares locators, including the order of paths. Nil equals only nil.
func Equal(a, b Access) bool {
	if a == nil || b == nil {
		return a == nil && b == nil
	}
	return maps.Equal(a.encode(), b.encode())
}

// SameVolume reports whether two locators are of one volume: addresses and
// settings can differ, as a target can have moved since the locator was written.
// A part that only one of them has does not count.
func SameVolume(a, b Access) bool {
	if a == nil || b == nil || a.Protocol() != b.Protocol() {
		return false
	}
	x, y := a.encode(), b.encode()
	for _, d := range dialects() {
		if d.protocol == a.Protocol() {
			return !slices.ContainsFunc(d.identity, func(key string) bool { return x[key] != "" && y[key] != "" && x[key] != y[key] })
		}
	}
	return Equal(a, b)
}

// Decode parses contexts (volume_context, then publish_context). A later one
// overrides an earlier one, but both must identify the same volume. It accepts
// the keys of NVIDIA's sample plugins, spdk-csi, simplyblock, ceph-csi and
// csi-driver-nfs, with or without targetType. Unknown keys are ignored unless
// they look like misspelled ones. ErrNone: no locator.
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

// protocolOf returns the kind of the contexts: from targetType, else from keys
// that only one kind has.
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
				return "", fmt.Errorf("%s %s is not known; known are %q", keyType, Quote(value),
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

// protocolNamed returns the kind for a value of targetType. "file" has one
// spelling, since no other plugin writes it.
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

// isLocalName accepts only clean relative names. The opener uses os.Root in
// addition.
func isLocalName(name string) bool {
	return name != "" && len(name) <= 255 && path.Clean(name) == name && !path.IsAbs(name) &&
		!slices.Contains(strings.Split(name, "/"), "..") && name != "." && !strings.ContainsRune(name, 0)
}
