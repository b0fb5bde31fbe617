package growfs

import (
	"context"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/linux/kernelcall"
)

const (
	btrfsResize     = 0x50009403 // BTRFS_IOC_RESIZE, _IOW(0x94, 3, struct btrfs_ioctl_vol_args)
	btrfsDeviceInfo = 0xd000941e // BTRFS_IOC_DEV_INFO, _IOWR(0x94, 30, struct btrfs_ioctl_dev_info_args)
	// btrfsDevice is the ID of the only device.
	btrfsDevice = 1
)

type resizeArgs struct {
	_    int64
	Name [4088]byte
}

type deviceInfo struct {
	Device     uint64
	UUID       [16]byte
	BytesUsed  uint64
	TotalBytes uint64
	_          [4056]byte
}

// growBtrfs requests the maximum size. A positive result identifies a running
// operation, such as a balance, that excludes a resize.
func growBtrfs(ctx context.Context, dir *os.File) (int64, error) {
	var args resizeArgs
	copy(args.Name[:], fmt.Sprintf("%d:max", btrfsDevice))
	running, err := kernelcall.Ioctl(ctx, dir, btrfsResize, &args)
	if err != nil {
		return 0, err
	}
	if running > 0 {
		return 0, errs.Errorf(errs.Busy, "a balance, device or resize operation is running (btrfs error %d): %w", running, unix.EINPROGRESS)
	}
	info := deviceInfo{Device: btrfsDevice}
	if _, err := kernelcall.Ioctl(ctx, dir, btrfsDeviceInfo, &info); err != nil {
		return 0, fmt.Errorf("size of the device: %w", err)
	}
	return int64(info.TotalBytes), nil
}
