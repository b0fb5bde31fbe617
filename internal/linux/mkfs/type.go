// Package mkfs makes file systems, on a plain file or on a device, and reads
// what kind of file system is there. It makes them with the tools of each
// file system, with features pinned, so that what it makes does not depend on
// the release of those tools; it reads superblocks itself.
//
// # What is pinned
//
// A tool may be newer than the kernel that mounts its work (an image that is
// newer than its host), and by default it then switches on what that kernel
// does not know. Make names the features, and what it makes mounts on every
// kernel from 5.12 on, the first that has mount_setattr, which cleat needs to
// mount anything.
package mkfs

import (
	"slices"

	"github.com/cleatproject/cleat/errs"
)

// Type is a kind of file system, by its name in the kernel.
type Type string

// The file systems that cleat makes.
const (
	Ext4  Type = "ext4"
	XFS   Type = "xfs"
	Btrfs Type = "btrfs"
)

// Types lists the file systems that Make can make.
func Types() []Type { return []Type{Ext4, XFS, Btrfs} }

// ParseType takes the name of a file system; errs.Invalid when it is none
// that Make can make.
func ParseType(name string) (Type, error) {
	if t := Type(name); slices.Contains(Types(), t) {
		return t, nil
	}
	return "", errs.Errorf(errs.Invalid, "file system %q cannot be made here; known are %q", name, Types())
}

const mib = 1 << 20

// MinSize is the smallest size in bytes that Make takes for a type; zero for
// a type that it does not know. Each was measured with the pinned features:
//
//   - ext4: 8 MiB; with less mke2fs quietly leaves out the journal.
//   - xfs: 300 MiB; below it mkfs.xfs refuses since release 5.19.
//   - btrfs: 256 MiB; mkfs.btrfs makes 109 MiB and more, but the kernel does
//     not resize a btrfs to less than 256 MiB, so a smaller one could not grow
//     by a little.
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
