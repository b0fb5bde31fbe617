package mkfs

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"os"

	"github.com/google/uuid"

	"github.com/cleatproject/cleat/errs"
)

// NewUUID makes a copy of a file system mountable on the same host as its
// original. The copy must not be in use; it can be a snapshot of a mounted file
// system. It does not flush the file. It is idempotent.
//
//   - ext4 duplicates mount as they are, xfs duplicates with nouuid: nothing is changed, and the log, which contains the old UUID, can be replayed.
//   - btrfs treats two devices with one UUID as one file system, and would mount the original instead of the copy. The copy gets a new UUID in its superblocks, and the old one, which is in all metadata, becomes the metadata_uuid (kernel 5.0).
//
// "btrfstune -m" (measured: 6.2) also commits transactions, after which the log
// tree with data synced since the last commit is unreadable and the mount
// fails. Here only the superblocks are written, and the kernel replays the log.
func (t Tools) NewUUID(ctx context.Context, path string, fs Type) error {
	if _, err := ParseType(string(fs)); err != nil {
		return err
	}
	if fs != Btrfs {
		return nil
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("new UUID for %s: %w", fs, err)
	}
	err = renameBtrfs(f, uuid.New())
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		return fmt.Errorf("new UUID for the btrfs on %s: %w", path, err)
	}
	return nil
}

type device interface {
	io.ReaderAt
	io.WriterAt
}

// renameBtrfs writes the first copy of the superblock, the only one used by a
// mount, last: an interruption leaves the old or the new UUID.
func renameBtrfs(d device, id uuid.UUID) error {
	first, err := readBtrfsSuper(d, btrfsSuperOffset)
	if err != nil {
		return err
	}
	le := binary.LittleEndian
	if n := le.Uint64(first[btrfsNumDevices:]); n != 1 {
		return errs.Errorf(errs.Precondition, "the file system spans %d devices, want 1", n)
	}
	if n := le.Uint16(first[btrfsCsumType:]); n != btrfsCsumCRC32C {
		return errs.Errorf(errs.Unsupported, "checksum type %d is not supported, want crc32c", n)
	}
	old := first[btrfsFSID : btrfsFSID+16]
	if le.Uint64(first[btrfsIncompat:])&btrfsHasMetadataUUID != 0 {
		old = first[btrfsMetadataUUID : btrfsMetadataUUID+16]
	}
	metadata := uuid.UUID(old)
	size := le.Uint64(first[btrfsTotalBytes:])
	for _, at := range []int64{256 << 30, 64 << 20, btrfsSuperOffset} {
		if uint64(at)+btrfsSuperSize > size {
			continue
		}
		super, err := readBtrfsSuper(d, at)
		if err != nil {
			return err
		}
		setBtrfsUUID(super, id, metadata)
		if _, err := d.WriteAt(super, at); err != nil {
			return err
		}
	}
	return nil
}

func readBtrfsSuper(r io.ReaderAt, at int64) ([]byte, error) {
	super := make([]byte, btrfsSuperSize)
	if _, err := r.ReadAt(super, at); err != nil {
		return nil, fmt.Errorf("read the superblock at byte %d: %w", at, err)
	}
	if !isBtrfs(super) {
		return nil, damaged(Btrfs, "no copy at byte %d", at)
	}
	return super, checkBtrfs(super, at)
}

// setBtrfsUUID changes one copy. The UUID in its device item remains, as it is
// compared with metadata_uuid.
func setBtrfsUUID(super []byte, id, metadata uuid.UUID) {
	le := binary.LittleEndian
	copy(super[btrfsFSID:], id[:])
	copy(super[btrfsMetadataUUID:], metadata[:])
	le.PutUint64(super[btrfsIncompat:], le.Uint64(super[btrfsIncompat:])|btrfsHasMetadataUUID)
	le.PutUint32(super, crc32c(super[btrfsCsumLength:]))
}
