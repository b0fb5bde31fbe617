// Package mkfs creates file systems on files and devices, and detects existing
// ones. It creates them with the installed tools and a fixed feature set, and
// parses superblocks itself.
//
// # Fixed features
//
// By default, tools that are newer than the host's kernel enable features that
// it does not support. File systems of Make mount on all kernels since 5.12,
// the first with mount_setattr.
package mkfs

import (
	"slices"

	"github.com/cleatproject/cleat/errs"
)

// Type is a file system type, named as in the kernel.
type Type string

// Supported file systems.
const (
	Ext4  Type = "ext4"
	XFS   Type = "xfs"
	Btrfs Type = "btrfs"
)

// Types lists the supported file systems.
func Types() []Type { return []Type{Ext4, XFS, Btrfs} }

// ParseType validates a type; errs.Invalid if Make does not support it.
func ParseType(name string) (Type, error) {
	if t := Type(name); slices.Contains(Types(), t) {
		return t, nil
	}
	return "", errs.Errorf(errs.Invalid, "file system %q is not supported; want one of %q", name, Types())
}

const mib = 1 << 20

// MinSize is the smallest size in bytes that Make accepts; zero for an unknown
// type. Measured:
//
//   - ext4: 8 MiB; below it mke2fs silently omits the journal.
//   - xfs: 300 MiB; below it mkfs.xfs fails since release 5.19.
//   - btrfs: 256 MiB; the kernel does not resize a btrfs to less.
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

// maxLabel is in bytes.
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
