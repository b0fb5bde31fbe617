package fsinfo

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	btrfsInfo        = 0x8400941f // BTRFS_IOC_FS_INFO, _IOR(0x94, 31, struct btrfs_ioctl_fs_info_args)
	btrfsDeviceStats = 0xc4089434 // BTRFS_IOC_GET_DEV_STATS, _IOWR(0x94, 52, struct btrfs_ioctl_get_dev_stats)
)

// infoArgs is struct btrfs_ioctl_fs_info_args.
type infoArgs struct {
	MaxID, Devices uint64
	_              [1008]byte
}

// statsArgs is struct btrfs_ioctl_get_dev_stats.
type statsArgs struct {
	Device, Items, Flags uint64
	Values               [5]uint64
	_                    [121]uint64
}

func btrfs(mountpoint string) (Faults, error) {
	dir, err := os.OpenFile(mountpoint, os.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return Faults{}, err
	}
	defer dir.Close()
	var info infoArgs
	if err := ioctl(dir, btrfsInfo, unsafe.Pointer(&info)); err != nil {
		return Faults{}, fmt.Errorf("list of devices: %w", err)
	}
	var sums [5]uint64
	for id := uint64(1); id <= info.MaxID; id++ {
		stats := statsArgs{Device: id, Items: uint64(len(sums))}
		err := ioctl(dir, btrfsDeviceStats, unsafe.Pointer(&stats))
		if errors.Is(err, unix.ENODEV) { // IDs of removed devices
			continue
		}
		if err != nil {
			return Faults{}, fmt.Errorf("counters of device %d: %w", id, err)
		}
		for i, n := range stats.Values {
			sums[i] += n
		}
	}
	return describeBtrfs(sums), nil
}

func describeBtrfs(sums [5]uint64) Faults {
	var f Faults
	var words []string
	for i, what := range []string{"failed writes", "failed reads", "failed flushes", "wrong checksums", "stale blocks"} {
		f.Count += sums[i]
		if sums[i] > 0 {
			words = append(words, fmt.Sprintf("%d %s", sums[i], what))
		}
	}
	f.Detail = strings.Join(words, ", ")
	return f
}

func ioctl(f *os.File, request uintptr, arg unsafe.Pointer) error {
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), request, uintptr(arg)); errno != 0 {
		return errno
	}
	return nil
}
