// Package fsinfo reports the usage of mounted file systems and their recorded
// errors.
package fsinfo

import (
	"context"
	"fmt"
	"math"

	"golang.org/x/sys/unix"
)

// Amount is a capacity in bytes or inodes. Available is what unprivileged users
// can allocate, so Used and Available can sum up to less than Total.
type Amount struct{ Total, Used, Available int64 }

// Usage of a file system; inodes are zero if their number is not fixed (btrfs).
type Usage struct{ Bytes, Inodes Amount }

// UsageOf returns the usage of the file system at a path, also after a
// shutdown.
func UsageOf(ctx context.Context, path string) (Usage, error) {
	if err := ctx.Err(); err != nil {
		return Usage{}, err
	}
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return Usage{}, fmt.Errorf("usage of %s: statfs: %w", path, err)
	}
	unit := uint64(st.Frsize)
	if unit == 0 {
		unit = uint64(st.Bsize)
	}
	return Usage{
		Bytes:  amount(st.Blocks, st.Bfree, st.Bavail, unit),
		Inodes: amount(st.Files, st.Ffree, st.Ffree, 1),
	}, nil
}

func amount(total, free, available, unit uint64) Amount {
	free = min(free, total)
	return Amount{Total: times(total, unit), Used: times(total-free, unit), Available: times(min(available, total), unit)}
}

// times saturates: some network file systems report huge totals.
func times(n, unit uint64) int64 {
	if unit != 0 && n > math.MaxInt64/unit {
		return math.MaxInt64
	}
	return int64(n * unit)
}
