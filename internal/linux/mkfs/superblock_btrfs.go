package mkfs

import (
	"encoding/binary"
	"math/bits"
)

const (
	btrfsSuperOffset = 0x10000
	btrfsSuperSize   = 4096
	btrfsMagic       = "_BHRfS_M"

	btrfsCsumLength   = 0x20
	btrfsFSID         = 0x20
	btrfsBytenr       = 0x30
	btrfsMagicAt      = 0x40
	btrfsTotalBytes   = 0x70
	btrfsNumDevices   = 0x88
	btrfsSectorSize   = 0x90
	btrfsIncompat     = 0xbc
	btrfsCsumType     = 0xc4
	btrfsLabel        = 0x12b
	btrfsMetadataUUID = 0x23b

	btrfsCsumCRC32C      = 0
	btrfsCsumLast        = 3 // blake2b
	btrfsHasMetadataUUID = 1 << 10
)

func isBtrfs(super []byte) bool {
	return string(super[btrfsMagicAt:btrfsMagicAt+8]) == btrfsMagic
}

// checkBtrfs verifies the checksum and the location of one copy of the
// superblock. Checksum types other than crc32c are left to the kernel.
func checkBtrfs(super []byte, at int64) error {
	le := binary.LittleEndian
	if got := le.Uint64(super[btrfsBytenr:]); got != uint64(at) {
		return damaged(Btrfs, "the copy at byte %d has the location %d", at, got)
	}
	kind := le.Uint16(super[btrfsCsumType:])
	if kind > btrfsCsumLast {
		return damaged(Btrfs, "unknown checksum type %d", kind)
	}
	if kind == btrfsCsumCRC32C && crc32c(super[btrfsCsumLength:]) != le.Uint32(super) {
		return damaged(Btrfs, "the checksum of the copy at byte %d is wrong", at)
	}
	return nil
}

func parseBtrfs(head []byte) (Info, bool, error) {
	super := head[btrfsSuperOffset : btrfsSuperOffset+btrfsSuperSize]
	if !isBtrfs(super) {
		return Info{}, false, nil
	}
	if err := checkBtrfs(super, btrfsSuperOffset); err != nil {
		return Info{}, true, err
	}
	le := binary.LittleEndian
	if sector := le.Uint32(super[btrfsSectorSize:]); sector < 512 || bits.OnesCount32(sector) != 1 {
		return Info{}, true, damaged(Btrfs, "sector size %d", sector)
	}
	total := le.Uint64(super[btrfsTotalBytes:])
	size, ok := sizeOf(total, 1)
	if !ok {
		return Info{}, true, damaged(Btrfs, "size %d", total)
	}
	return Info{Type: Btrfs, UUID: formatUUID(super[btrfsFSID:]), Label: cString(super[btrfsLabel : btrfsLabel+256]), Size: size}, true, nil
}
