// Command overlay runs a command on the Ceph release of the image: in a mount
// namespace of its own, where the packages of that release lie over /usr. So
// daemons, CLI and libraries are those of the Ceph image's release, and
// everything else is the machine's.
//
//	go run ./deploy/image/overlay COMMAND...
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/deploy/image"
)

func main() {
	if err := run(context.Background(), os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "overlay:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, command []string) error {
	if len(command) == 0 {
		return errors.New("no command")
	}
	root, err := image.Unpacked(ctx, image.Ceph, os.Stderr, "ceph-mon", "ceph-osd", "ceph-mgr", "ceph-mds", "ceph-common")
	if err != nil {
		return err
	}
	if strings.ContainsAny(root, ",:\\") {
		return fmt.Errorf("the path %q cannot be a layer of an overlay: set CLEAT_CACHE to one without comma, colon and backslash", root)
	}
	runtime.LockOSThread() // the thread in the namespace becomes the command
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("create a mount namespace: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make the mounts private: %w", err)
	}
	if err := releaseTests(); err != nil {
		return err
	}
	layers := "lowerdir=" + filepath.Join(root, "usr") + ":/usr"
	if err := unix.Mount("ceph", "/usr", "overlay", unix.MS_RDONLY, layers); err != nil {
		return fmt.Errorf("mount Ceph's packages over /usr: %w", err)
	}
	program, err := exec.LookPath(command[0])
	if err != nil {
		return err
	}
	return syscall.Exec(program, command, os.Environ())
}

// releaseTests removes the copies of other tests' mounts from this namespace: they
// would keep the loop devices of those in use as long as the command runs.
func releaseTests() error {
	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(os.TempDir()))
	if err != nil {
		return fmt.Errorf("list the mounts of other tests: %w", err)
	}
	for _, m := range slices.Backward(mounts) {
		if m.Mountpoint == os.TempDir() {
			continue
		}
		if err := unix.Unmount(m.Mountpoint, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("unmount %s in this mount namespace: %w", m.Mountpoint, err)
		}
	}
	return nil
}
