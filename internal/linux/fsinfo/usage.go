// Package fsinfo tells how a mounted file system does: how full it is, and
// which errors the kernel has counted.
package fsinfo

import (
	"context"
	"fmt"
	"math"

	"golang.org/x/sys/unix"
)

// Amount is how much there is of something, in bytes or in pieces. Used is what
// is not free; Available is what users without privileges can still take, so
// Used and Available may be less than Total together.
type Amount struct{ Total, Used, Available int64 }

// Usage tells how full a file system is. Inodes are zero for file systems that
// have no fixed number of them (btrfs).
type Usage struct{ Bytes, Inodes Amount }

// UsageOf asks the file system at a path. A file system that has shut down
// still answers.
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

// times multiplies without an overflow: network file systems tell fancy totals.
func times(n, unit uint64) int64 {
	if unit != 0 && n > math.MaxInt64/unit {
		return math.MaxInt64
	}
	return int64(n * unit)
}
