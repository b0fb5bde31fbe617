package fsinfo

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/linux/mkfs"
	"github.com/cleatproject/cleat/internal/linux/mount"
)

// Faults are the errors recorded for a file system.
type Faults struct {
	// Count of errors across mounts: ext4 since the last e2fsck, btrfs since
	// creation or a reset of the counters. XFS does not count.
	Count uint64
	// Shutdown: every access fails until the next mount.
	Shutdown bool
	// First and Last are the oldest and the latest error (ext4 only).
	First, Last Event
	Detail      string
}

// Event is one error.
type Event struct {
	Time     time.Time // zero: unknown
	Function string    // of the kernel; empty: unknown
}

// Reader reads errors from the kernel.
type Reader struct {
	// Empty is /sys.
	Sysfs string
}

// Errors returns the faults of the file system mounted at a directory.
func Errors(ctx context.Context, mountpoint string, t mkfs.Type) (Faults, error) {
	return Reader{}.Errors(ctx, mountpoint, t)
}

// Errors returns the faults of a mounted file system.
func (r Reader) Errors(ctx context.Context, mountpoint string, t mkfs.Type) (Faults, error) {
	if _, err := mkfs.ParseType(string(t)); err != nil {
		return Faults{}, err
	}
	if err := ctx.Err(); err != nil {
		return Faults{}, err
	}
	if err := checkType(mountpoint, t); err != nil {
		return Faults{}, err
	}
	down, err := isShutDown(ctx, mountpoint)
	if err != nil {
		return Faults{}, fmt.Errorf("errors of the %s at %s: %w", t, mountpoint, err)
	}
	var f Faults
	switch t {
	case mkfs.Ext4:
		f, err = r.ext4(mountpoint)
	case mkfs.Btrfs:
		f, err = btrfs(mountpoint)
	}
	f.Shutdown = down
	if down && f.Detail == "" {
		f.Detail = "the file system has shut down"
	}
	if err != nil {
		return Faults{Shutdown: down}, fmt.Errorf("errors of the %s at %s: %w", t, mountpoint, err)
	}
	return f, nil
}

// checkType prevents a report of another file system's counters.
func checkType(mountpoint string, t mkfs.Type) error {
	var st unix.Statfs_t
	if err := unix.Statfs(mountpoint, &st); err != nil {
		return fmt.Errorf("errors of the %s at %s: statfs: %w", t, mountpoint, err)
	}
	want := map[mkfs.Type]uint32{mkfs.Ext4: unix.EXT4_SUPER_MAGIC, mkfs.XFS: unix.XFS_SUPER_MAGIC, mkfs.Btrfs: unix.BTRFS_SUPER_MAGIC}[t]
	if uint32(st.Type) != want {
		return errs.Errorf(errs.Precondition, "%s is not mounted at %s: the magic number there is %#x, not %#x", t, mountpoint, uint32(st.Type), want)
	}
	return nil
}

// isShutDown neither reads from the device nor waits for it. After a shutdown
// XFS and btrfs fail to stat the root directory, and ext4 has the mount option
// "shutdown". statfs succeeds on all.
func isShutDown(ctx context.Context, mountpoint string) (bool, error) {
	fd, err := unix.Open(mountpoint, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err == nil {
		defer unix.Close(fd)
		var st unix.Stat_t
		err = unix.Fstat(fd, &st)
	}
	if errors.Is(err, unix.EIO) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	e, _, err := mount.At(ctx, mountpoint)
	return slices.Contains(e.SuperOptions, "shutdown"), err
}
