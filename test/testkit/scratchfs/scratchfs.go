// Package scratchfs creates file systems for tests: a small sparse file,
// formatted and mounted, removed when the test ends. It needs root; a missing
// tool fails the test.
package scratchfs

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/internal/linux/loop"
	"github.com/cleatproject/cleat/test/testkit"
)

// Size of a file system in bytes; the smallest that mkfs.xfs accepts. The file
// is sparse.
const Size = 300 << 20

// Mount creates a file system of a type (xfs, ext4, btrfs) with 4096-byte
// blocks, and returns its mount point.
func Mount(t testing.TB, fstype string, mkfsFlags ...string) (dir string) {
	t.Helper()
	image := filepath.Join(t.TempDir(), fstype+".img")
	f := testkit.Value(os.Create(image))(t)
	testkit.Must(t, errors.Join(f.Truncate(Size), f.Close()))
	switch fstype {
	case "ext4": // blocks of so small a file system would have 1024 bytes
		mkfsFlags = append([]string{"-b", "4096"}, mkfsFlags...)
	case "xfs":
		mkfsFlags = append([]string{"-s", "size=4096"}, mkfsFlags...)
	}
	Make(t, fstype, append(append([]string{"-q"}, mkfsFlags...), image)...)
	dir = t.TempDir()
	MountImage(t, fstype, image, dir)
	t.Cleanup(func() { testkit.Unmount(t, dir) })
	return dir
}

// MountImage mounts the file system in a file, whose blocks must have 4096
// bytes. The caller unmounts it, which also detaches the loop device. It does
// not use mount -o loop, which keeps the read-only flag that another test set
// on a loop device.
func MountImage(t testing.TB, fstype, image, dir string) {
	t.Helper()
	f := testkit.Value(os.OpenFile(image, os.O_RDWR, 0))(t)
	defer f.Close()
	device, open, err := loop.Attach(t.Context(), loop.Config{File: f, AutoClear: true})
	testkit.Must(t, err)
	defer open.Close()
	testkit.Run(t, "mount", "-t", fstype, device.Path, dir)
}

// Make runs mkfs. It retries mkfs.btrfs, which fails when another test detaches
// a loop device while it scans all of them.
func Make(t testing.TB, fstype string, args ...string) {
	t.Helper()
	testkit.EventuallyNil(t, "mkfs."+fstype, func() error {
		out, err := exec.Command("mkfs."+fstype, args...).CombinedOutput()
		if err != nil {
			err = fmt.Errorf("mkfs.%s %q: %w: %s", fstype, args, err, out)
			if !strings.Contains(string(out), "cannot check mount status") {
				t.Fatal(err)
			}
		}
		return err
	})
}

// ShutDown stops a mounted file system (xfs or ext4) as the kernel does after a
// fatal disk error: its log is not flushed.
func ShutDown(t testing.TB, dir string) {
	t.Helper()
	const goingDown, noLogFlush = 0x8004587d, 2 // XFS_IOC_GOINGDOWN, which ext4 has too
	d := testkit.Value(os.Open(dir))(t)
	defer d.Close()
	how := uint32(noLogFlush)
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, d.Fd(), goingDown, uintptr(unsafe.Pointer(&how))); errno != 0 {
		t.Fatalf("shut down the file system at %s: %v", dir, errno)
	}
}
