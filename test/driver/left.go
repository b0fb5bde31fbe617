package driver

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cleatproject/cleat/internal/linux/loop"
	"github.com/cleatproject/cleat/internal/linux/mkfs"
	"github.com/cleatproject/cleat/internal/linux/mount"
	"github.com/cleatproject/cleat/test/testkit"
)

// MountImage makes a file system of its own in a sparse file beside dir and
// mounts it on dir, until the test ends.
func MountImage(t testing.TB, dir string, kind mkfs.Type, size int64) {
	t.Helper()
	ctx := t.Context()
	file, err := os.Create(dir + ".image")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if err := file.Truncate(size); err != nil {
		t.Fatal(err)
	}
	if err := mkfs.Make(ctx, mkfs.Request{Path: file.Name(), Type: kind}); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(dir, 0o750); err != nil {
		t.Fatal(err)
	}
	device, open, err := loop.Attach(ctx, loop.Config{File: file, AutoClear: true})
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	if err := mount.Mount(ctx, mount.Spec{Source: device.Path, Target: dir, FSType: string(kind)}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		Sweep(t, filepath.Dir(dir))
		_ = os.Remove(file.Name())
	})
}

// CheckNothingLeft fails the test when a mount lies below dir or a loop device
// is bound to a file there.
func CheckNothingLeft(t testing.TB, dir string) {
	t.Helper()
	for _, line := range Left(t.Context(), dir) {
		t.Errorf("left over: %s", line)
	}
}

// Left lists the mounts below dir, and the loop devices on files below dir.
func Left(ctx context.Context, dir string) []string {
	var left []string
	table, err := mount.Table(ctx)
	if err != nil {
		return []string{err.Error()}
	}
	for _, m := range table {
		if strings.HasPrefix(m.Target, dir+"/") {
			left = append(left, "mount "+m.Target)
		}
	}
	devices, err := loop.List(ctx)
	if err != nil {
		return append(left, err.Error())
	}
	for _, d := range devices {
		if file, _, err := loop.BackingName(d); err == nil && strings.HasPrefix(file, dir+"/") {
			left = append(left, d.Path+" on "+file)
		}
	}
	return left
}

// Sweep unmounts everything below dir and detaches the loop devices on files
// below it, after tests that kill the driver. Volumes pin their pool and mounts
// pin volumes, and other tests hold copies of mounts for a moment, so it repeats
// until nothing is left.
func Sweep(t testing.TB, dir string) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	err := testkit.Poll(testkit.Timeout, nil, func() error {
		left := Left(ctx, dir)
		if len(left) == 0 {
			return nil
		}
		sweepOnce(ctx, dir)
		return fmt.Errorf("sweep: cannot remove: %q", left)
	})
	if err != nil {
		t.Error(err)
	}
}

// sweepOnce removes what is not in use.
func sweepOnce(ctx context.Context, dir string) {
	table, err := mount.Table(ctx)
	if err != nil {
		return
	}
	for i := len(table) - 1; i >= 0; i-- { // a mount comes after the one it lies on
		if strings.HasPrefix(table[i].Target, dir+"/") {
			_ = mount.Unmount(ctx, table[i].Target)
		}
	}
	devices, err := loop.List(ctx)
	if err != nil {
		return
	}
	for _, d := range devices {
		if file, _, err := loop.BackingName(d); err == nil && strings.HasPrefix(file, dir+"/") {
			_ = loop.Detach(ctx, d)
		}
	}
}
