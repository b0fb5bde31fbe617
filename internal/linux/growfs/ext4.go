package growfs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/linux/blockdev"
	"github.com/cleatproject/cleat/internal/linux/kernelcall"
	"github.com/cleatproject/cleat/internal/linux/mkfs"
	"github.com/cleatproject/cleat/internal/linux/retry"
)

const ext4ResizeFS = 0x40086610 // EXT4_IOC_RESIZE_FS, _IOW('f', 16, __u64)

// growExt4 requests as many blocks as the device has. The current size comes
// from the superblock, as statfs subtracts the file system's overhead.
func growExt4(ctx context.Context, dir *os.File) (int64, error) {
	device, err := openDevice(dir)
	if err != nil {
		return 0, err
	}
	defer device.Close()
	space, err := blockdev.Size(device)
	if err != nil {
		return 0, err
	}
	now, full, err := ext4Size(ctx, device, space)
	if err != nil || full {
		return now, err
	}
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(dir.Fd()), &st); err != nil {
		return 0, fmt.Errorf("statfs: %w", err)
	}
	blocks := uint64(space) / uint64(st.Bsize)
	if _, err := kernelcall.Ioctl(ctx, dir, ext4ResizeFS, &blocks); err != nil {
		return 0, explainExt4(err, now, space)
	}
	now, _, err = ext4Size(ctx, device, space)
	return now, err
}

// ext4Size reads the superblock through the page cache of the device. During an
// update its checksum can be wrong.
func ext4Size(ctx context.Context, device *os.File, space int64) (size int64, full bool, err error) {
	const bound = 500 * time.Millisecond
	err = retry.For(ctx, bound, func() (bool, error) {
		info, err := mkfs.Probe(device)
		if err == nil {
			size = info.Size
			full, err = mkfs.IsFull(device, space)
		}
		return errors.Is(err, mkfs.ErrDamaged), err
	})
	return size, full, err
}

func explainExt4(err error, now, space int64) error {
	if !errors.Is(err, unix.EPERM) {
		return err
	}
	if allowed, capErr := hasSysResource(); capErr != nil || !allowed {
		return errs.Errorf(errs.Precondition, "%w, which this process does not have; the file system stays at %d bytes and grows to %d when the volume is staged again", ErrNeedsSysResource, now, space)
	}
	return errs.Errorf(errs.Precondition, "the kernel found errors in the file system; unmount it and run e2fsck -f: %w", err)
}

func hasSysResource() (bool, error) {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var sets [2]unix.CapUserData
	if err := unix.Capget(&header, &sets[0]); err != nil {
		return false, fmt.Errorf("capabilities of this process: %w", err)
	}
	return sets[0].Effective&(1<<unix.CAP_SYS_RESOURCE) != 0, nil
}
