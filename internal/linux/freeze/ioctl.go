package freeze

import (
	"os"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/errs"
)

// FIFREEZE and FITHAW, _IOWR('X', 119, int) and _IOWR('X', 120, int), except on
// MIPS, PowerPC and SPARC.
const (
	ioctlFreeze = 0xC0045877
	ioctlThaw   = 0xC0045878
)

func freeze(root *os.File) error { return ioctl(root, ioctlFreeze) }

// thaw returns EINVAL when the file system is not frozen.
func thaw(root *os.File) error { return ioctl(root, ioctlThaw) }

func ioctl(root *os.File, request uint) error {
	for {
		err := unix.IoctlSetInt(int(root.Fd()), request, 0)
		runtime.KeepAlive(root)
		if err != unix.EINTR {
			return err
		}
	}
}

func refused(mountpoint string, errno unix.Errno) error {
	switch errno {
	case unix.EBUSY:
		return errs.Errorf(errs.Precondition, "freeze %s: %w (%w): by another program, or it was listed twice; fsfreeze --unfreeze ends a left-over freeze", mountpoint, ErrFrozen, errno)
	case unix.EOPNOTSUPP, unix.ENOTTY:
		return errs.Errorf(errs.Precondition, "freeze %s: %w (%w); ext4, XFS and btrfs can", mountpoint, ErrUnsupported, errno)
	case unix.EPERM:
		return errs.Errorf(errs.Denied, "freeze %s: %w; CAP_SYS_ADMIN is needed", mountpoint, errno)
	}
	return errs.Errorf(errs.Internal, "freeze %s: %w", mountpoint, errno)
}
