// Package growfs grows mounted file systems to the size of their devices with
// ioctls, without external tools.
package growfs

import (
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/linux/mkfs"
)

// ErrNeedsSysResource: growing a mounted ext4 needs CAP_SYS_RESOURCE.
// mkfs.CheckAndGrow does not, so the volume grows when it is staged again.
var ErrNeedsSysResource = errors.New("growing a mounted ext4 needs CAP_SYS_RESOURCE")

// Grow grows a mounted file system to the current size of its device, and
// returns the new size. It is idempotent. A resize in the kernel continues when
// the context ends.
//
// Errors: ErrNeedsSysResource; errs.Busy if a resize is running;
// errs.Precondition if the file system is of another type, mounted read-only,
// or has errors.
func Grow(ctx context.Context, mountpoint string, t mkfs.Type) (int64, error) {
	if _, err := mkfs.ParseType(string(t)); err != nil {
		return 0, err
	}
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	dir, err := os.OpenFile(mountpoint, os.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return 0, fmt.Errorf("grow %s: %w", t, err)
	}
	defer dir.Close()
	if err := checkType(dir, t); err != nil {
		return 0, err
	}
	grow := map[mkfs.Type]func(context.Context, *os.File) (int64, error){mkfs.Ext4: growExt4, mkfs.XFS: growXFS, mkfs.Btrfs: growBtrfs}
	size, err := grow[t](ctx, dir)
	if err != nil {
		return 0, fmt.Errorf("grow the %s at %s: %w", t, mountpoint, explain(err))
	}
	return size, nil
}

// checkType is needed since ioctl numbers are not unique among file systems.
func checkType(dir *os.File, t mkfs.Type) error {
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(dir.Fd()), &st); err != nil {
		return fmt.Errorf("statfs %s: %w", dir.Name(), err)
	}
	want := map[mkfs.Type]uint32{mkfs.Ext4: unix.EXT4_SUPER_MAGIC, mkfs.XFS: unix.XFS_SUPER_MAGIC, mkfs.Btrfs: unix.BTRFS_SUPER_MAGIC}[t]
	if uint32(st.Type) != want {
		return errs.Errorf(errs.Precondition, "%s is not %s: its file system has the magic number %#x, not %#x", dir.Name(), t, uint32(st.Type), want)
	}
	return nil
}

func explain(err error) error {
	switch {
	case errors.Is(err, unix.EROFS):
		return errs.Errorf(errs.Precondition, "the file system is mounted read-only: %w", err)
	case errors.Is(err, unix.EBUSY), errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EINPROGRESS):
		return errs.Errorf(errs.Busy, "a resize is already running: %w", err)
	}
	return err
}
