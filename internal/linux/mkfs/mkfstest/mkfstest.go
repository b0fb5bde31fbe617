// Package mkfstest creates and mounts file systems for tests and cleans up. It
// needs root.
package mkfstest

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/internal/linux/loop"
	"github.com/cleatproject/cleat/internal/linux/mkfs"
	"github.com/cleatproject/cleat/internal/linux/mount"
)

// MiB is 2^20 bytes.
const MiB = 1 << 20

// File creates a sparse file.
func File(t testing.TB, dir, name string, size int64) string {
	t.Helper()
	path := filepath.Join(dir, name)
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Truncate(size); err != nil {
		t.Fatal(err)
	}
	return path
}

// Fallocate allocates all blocks of a file.
func Fallocate(t testing.TB, path string, size int64) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := unix.Fallocate(int(f.Fd()), 0, 0, size); err != nil {
		t.Fatalf("fallocate %s: %v", path, err)
	}
}

// Allocated returns the disk usage of a file in bytes.
func Allocated(t testing.TB, path string) int64 {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		t.Fatal(err)
	}
	return st.Blocks * 512
}

// Reflink copies a file by sharing its blocks.
func Reflink(t testing.TB, from, to string) {
	t.Helper()
	src, err := os.Open(from)
	if err != nil {
		t.Fatal(err)
	}
	defer src.Close()
	dst, err := os.OpenFile(to, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer dst.Close()
	if err := unix.IoctlFileClone(int(dst.Fd()), int(src.Fd())); err != nil {
		t.Fatalf("reflink of %s: %v", from, err)
	}
}

// Make creates a file system on a file.
func Make(t testing.TB, path string, fs mkfs.Type) {
	t.Helper()
	if err := mkfs.Make(t.Context(), mkfs.Request{Path: path, Type: fs}); err != nil {
		t.Fatal(err)
	}
}

// Volume is an attached and mounted file.
type Volume struct {
	File   string
	Dir    string
	Device loop.Device
}

// Mount attaches a file like a volume and mounts it.
func Mount(t testing.TB, path string, fs mkfs.Type, options ...string) Volume {
	t.Helper()
	v, err := TryMount(t, path, fs, options...)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// TryMount is Mount for tests that expect an error.
func TryMount(t testing.TB, path string, fs mkfs.Type, options ...string) (Volume, error) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	device, held, err := loop.Attach(t.Context(), loop.Config{File: f, AutoClear: true})
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	v := Volume{File: path, Dir: t.TempDir(), Device: device}
	if fs == mkfs.XFS {
		options = append(options, "nouuid")
	}
	if err := mount.Mount(t.Context(), mount.Spec{Source: device.Path, Target: v.Dir, FSType: string(fs), Options: options}); err != nil {
		return v, err
	}
	t.Cleanup(func() { v.Unmount(t) })
	return v, nil
}

// Unmount unmounts a volume and detaches its loop device. It is idempotent. The
// file system is complete then, and the kernel does not write to it any more,
// even if a process that another test started at this time has a copy of the
// mount in its mount namespace: it is read-only first, where the kernel allows it.
func (v Volume) Unmount(t testing.TB) {
	t.Helper()
	_ = Remount(context.Background(), v.Dir, true) // such as unmounted, or damaged by the test
	if err := mount.Unmount(context.Background(), v.Dir); err != nil {
		t.Errorf("unmount: %v", err)
	}
}

// New creates and mounts a file system.
func New(t testing.TB, fs mkfs.Type, size int64) Volume {
	t.Helper()
	path := File(t, t.TempDir(), "volume", size)
	Make(t, path, fs)
	return Mount(t, path, fs)
}

// Pool returns a directory on a new XFS, where files can share blocks.
func Pool(t testing.TB, size int64) string {
	t.Helper()
	return New(t, mkfs.XFS, size).Dir
}

// HasSysResource reports CAP_SYS_RESOURCE, which ext4 needs to grow online and
// even root can lack.
func HasSysResource(t testing.TB) bool {
	t.Helper()
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	return effective(t, string(status))&(1<<unix.CAP_SYS_RESOURCE) != 0
}

// Remount remounts read-only or read-write.
func Remount(ctx context.Context, target string, readOnly bool) error {
	tree, err := mount.Open(ctx, target)
	if err != nil {
		return err
	}
	defer tree.Close()
	return tree.SetReadOnly(readOnly)
}
