package mkfs

import (
	"encoding/binary"
	"fmt"
	"io"

	"github.com/cleatproject/cleat/errs"
)

// IsFull reports whether the file system on a device is as large as it can be
// on one of that size in bytes. An end that is too small for a group of its
// own stays unused in ext4 and XFS, and none of them uses a part of a block.
// Errors: as Probe; errs.Precondition when there is no file system.
func IsFull(r io.ReaderAt, deviceSize int64) (bool, error) {
	info, err := Probe(r)
	if err != nil {
		return false, err
	}
	head := make([]byte, reach)
	if n, err := r.ReadAt(head, 0); n < len(head) {
		return false, fmt.Errorf("reading the superblock: %w", err)
	}
	switch info.Type {
	case Ext4:
		s, _, err := readExt(head)
		return err == nil && s.full(deviceSize), err
	case XFS:
		return xfsTarget(head, deviceSize) <= binary.BigEndian.Uint64(head[8:]), nil
	case Btrfs:
		sector := int64(binary.LittleEndian.Uint32(head[btrfsSuperOffset+btrfsSectorSize:]))
		return deviceSize-deviceSize%sector <= info.Size, nil
	}
	return false, errs.Errorf(errs.Precondition, "there is no file system that can grow, but %s", describe(r, 0))
}

// xfsTarget is how many blocks of an XFS fit on a device; a last group of less
// than 64 (XFS_MIN_AG_BLOCKS) is not made.
func xfsTarget(head []byte, deviceSize int64) uint64 {
	const leastGroup = 64
	be := binary.BigEndian
	blocks := uint64(deviceSize) / uint64(be.Uint32(head[4:]))
	if rest := blocks % uint64(be.Uint32(head[84:])); rest < leastGroup {
		blocks -= rest
	}
	return blocks
}
