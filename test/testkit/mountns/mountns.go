// Package mountns moves a program into a mount namespace of its own, and drops
// the copies of others' mounts there: they would keep the loop devices of those in
// use as long as the namespace exists.
package mountns

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// Enter moves the calling thread into a new mount namespace with private mounts
// and without those of loop devices. The thread stays there, and a program that it
// executes is in the namespace.
func Enter() error {
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("create a mount namespace, as root: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make the mounts private: %w", err)
	}
	return DropCopies()
}

// DropCopies unmounts what is mounted from loop devices in this namespace, but for
// the file systems of TMPDIR and of the working directory. Precondition: the
// namespace is not that of the tests.
func DropCopies() error {
	dir, err := os.Getwd()
	if err != nil {
		return err
	}
	isNeeded := func(mountpoint string) bool {
		below := strings.TrimSuffix(mountpoint, "/") + "/"
		return strings.HasPrefix(os.TempDir()+"/", below) || strings.HasPrefix(dir+"/", below)
	}
	mounts, err := mountinfo.GetMounts(func(m *mountinfo.Info) (skip, stop bool) {
		return !strings.HasPrefix(m.Source, "/dev/loop") || isNeeded(m.Mountpoint), false
	})
	for _, m := range slices.Backward(mounts) {
		if err := unix.Unmount(m.Mountpoint, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("unmount the copy of %s: %w", m.Mountpoint, err)
		}
	}
	return err
}
