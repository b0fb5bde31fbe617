package mkfs

import (
	"bytes"
	"fmt"
	"os"
)

// resizeMarker says "a resize began and did not end". It lies in the boot
// block, the first 1024 bytes of the device, which ext4 leaves to others. There
// it needs no second place that could be lost or belong to another file, and a
// copy of the device has it too.
//
// Behind it lies the superblock as it was before, less a part in its reserved
// end that is zeros and would not fit: resize2fs writes the superblock piece by
// piece, and a file system of one group has no other copy of it.
const (
	resizeMarker = "cleat: resize2fs began here\n"
	savedSuper   = 960
	superTail    = 4 // the checksum
)

// findCutResize tells whether the marker is there.
func findCutResize(f *os.File) (bool, error) {
	b := make([]byte, len(resizeMarker))
	if _, err := f.ReadAt(b, 0); err != nil {
		return false, fmt.Errorf("reading %s: %w", f.Name(), err)
	}
	return string(b) == resizeMarker, nil
}

// markResize writes the marker, unless the boot block is in use: what is there
// belongs to someone. It tells whether the marker is there now.
func markResize(f *os.File) (bool, error) {
	b := make([]byte, extSuperOffset+extSuperSize)
	if _, err := f.ReadAt(b, 0); err != nil {
		return false, fmt.Errorf("reading %s: %w", f.Name(), err)
	}
	boot, super := b[:extSuperOffset], b[extSuperOffset:]
	free := isZero(boot) || string(boot[:len(resizeMarker)]) == resizeMarker
	if !free || !isZero(super[savedSuper:extSuperSize-superTail]) {
		return false, nil
	}
	marker := bytes.Join([][]byte{[]byte(resizeMarker), super[:savedSuper], super[extSuperSize-superTail:]}, nil)
	return true, writeBoot(f, marker)
}

// undoTornSuper puts the saved superblock back if the one that is there is
// damaged. Growing moves nothing that is older than it, so the old one leads
// to all data; e2fsck and a new resize follow.
func undoTornSuper(f *os.File) error {
	head := make([]byte, reach)
	if _, err := f.ReadAt(head, 0); err != nil {
		return fmt.Errorf("reading %s: %w", f.Name(), err)
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
		return fmt.Errorf("%s: the superblock saved before the resize is not usable either: %w", f.Name(), err)
	}
	if _, err := f.WriteAt(super, extSuperOffset); err != nil {
		return fmt.Errorf("restoring the superblock of %s: %w", f.Name(), err)
	}
	return nil
}

// writeBoot writes from the beginning of the device on, durably.
func writeBoot(f *os.File, b []byte) error {
	if _, err := f.WriteAt(b, 0); err != nil {
		return fmt.Errorf("marking the resize of %s: %w", f.Name(), err)
	}
	if err := f.Sync(); err != nil {
		return fmt.Errorf("flushing %s: %w", f.Name(), err)
	}
	return nil
}

func isZero(b []byte) bool { return len(bytes.Trim(b, "\x00")) == 0 }
