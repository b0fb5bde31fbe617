package mkfs

import (
	"bytes"
	"fmt"
	"os"
)

// resizeMarker means that a resize began and did not end. It is in the boot
// block (1024 bytes), which ext4 does not use, so that copies of the device
// include it.
//
// The superblock from before the resize follows, without a zero part that would
// not fit: resize2fs writes it in pieces, and a file system with one group has
// no other copy.
const (
	resizeMarker = "cleat: resize2fs began here\n"
	savedSuper   = 960
	superTail    = 4
)

func findInterruptedResize(f *os.File) (bool, error) {
	b := make([]byte, len(resizeMarker))
	if _, err := f.ReadAt(b, 0); err != nil {
		return false, fmt.Errorf("read %s: %w", f.Name(), err)
	}
	return string(b) == resizeMarker, nil
}

// markResize does not overwrite a boot block with other content; it reports
// whether the marker exists now.
func markResize(f *os.File) (bool, error) {
	b := make([]byte, extSuperOffset+extSuperSize)
	if _, err := f.ReadAt(b, 0); err != nil {
		return false, fmt.Errorf("read %s: %w", f.Name(), err)
	}
	boot, super := b[:extSuperOffset], b[extSuperOffset:]
	free := isZero(boot) || string(boot[:len(resizeMarker)]) == resizeMarker
	if !free || !isZero(super[savedSuper:extSuperSize-superTail]) {
		return false, nil
	}
	marker := bytes.Join([][]byte{[]byte(resizeMarker), super[:savedSuper], super[extSuperSize-superTail:]}, nil)
	return true, writeBoot(f, marker)
}

// undoTornSuper restores a damaged superblock. Growing does not move existing
// data or metadata, so the old one leads to all data.
func undoTornSuper(f *os.File) error {
	head := make([]byte, reach)
	if _, err := f.ReadAt(head, 0); err != nil {
		return fmt.Errorf("read %s: %w", f.Name(), err)
	}
	if _, found, err := readExt(head); found && err == nil {
		return nil
	}
	saved := head[len(resizeMarker):extSuperOffset]
	super := make([]byte, extSuperSize)
	copy(super, saved[:savedSuper])
	copy(super[extSuperSize-superTail:], saved[savedSuper:])
	copy(head[extSuperOffset:], super)
	if _, found, err := readExt(head); !found || err != nil {
		return fmt.Errorf("%s: the superblock saved before the resize is damaged too: %w", f.Name(), err)
	}
	if _, err := f.WriteAt(super, extSuperOffset); err != nil {
		return fmt.Errorf("restore the superblock of %s: %w", f.Name(), err)
	}
	return nil
}

func writeBoot(f *os.File, b []byte) error {
	if _, err := f.WriteAt(b, 0); err != nil {
		return fmt.Errorf("write the resize marker of %s: %w", f.Name(), err)
	}
	if err := f.Sync(); err != nil {
		return fmt.Errorf("fsync %s: %w", f.Name(), err)
	}
	return nil
}

func isZero(b []byte) bool { return len(bytes.Trim(b, "\x00")) == 0 }
