// Package scratchfs gives tests a real file system of their own: a small sparse
// file, formatted and mounted, gone after the test. It uses the system's own
// tools, so that it does not depend on the rooms that it helps to test.
package scratchfs

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
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
	err = f.Truncate(Size)
	f.Close()
	if err != nil {
		t.Fatal(err)
	}
	if fstype == "ext4" { // or so small a one gets blocks of 1024 bytes
		mkfsFlags = append([]string{"-b", "4096"}, mkfsFlags...)
	}
	Run(t, "mkfs."+fstype, append(append([]string{"-q"}, mkfsFlags...), image)...)
	dir := t.TempDir()
	Run(t, "mount", "-o", "loop", "-t", fstype, image, dir)
	t.Cleanup(func() {
		if out, err := exec.Command("umount", dir).CombinedOutput(); err != nil {
			t.Errorf("umount %s: %v: %s", dir, err, out)
			exec.Command("umount", "--lazy", dir).Run()
		}
	})
	return dir
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
