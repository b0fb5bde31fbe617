package mkfs

import (
	"bytes"
	"errors"
	"fmt"
	"io"

	"github.com/google/uuid"
)

// Info is the content of a superblock.
type Info struct {
	// Type is empty if it is not one that Make supports.
	Type  Type
	UUID  string // lower case, as in the kernel, even with a metadata_uuid
	Label string
	// Size in bytes can be less than the device's.
	Size int64
	// Foreign names other known content (swap space, a partition table, another
	// file system) if Type is empty.
	Foreign string
}

// ErrDamaged: the superblock is inconsistent or has a wrong checksum.
var ErrDamaged = errors.New("damaged superblock")

// reach is how many bytes Probe reads: up to the end of the superblock of
// btrfs.
const reach = btrfsSuperOffset + btrfsSuperSize

// Probe detects the content of a device. Unknown content returns an empty Info
// and no error: the device is not necessarily blank and must not be formatted.
// Errors: ErrDamaged, read errors.
func Probe(r io.ReaderAt) (Info, error) {
	head := make([]byte, reach)
	if n, err := r.ReadAt(head, 0); err != nil && !(errors.Is(err, io.EOF) && n < len(head)) {
		return Info{}, fmt.Errorf("read the superblocks: %w", err)
	}
	if bytes.HasPrefix(head, []byte(formatMarker)) { // a superblock after it is not complete
		return Info{Foreign: "a file system that is not complete"}, nil
	}
	if bytes.HasPrefix(head, []byte(growMarker)) {
		return Info{}, damaged(Ext4, "its growth was interrupted; a stage of the volume for writing undoes that")
	}
	var damage error
	for _, parse := range []func([]byte) (Info, bool, error){parseXFS, parseBtrfs, parseExt} {
		info, found, err := parse(head)
		if err != nil {
			damage = errors.Join(damage, err)
		} else if found {
			return info, nil
		}
	}
	if damage != nil {
		return Info{}, damage
	}
	return Info{Foreign: foreign(head)}, nil
}

func damaged(t Type, format string, args ...any) error {
	return fmt.Errorf("%w of %s: %s", ErrDamaged, t, fmt.Sprintf(format, args...))
}

func sizeOf(blocks, blockSize uint64) (int64, bool) {
	const most = 1<<63 - 1
	if blocks == 0 || blockSize == 0 || blocks > most/blockSize {
		return 0, false
	}
	return int64(blocks * blockSize), true
}

func formatUUID(b []byte) string { return uuid.UUID(b[:16]).String() }
