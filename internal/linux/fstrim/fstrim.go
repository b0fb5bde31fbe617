// Package fstrim discards the free blocks of a mounted file system, which
// returns their space to the pool.
package fstrim

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/linux/kernelcall"
)

// ErrUnsupported: the file system or its device does not support discards.
// Thick volumes disable them.
var ErrUnsupported = errors.New("discards are not supported")

// step is the range of one call, so that a cancelled context is noticed.
const step = 16 << 30

// trimRange is struct fstrim_range. The kernel returns the discarded bytes in
// Length.
type trimRange struct{ Start, Length, LeastExtent uint64 }

const fitrim = 0xc0185879 // FITRIM, _IOWR('X', 121, struct fstrim_range)

// Trim discards the free blocks of a mounted file system, and returns the
// number of bytes. Some file systems skip blocks discarded before. Errors:
// ErrUnsupported (errs.Unsupported); errs.Precondition if mounted read-only.
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
			return total, fmt.Errorf("trim %s: stopped after %d bytes: %w", mountpoint, total, err)
		}
		if _, err := kernelcall.Ioctl(ctx, dir, fitrim, &r); err != nil {
			return total, explain(mountpoint, err)
		}
		total += int64(min(r.Length, math.MaxInt64))
	}
	return total, nil
}

// plan divides a file system into ranges; the last is open-ended, as statfs
// reports less than the real size. On btrfs the range is not a device offset,
// and free space is outside of the reported size, so there is one range for
// all.
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

func explain(mountpoint string, err error) error {
	switch {
	case errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.ENOTTY):
		return errs.Errorf(errs.Unsupported, "trim %s: %w by the file system or its device: %w", mountpoint, ErrUnsupported, err)
	case errors.Is(err, unix.EROFS):
		return errs.Errorf(errs.Precondition, "trim %s: it is mounted read-only: %w", mountpoint, err)
	}
	return fmt.Errorf("trim %s: %w", mountpoint, err)
}
