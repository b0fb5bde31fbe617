// Package mkfs creates file systems on files and devices, and detects existing
// ones. It creates them with the tools of each file system and a fixed feature
// set, so that the result does not depend on the tools' release. It parses
// superblocks itself.
//
// # Fixed features
//
// Tools can be newer than the kernel that mounts the file system (an image that
// is newer than its host), and then enable features by default that this kernel
// does not support. Make selects the features, and its file systems mount on
// all kernels since 5.12, the first with mount_setattr, which cleat needs for
// all mounts.
package mkfs

import (
	"slices"

	"github.com/cleatproject/cleat/errs"
)

// Type is a file system type, with its name in the kernel.
type Type string

// The supported file systems.
const (
	Ext4  Type = "ext4"
	XFS   Type = "xfs"
	Btrfs Type = "btrfs"
)

// Types lists the file systems that Make supports.
func Types() []Type { return []Type{Ext4, XFS, Btrfs} }

// ParseType validates the name of a file system; errs.Invalid if Make does not
// support it.
func ParseType(name string) (Type, error) {
	if t := Type(name); slices.Contains(Types(), t) {
		return t, nil
	}
	return "", errs.Errorf(errs.Invalid, "file system %q is not supported; want one of %q", name, Types())
}

const mib = 1 << 20

// MinSize is the smallest size in bytes that Make accepts for a type; zero for
// an unknown type. Measured with the fixed features:
//
//   - ext4: 8 MiB; below it mke2fs silently omits the journal.
//   - xfs: 300 MiB; below it mkfs.xfs fails since release 5.19.
//   - btrfs: 256 MiB; mkfs.btrfs accepts 109 MiB, but the kernel does not resize a btrfs to less than 256 MiB, so a smaller one could not grow a little.
func MinSize(t Type) int64 {
	switch t {
	case Ext4:
		return 8 * mib
	case XFS:
		return 300 * mib
	case Btrfs:
		return 256 * mib
	}
	return 0
}

// maxLabel is the longest label in bytes.
func maxLabel(t Type) int {
	switch t {
	case Ext4:
		return 16
	case XFS:
		return 12
	case Btrfs:
		return 255
	}
	return 0
}
