package mkfs

import (
	"bytes"
	"slices"
)

type signature struct {
	at   int
	mark string
	name string
}

// signatures are checked in order; all lie in the range that Probe reads.
func signatures() []signature {
	return []signature{
		{0, "LUKS\xba\xbe", "a LUKS volume"},
		{512, "EFI PART", "a GPT partition table"},
		{4096, "EFI PART", "a GPT partition table"},
		{4086, "SWAPSPACE2", "swap space"},
		{8182, "SWAPSPACE2", "swap space"},
		{16374, "SWAPSPACE2", "swap space"},
		{65526, "SWAPSPACE2", "swap space"},
		{4086, "SWAP-SPACE", "swap space"},
		{0, "LABELONE", "an LVM physical volume"},
		{512, "LABELONE", "an LVM physical volume"},
		{1024, "LABELONE", "an LVM physical volume"},
		{1536, "LABELONE", "an LVM physical volume"},
		{0, "\xfc\x4e\x2b\xa9", "a member of an MD array"},
		{4096, "\xfc\x4e\x2b\xa9", "a member of an MD array"},
		{4120, "\xc6\x85\x73\xf6\x4e\x1a\x45\xca", "a bcache device"},
		{4120, "\xc6\x85\x73\xf6\x66\xce\x90\xa9", "bcachefs"},
		{0, "bluestore block device", "a Ceph BlueStore device"},
		{1024, "\x10\x20\xf5\xf2", "f2fs"},
		{1024, "\xe2\xe1\xf5\xe0", "erofs"},
		{0, "hsqs", "squashfs"},
		{32769, "CD001", "ISO 9660"},
		{3, "NTFS    ", "NTFS"},
		{3, "EXFAT   ", "exFAT"},
		{82, "FAT32   ", "FAT"},
		{54, "FAT1", "FAT"},
		{0, "QFI\xfb", "a qcow2 disk image"},
	}
}

func foreign(head []byte) string {
	for _, s := range signatures() {
		if bytes.HasPrefix(head[s.at:], []byte(s.mark)) {
			return s.name
		}
	}
	if isMBR(head) {
		return "an MBR partition table"
	}
	return ""
}

// isMBR requires more than the last two bytes of the sector, which boot code
// has too: four entries with valid flags, at least one in use.
func isMBR(head []byte) bool {
	if head[510] != 0x55 || head[511] != 0xaa {
		return false
	}
	used := false
	for entry := range slices.Chunk(head[446:510], 16) {
		if flag := entry[0]; flag != 0 && flag != 0x80 {
			return false
		}
		used = used || entry[4] != 0
	}
	return used
}
