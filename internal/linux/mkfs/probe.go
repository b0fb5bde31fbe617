package mkfs

import (
	"errors"
	"fmt"
	"io"

	"github.com/google/uuid"
)

// Info says what a superblock says.
type Info struct {
	// Type is the file system; empty when there is none that Make can make.
	Type  Type
	UUID  string // in lower case; what the kernel shows, also for a btrfs with a changed one
	Label string
	// Size of the file system in bytes, which may be less than that of the
	// device below it.
	Size int64
	// Foreign names something else that is known by sight (swap space, a
	// partition table, another file system), when Type is empty.
	Foreign string
}

// ErrDamaged: there is the mark of a file system, but its superblock
// contradicts itself or its checksum.
var ErrDamaged = errors.New("damaged superblock")

// reach is how far into a device the marks lie that Probe looks at: the last
// is the superblock of btrfs.
const reach = btrfsSuperOffset + btrfsSuperSize

// Probe reads what kind of file system is there. Nothing that is known by
// sight gives an empty Info and no error: that does not mean that the device
// is blank, and nobody may format because of it. Errors: ErrDamaged, and what
// the reader says; a device that ends early is no error.
func Probe(r io.ReaderAt) (Info, error) {
	head := make([]byte, reach)
	if n, err := r.ReadAt(head, 0); err != nil && !(errors.Is(err, io.EOF) && n < len(head)) {
		return Info{}, fmt.Errorf("reading the superblocks: %w", err)
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

// sizeOf multiplies, and refuses what is no size of a device.
func sizeOf(blocks, blockSize uint64) (int64, bool) {
	const most = 1<<63 - 1
	if blocks == 0 || blockSize == 0 || blocks > most/blockSize {
		return 0, false
	}
	return int64(blocks * blockSize), true
}

func formatUUID(b []byte) string { return uuid.UUID(b[:16]).String() }
