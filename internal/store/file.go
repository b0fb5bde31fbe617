package store

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/internal/linux/fiemap"
)

// A commit overwrites blocks that have been written before, and changes no
// metadata of the file system. Otherwise it could need space on a full one
// (btrfs copies on write, and converts preallocated extents), and a failed
// write could be lost although its repeat succeeds: ext4 writes a block of a
// preallocated extent a second time without marking the extent as written, so
// that it reads as zeros after a power loss. The file is therefore written
// whole, with zeros at its end, when it is created and when it grows.

// noCOW is FS_NOCOW_FL of linux/fs.h.
const noCOW = 0x00800000

// writeFile creates a file of the given size, or replaces one that is left over.
func writeFile(path string, data []byte, size int64) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	err = f.Chmod(0o600) // regardless of the umask
	if err == nil {
		err = noCopyOnWrite(f)
	}
	if err == nil {
		err = extend(f, data, 0, size)
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return errors.Join(err, os.Remove(path))
	}
	return nil
}

// extend writes data and then zeros to [from, to), and syncs. A full file system
// fails before any write.
func extend(f *os.File, data []byte, from, to int64) error {
	if err := allocate(f, from, to-from); err != nil {
		return fmt.Errorf("preallocate %d bytes: %w", to-from, err)
	}
	if _, err := f.WriteAt(data, from); err != nil {
		return err
	}
	zeros := make([]byte, 1<<20)
	for at := from + int64(len(data)); at < to; at += int64(len(zeros)) {
		if _, err := f.WriteAt(zeros[:min(int64(len(zeros)), to-at)], at); err != nil {
			return err
		}
	}
	return f.Sync()
}

// allocate keeps the file's size.
func allocate(f *os.File, from, length int64) error {
	err := fallocate(f, unix.FALLOC_FL_KEEP_SIZE, from, length)
	if errors.Is(err, unix.EOPNOTSUPP) {
		return nil
	}
	return err
}

func punchHole(f *os.File, from, to int64) error {
	return fallocate(f, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, from, to-from)
}

func fallocate(f *os.File, mode uint32, from, length int64) error {
	if length <= 0 {
		return nil
	}
	for {
		switch err := unix.Fallocate(int(f.Fd()), mode, from, length); err {
		case nil:
			return nil
		case unix.EINTR:
		default:
			return &fs.PathError{Op: "fallocate", Path: f.Name(), Err: err}
		}
	}
}

// isWritten reports whether commits overwrite written blocks only. File systems
// without FIEMAP (tmpfs, NFS) have no preallocated extents.
func isWritten(ctx context.Context, f *os.File) (bool, error) {
	info, err := f.Stat()
	if err != nil {
		return false, err
	}
	var end int64
	for e, err := range fiemap.Extents(ctx, f, 0, info.Size()) {
		switch {
		case errors.Is(err, fiemap.ErrUnsupported):
			return true, nil
		case err != nil:
			return false, err
		case e.Hole() || int64(e.Logical) > end:
			return false, nil
		}
		end = int64(e.Logical + e.Length)
	}
	return end >= info.Size(), nil
}

// copiesOnWrite reports whether the file is on btrfs and has not the attribute
// of noCopyOnWrite.
func copiesOnWrite(f *os.File) (bool, error) {
	if on, err := isBtrfs(f); !on {
		return false, err
	}
	flags, err := unix.IoctlGetUint32(int(f.Fd()), unix.FS_IOC_GETFLAGS)
	return flags&noCOW == 0, err
}

// noCopyOnWrite sets an attribute of btrfs, which applies to an empty file.
func noCopyOnWrite(f *os.File) error {
	if on, err := isBtrfs(f); !on {
		return err
	}
	if err := unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, noCOW); err != nil {
		return fmt.Errorf("turn off copy-on-write of %s: %w", f.Name(), err)
	}
	return nil
}

func isBtrfs(f *os.File) (bool, error) {
	var st unix.Statfs_t
	err := unix.Fstatfs(int(f.Fd()), &st)
	return st.Type == unix.BTRFS_SUPER_MAGIC, err
}

func isFull(err error) bool { return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) }

func syncDir(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// unfinished is the name of a file that is renamed to path when it is complete.
func unfinished(path, kind string) string {
	return filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+"."+kind)
}
