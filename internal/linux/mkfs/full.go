package mkfs

import (
	"encoding/binary"
	"fmt"
	"io"

	"github.com/cleatproject/cleat/errs"
)

// IsFull reports whether the file system cannot grow further on a device of
// that size in bytes. ext4 and XFS do not use a rest that is too small for a
// group. Errors: as Probe; errs.Precondition without a file system.
func IsFull(r io.ReaderAt, deviceSize int64) (bool, error) {
	info, err := Probe(r)
	if err != nil {
		return false, err
	}
	head := make([]byte, reach)
	if n, err := r.ReadAt(head, 0); n < len(head) {
		return false, fmt.Errorf("read the superblock: %w", err)
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
	return false, errs.Errorf(errs.Precondition, "the volume has no file system that can grow: it contains %s", describe(r, 0))
}

// xfsTarget is the number of XFS blocks that fit on a device; a last group of
// less than 64 (XFS_MIN_AG_BLOCKS) is not created.
func xfsTarget(head []byte, deviceSize int64) uint64 {
	const leastGroup = 64
	be := binary.BigEndian
	blocks := uint64(deviceSize) / uint64(be.Uint32(head[4:]))
	if rest := blocks % uint64(be.Uint32(head[84:])); rest < leastGroup {
		blocks -= rest
	}
	return blocks
}
