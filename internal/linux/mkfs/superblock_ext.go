package mkfs

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"strings"
)

const (
	extSuperOffset = 1024
	extSuperSize   = 1024
	extMagic       = 0xef53

	extHasJournal     = 0x4    // compat
	extExtents        = 0x40   // incompat
	ext64Bit          = 0x80   // incompat
	extFlexGroups     = 0x200  // incompat
	extChecksums      = 0x400  // ro_compat
	extJournalDev     = 0x8    // incompat
	extSparse         = 0x1    // ro_compat
	extGroupChecksums = 0x10   // ro_compat
	extSparseSuper2   = 0x200  // compat
	extMetaGroups     = 0x10   // incompat
	extValid          = 0x1    // state
	extErrors         = 0x2    // state
	ext4Only          = 0x2778 // ro_compat bits that ext2 and ext3 do not have
)

type extSuper struct {
	blocks, blockSize           uint64
	firstBlock, blocksPerGroup  uint64
	inodesPerGroup, inodeSize   uint64
	descriptorSize, reservedGDT uint64
	usedInodes, journal         uint64 // journal: its bytes
	compat, incompat, roCompat  uint32
	uuid, label                 string
	revision                    uint32
	state                       uint16
}

func crc32c(p []byte) uint32 { return crc32.Checksum(p, crc32.MakeTable(crc32.Castagnoli)) }

func readExt(head []byte) (extSuper, bool, error) {
	b := head[extSuperOffset : extSuperOffset+extSuperSize]
	le := binary.LittleEndian
	if le.Uint16(b[0x38:]) != extMagic {
		return extSuper{}, false, nil
	}
	s := extSuper{
		blocks: uint64(le.Uint32(b[0x4:])), firstBlock: uint64(le.Uint32(b[0x14:])), blocksPerGroup: uint64(le.Uint32(b[0x20:])),
		inodesPerGroup: uint64(le.Uint32(b[0x28:])), inodeSize: 128, descriptorSize: 32, reservedGDT: uint64(le.Uint16(b[0xce:])),
		compat: le.Uint32(b[0x5c:]), incompat: le.Uint32(b[0x60:]), roCompat: le.Uint32(b[0x64:]),
		uuid: formatUUID(b[0x68:]), label: cString(b[0x78:0x88]), revision: le.Uint32(b[0x4c:]), state: le.Uint16(b[0x3a:]),
	}
	if inodes, free := le.Uint32(b[0x0:]), le.Uint32(b[0x10:]); free <= inodes {
		s.usedInodes = uint64(inodes - free)
	}
	if s.compat&extHasJournal != 0 && b[0xfd] == 1 { // a copy of its inode
		s.journal = uint64(le.Uint32(b[0x148:]))<<32 | uint64(le.Uint32(b[0x14c:]))
	}
	logSize := le.Uint32(b[0x18:])
	if logSize > 6 {
		return s, true, damaged(Ext4, "block size 1024<<%d", logSize)
	}
	s.blockSize = 1024 << logSize
	if s.revision > 0 {
		s.inodeSize = uint64(le.Uint16(b[0x58:]))
	}
	if s.incompat&ext64Bit != 0 {
		s.blocks |= uint64(le.Uint32(b[0x150:])) << 32
		s.descriptorSize = uint64(le.Uint16(b[0xfe:]))
	}
	// The kernel's crc32c starts with all ones and is not inverted at the end.
	if s.roCompat&extChecksums != 0 && ^crc32c(b[:0x3fc]) != le.Uint32(b[0x3fc:]) {
		return s, true, damaged(Ext4, "its checksum is wrong")
	}
	if s.blocksPerGroup == 0 || s.inodesPerGroup == 0 || s.blocks <= s.firstBlock {
		return s, true, damaged(Ext4, "%d blocks from block %d on, %d blocks and %d inodes per group", s.blocks, s.firstBlock, s.blocksPerGroup, s.inodesPerGroup)
	}
	return s, true, nil
}

func parseExt(head []byte) (Info, bool, error) {
	s, found, err := readExt(head)
	if !found || err != nil {
		return Info{}, found, err
	}
	size, ok := sizeOf(s.blocks, s.blockSize)
	if !ok {
		return Info{}, true, damaged(Ext4, "%d blocks of %d bytes", s.blocks, s.blockSize)
	}
	info := Info{UUID: s.uuid, Label: s.label, Size: size}
	switch {
	case s.incompat&extJournalDev != 0:
		info.Foreign = "an external journal of ext4"
	case s.incompat&(extExtents|ext64Bit|extFlexGroups) != 0 || s.roCompat&ext4Only != 0:
		info.Type = Ext4
	case s.compat&extHasJournal != 0:
		info.Foreign = "ext3"
	default:
		info.Foreign = "ext2"
	}
	return info, true, nil
}

// extLeastGrowth has space for the log of the growth.
const extLeastGrowth = mib

// full is also true if the rest is at most extLeastGrowth, or would be a last group too small for its
// metadata and 50 blocks, which resize2fs and the kernel omit.
func (s extSuper) full(deviceSize int64) bool {
	blocks := uint64(deviceSize) / s.blockSize
	if blocks <= s.blocks+extLeastGrowth/s.blockSize {
		return true
	}
	rest := (blocks - s.firstBlock) % s.blocksPerGroup
	if rest == 0 || blocks-rest != s.blocks {
		return false
	}
	group := (blocks - s.firstBlock) / s.blocksPerGroup
	overhead := 2 + (s.inodesPerGroup*s.inodeSize+s.blockSize-1)/s.blockSize
	if s.hasSuper(group) {
		perBlock := s.blockSize / max(s.descriptorSize, 1)
		overhead += 1 + group/max(perBlock, 1) + 1 + s.reservedGDT
	}
	return rest < overhead+50
}

// metadata estimates the size of inodes, journal and bitmaps.
func (s extSuper) metadata() uint64 {
	groups := s.blocks/s.blocksPerGroup + 1
	return s.usedInodes*s.inodeSize + s.journal + groups*2*s.blockSize
}

// hasSuper includes the group descriptors.
func (s extSuper) hasSuper(group uint64) bool {
	if group <= 1 || s.roCompat&extSparse == 0 {
		return true
	}
	for _, base := range []uint64{3, 5, 7} {
		power := base
		for power < group {
			power *= base
		}
		if power == group {
			return true
		}
	}
	return false
}

func cString(b []byte) string {
	b, _, _ = bytes.Cut(b, []byte{0})
	return strings.ToValidUTF8(string(b), "?")
}
