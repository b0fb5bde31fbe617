// Package fstrim tells the device below a mounted file system which blocks are
// free, so that a thin volume gives their room back to its pool.
package fstrim

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/errs"
)

// ErrUnsupported: the file system or its device takes no discards; a thick
// volume refuses them, because they would give away its room.
var ErrUnsupported = errors.New("discards are not supported")

// step is how many bytes of the file system one call of the kernel covers, so
// that a cancelled context is noticed in between.
const step = 16 << 30

// trimRange is struct fstrim_range. The kernel answers in Length how many
// bytes it has discarded.
type trimRange struct{ Start, Length, LeastExtent uint64 }

const fitrim = 0xc0185879 // FITRIM, _IOWR('X', 121, struct fstrim_range)

// Trim discards the free blocks of the file system that is mounted at a
// directory, and returns how many bytes that were. Some file systems leave out
// what they have discarded before and nobody used since. ErrUnsupported
// (errs.Unsupported); errs.Precondition: it is mounted read-only.
func Trim(ctx context.Context, mountpoint string) (int64, error) {
	dir, err := os.OpenFile(mountpoint, os.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return 0, fmt.Errorf("trim: %w", err)
	}
	defer dir.Close()
	ranges, err := plan(dir)
	if err != nil {
		return 0, err
	}
	var total int64
	for _, r := range ranges {
		if err := ctx.Err(); err != nil {
			return total, fmt.Errorf("trim of %s stopped after %d bytes: %w", mountpoint, total, err)
		}
		if err := trim(dir, &r); err != nil {
			return total, explain(mountpoint, err)
		}
		total += int64(min(r.Length, math.MaxInt64))
	}
	return total, nil
}

// plan divides a file system into ranges; the last is open-ended, as statfs
// tells less than the real size. In btrfs the numbers are not offsets on the
// device, and its free room lies outside of them: it gets one range of all.
func plan(dir *os.File) ([]trimRange, error) {
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(dir.Fd()), &st); err != nil {
		return nil, fmt.Errorf("statfs %s: %w", dir.Name(), err)
	}
	if uint32(st.Type) == unix.BTRFS_SUPER_MAGIC {
		return split(0), nil
	}
	return split(st.Blocks * uint64(st.Bsize)), nil
}

func split(size uint64) []trimRange {
	var ranges []trimRange
	start := uint64(0)
	for ; start+step < size; start += step {
		ranges = append(ranges, trimRange{Start: start, Length: step})
	}
	return append(ranges, trimRange{Start: start, Length: math.MaxUint64 - start})
}

func trim(dir *os.File, r *trimRange) error {
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, dir.Fd(), fitrim, uintptr(unsafe.Pointer(r))); errno != 0 {
		return errno
	}
	return nil
}

func explain(mountpoint string, err error) error {
	switch {
	case errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.ENOTTY):
		return errs.Errorf(errs.Unsupported, "trim of %s: %w by the file system or the device below it: %w", mountpoint, ErrUnsupported, err)
	case errors.Is(err, unix.EROFS):
		return errs.Errorf(errs.Precondition, "trim of %s: it is mounted read-only: %w", mountpoint, err)
	}
	return fmt.Errorf("trim of %s: %w", mountpoint, err)
}
