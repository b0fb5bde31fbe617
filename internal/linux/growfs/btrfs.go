package growfs

import (
	"context"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/errs"
)

const (
	btrfsResize     = 0x50009403 // BTRFS_IOC_RESIZE, _IOW(0x94, 3, struct btrfs_ioctl_vol_args)
	btrfsDeviceInfo = 0xd000941e // BTRFS_IOC_DEV_INFO, _IOWR(0x94, 30, struct btrfs_ioctl_dev_info_args)
	// btrfsDevice is the id of the one device of what mkfs makes.
	btrfsDevice = 1
)

// resizeArgs is struct btrfs_ioctl_vol_args.
type resizeArgs struct {
	_    int64
	Name [4088]byte
}

// deviceInfo is struct btrfs_ioctl_dev_info_args.
type deviceInfo struct {
	Device     uint64
	UUID       [16]byte
	BytesUsed  uint64
	TotalBytes uint64
	_          [4056]byte
}

// growBtrfs asks for all there is; the kernel finds nothing to do when that is
// what there was. A positive result of the call names an operation that runs
// and excludes a resize, such as a balance.
func growBtrfs(_ context.Context, dir *os.File) (int64, error) {
	var args resizeArgs
	copy(args.Name[:], fmt.Sprintf("%d:max", btrfsDevice))
	running, err := ioctl(dir, btrfsResize, &args)
	if err != nil {
		return 0, err
	}
	if running > 0 {
		return 0, errs.Errorf(errs.Busy, "a balance, device or resize operation runs on it (btrfs error %d): %w", running, unix.EINPROGRESS)
	}
	info := deviceInfo{Device: btrfsDevice}
	if _, err := ioctl(dir, btrfsDeviceInfo, &info); err != nil {
		return 0, fmt.Errorf("size of its device: %w", err)
	}
	return int64(info.TotalBytes), nil
}
