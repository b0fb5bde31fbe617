package mkfs

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"math/bits"
	"slices"
)

const (
	xfsMagic     = "XFSB"
	xfsCRCOffset = 224
)

// AllocationGroups returns how many an XFS has once it fills its device, and 0
// for others. A growth adds groups of the first size, and many slow the file
// system down.
func AllocationGroups(r io.ReaderAt, deviceSize int64) (uint64, error) {
	head := make([]byte, reach)
	if n, err := r.ReadAt(head, 0); n < len(head) {
		return 0, fmt.Errorf("read the superblock: %w", err)
	}
	if _, found, err := parseXFS(head); !found || err != nil {
		return 0, err
	}
	perGroup := uint64(binary.BigEndian.Uint32(head[84:]))
	return (xfsTarget(head, deviceSize) + perGroup - 1) / perGroup, nil
}

// parseXFS parses the XFS superblock, which is big-endian and at offset 0.
// Since version 5 it has a checksum of its sector.
func parseXFS(head []byte) (Info, bool, error) {
	if !bytes.HasPrefix(head, []byte(xfsMagic)) {
		return Info{}, false, nil
	}
	be := binary.BigEndian
	blockSize, dataBlocks := uint64(be.Uint32(head[4:])), be.Uint64(head[8:])
	groupBlocks, groups := uint64(be.Uint32(head[84:])), uint64(be.Uint32(head[88:]))
	sector, version := int(be.Uint16(head[102:])), be.Uint16(head[100:])&0xf
	switch {
	case blockSize < 512 || blockSize > 65536 || bits.OnesCount64(blockSize) != 1:
		return Info{}, true, damaged(XFS, "block size %d", blockSize)
	case sector < 512 || sector > 32768 || bits.OnesCount(uint(sector)) != 1:
		return Info{}, true, damaged(XFS, "sector size %d", sector)
	case groups == 0 || groupBlocks == 0 || dataBlocks <= (groups-1)*groupBlocks || dataBlocks > groups*groupBlocks:
		return Info{}, true, damaged(XFS, "%d blocks in %d groups of %d", dataBlocks, groups, groupBlocks)
	case version < 4 || version > 5:
		return Info{}, true, damaged(XFS, "version %d", version)
	}
	if version == 5 {
		covered := slices.Clone(head[:sector])
		clear(covered[xfsCRCOffset : xfsCRCOffset+4])
		if crc32c(covered) != binary.LittleEndian.Uint32(head[xfsCRCOffset:]) {
			return Info{}, true, damaged(XFS, "its checksum is wrong")
		}
	}
	size, ok := sizeOf(dataBlocks, blockSize)
	if !ok {
		return Info{}, true, damaged(XFS, "%d blocks of %d bytes", dataBlocks, blockSize)
	}
	return Info{Type: XFS, UUID: formatUUID(head[32:]), Label: cString(head[108:120]), Size: size}, true, nil
}
