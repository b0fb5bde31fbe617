package mkfs

import (
	"fmt"
	"io"
)

// IsFull reports whether the file system on a device is as large as it can be
// on one of that size in bytes. ext4 may leave out an end that is too small
// for a group of its own. Errors: as Probe.
func IsFull(r io.ReaderAt, deviceSize int64) (bool, error) {
	info, err := Probe(r)
	if err != nil || info.Type != Ext4 {
		return err == nil && info.Size >= deviceSize, err
	}
	head := make([]byte, reach)
	if n, err := r.ReadAt(head, 0); n < len(head) {
		return false, fmt.Errorf("reading the superblock: %w", err)
	}
	s, _, err := readExt(head)
	return err == nil && s.full(deviceSize), err
}
