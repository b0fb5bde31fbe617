package reflink

import (
	"encoding/binary"
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/errs"
)

const (
	// XFS_IOC_FSGEOMETRY, _IOR('X', 126, struct xfs_fsop_geom).
	ioctlGeometry  = 0x8100587E
	geometrySize   = 256
	geometryFlags  = 92
	geometryShares = 1 << 20 // XFS_FSOP_GEOM_FLAGS_REFLINK
)

// supportedByKind lets cleat start on a full file system, to delete something.
// cause is wrapped for an unknown type.
func supportedByKind(dir *os.Root, cause error) (bool, error) {
	d, err := dir.Open(".")
	if err != nil {
		return false, err
	}
	defer d.Close()
	var stat unix.Statfs_t
	if err := unix.Fstatfs(int(d.Fd()), &stat); err != nil {
		return false, err
	}
	switch stat.Type {
	case unix.BTRFS_SUPER_MAGIC:
		return true, nil
	case unix.EXT4_SUPER_MAGIC:
		return false, nil
	case unix.XFS_SUPER_MAGIC:
		var geometry [geometrySize]byte
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, d.Fd(), ioctlGeometry, uintptr(unsafe.Pointer(&geometry)))
		runtime.KeepAlive(d)
		if errno != 0 {
			return false, errno
		}
		return binary.NativeEndian.Uint32(geometry[geometryFlags:])&geometryShares != 0, nil
	}
	return false, errs.Errorf(errs.Exhausted, "%s is too full to check whether it supports reflinks: %w", dir.Name(), cause)
}
