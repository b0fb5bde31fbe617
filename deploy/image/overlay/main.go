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
	"strings"
	"syscall"

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
