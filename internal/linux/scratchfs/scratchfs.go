// Package scratchfs gives tests a real file system of their own: a small sparse
// file, formatted and mounted, gone after the test. The loop device is made by
// our own room: a number that another test left read-only stays so for
// mount -o loop.
package scratchfs

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cleatproject/cleat/internal/linux/loop"
	"github.com/cleatproject/cleat/internal/linux/retry"
)

// Size of a scratch file system in bytes; the least that mkfs.xfs accepts.
// Only what is written takes room.
const Size = 300 << 20

// Mount makes a file system of a type (xfs, ext4, btrfs) and returns the
// directory that it is mounted at; its blocks have 4096 bytes. It needs root; a missing tool fails the
// test.
func Mount(t testing.TB, fstype string, mkfsFlags ...string) string {
	t.Helper()
	image := filepath.Join(t.TempDir(), fstype+".img")
	f, err := os.Create(image)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(f.Truncate(Size), f.Close()); err != nil {
		t.Fatal(err)
	}
	switch fstype {
	case "ext4": // or so small a one gets blocks of 1024 bytes
		mkfsFlags = append([]string{"-b", "4096"}, mkfsFlags...)
	case "xfs":
		mkfsFlags = append([]string{"-s", "size=4096"}, mkfsFlags...)
	}
	Make(t, fstype, append(append([]string{"-q"}, mkfsFlags...), image)...)
	dir := t.TempDir()
	MountImage(t, fstype, image, dir)
	t.Cleanup(func() {
		if out, err := exec.Command("umount", dir).CombinedOutput(); err != nil {
			t.Errorf("umount %s: %v: %s", dir, err, out)
			exec.Command("umount", "--lazy", dir).Run()
		}
	})
	return dir
}

// MountImage mounts the file system in a file; the device goes with the mount,
// which the caller takes away. Its blocks must have 4096 bytes.
func MountImage(t testing.TB, fstype, image, dir string) {
	t.Helper()
	f, err := os.OpenFile(image, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	device, open, err := loop.Attach(t.Context(), loop.Config{File: f, AutoClear: true})
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	Run(t, "mount", "-t", fstype, device.Path, dir)
}

// Make runs a mkfs that the test cannot do without. That of btrfs asks what is
// behind each loop device that is mounted, and gives up when another test lets
// go of one meanwhile.
func Make(t testing.TB, fstype string, args ...string) {
	t.Helper()
	err := retry.For(t.Context(), time.Minute, func() (again bool, err error) {
		out, err := exec.Command("mkfs."+fstype, args...).CombinedOutput()
		if err != nil {
			err = fmt.Errorf("mkfs.%s %q: %w: %s", fstype, args, err, out)
		}
		return err != nil && strings.Contains(string(out), "cannot check mount status"), err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// Run runs a tool that the test cannot do without.
func Run(t testing.TB, name string, args ...string) {
	t.Helper()
	if _, err := exec.LookPath(name); err != nil {
		t.Fatalf("%s is needed for this test and is not installed: %v", name, err)
	}
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %q: %v: %s", name, args, err, out)
	}
}
