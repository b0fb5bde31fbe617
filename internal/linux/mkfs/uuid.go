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

// NewUUID makes a copy of a file system mountable beside its original. The
// copy is not in use; it may have been cut while the original was mounted and
// not frozen. It does not flush the file. Cut half-way it can be repeated.
//
//   - ext4 mounts twins as they are, xfs does with the option nouuid: nothing
//     is changed. A later replay of the log, which belongs to the old UUID,
//     stays possible.
//   - btrfs takes two devices with one UUID for one file system, and would
//     answer a mount of the copy with the original. The copy gets a new UUID
//     in its superblocks and remembers the old one, which all its metadata
//     carries, as metadata_uuid (kernel 5.0).
//
// The last is what "btrfstune -m" does, too; but that runs transactions of its
// own. Measured with release 6.2: after them the log tree, which holds what was
// synced since the last commit, can no longer be read, and the kernel refuses
// the mount; "btrfs rescue zero-log" would then throw away synced data. Here
// nothing but the superblocks is written, and the kernel replays the log.
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

// device is what renameBtrfs reads and writes.
type device interface {
	io.ReaderAt
	io.WriterAt
}

// renameBtrfs gives all copies of the superblock a new UUID. The first, which
// alone counts at a mount, comes last: a cut leaves the old or the new.
func renameBtrfs(d device, id uuid.UUID) error {
	first, err := readBtrfsSuper(d, btrfsSuperOffset)
	if err != nil {
		return err
	}
	le := binary.LittleEndian
	if n := le.Uint64(first[btrfsNumDevices:]); n != 1 {
		return errs.Errorf(errs.Precondition, "it spans %d devices", n)
	}
	if n := le.Uint16(first[btrfsCsumType:]); n != btrfsCsumCRC32C {
		return errs.Errorf(errs.Unsupported, "its checksums are of type %d, only crc32c can be computed here", n)
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
		return nil, fmt.Errorf("reading the superblock at byte %d: %w", at, err)
	}
	if !isBtrfs(super) {
		return nil, damaged(Btrfs, "there is no copy at byte %d", at)
	}
	return super, checkBtrfs(super, at)
}

// setBtrfsUUID changes one copy. The UUID in its device record stays: it is
// compared with metadata_uuid.
func setBtrfsUUID(super []byte, id, metadata uuid.UUID) {
	le := binary.LittleEndian
	copy(super[btrfsFSID:], id[:])
	copy(super[btrfsMetadataUUID:], metadata[:])
	le.PutUint64(super[btrfsIncompat:], le.Uint64(super[btrfsIncompat:])|btrfsHasMetadataUUID)
	le.PutUint32(super, crc32c(super[btrfsCsumLength:]))
}
