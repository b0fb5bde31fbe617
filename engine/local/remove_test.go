package local

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/linux/loop"
	"github.com/cleatproject/cleat/internal/linux/mkfs"
	"github.com/cleatproject/cleat/internal/linux/mount"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/volume"
)

func removable(t *testing.T, c Config, full bool) (Config, []string) {
	t.Helper()
	c.StateDir = t.TempDir()
	e := open(t, c)
	if !full {
		closeEngine(t, e)
		return c, nil
	}
	v := create(t, e, volume.CreateRequest{Name: "v", Size: volume.SizeRange{Required: mib}})
	s := snapshot(t, e, "s", v.ID)
	waitCopied(t, e, string(s.ID))
	closeEngine(t, e)
	return c, []string{volumesDir + "/" + string(v.ID), snapshotsDir + "/" + string(s.ID)}
}

func bind(t *testing.T, path string) loop.Device {
	t.Helper()
	f := testkit.Value(os.OpenFile(path, os.O_RDWR, 0))(t)
	defer f.Close()
	d, device, err := loop.Attach(t.Context(), loop.Config{File: f})
	testkit.Must(t, err)
	device.Close()
	t.Cleanup(func() { testkit.Must(t, loop.Detach(context.Background(), d)) })
	return d
}

// Remove fails with these words and changes nothing.
func refuses(t *testing.T, c Config, o RemoveOptions, words ...string) {
	t.Helper()
	before := tree(t, filepath.Dir(c.Pool))
	removed, err := Remove(t.Context(), c, o)
	wantKind(t, err, "Remove", errs.Precondition)
	for _, word := range words {
		if err != nil && !strings.Contains(err.Error(), word) {
			t.Errorf("%v, want an error with %q", err, word)
		}
	}
	if after := tree(t, filepath.Dir(c.Pool)); removed || !slices.Equal(before, after) {
		t.Errorf("removed %t; the pool had %q and has %q", removed, before, after)
	}
}

func remove(t *testing.T, c Config, o RemoveOptions) {
	t.Helper()
	if removed, err := Remove(t.Context(), c, o); err != nil || !removed {
		t.Fatalf("Remove: %t, %v", removed, err)
	}
}

// Remove leaves nothing, and a repeat is no error.
func removes(t *testing.T, c Config, o RemoveOptions) {
	t.Helper()
	remove(t, c, o)
	if removed, err := Remove(t.Context(), c, RemoveOptions{}); err != nil || removed {
		t.Errorf("a repeat: %t, %v", removed, err)
	}
	for _, dir := range []string{filepath.Dir(c.Pool), c.StateDir} {
		if left := tree(t, dir); len(left) != 1 {
			t.Errorf("these files are left: %q", left)
		}
	}
	if m, mounted, err := mount.At(t.Context(), c.Pool); err != nil || mounted {
		t.Errorf("%+v is mounted, %v", m, err)
	}
	devices := testkit.Value(loop.List(t.Context()))(t)
	for _, d := range devices {
		if path, _, err := loop.BackingName(d); err == nil && strings.HasPrefix(path, filepath.Dir(c.Pool)+"/") {
			t.Errorf("%s is bound to %s", d.Path, path)
		}
	}
}

// In an image, on an own file system, and in a directory of a shared one.
func poolKinds() map[string]func(t *testing.T) Config {
	return map[string]func(t *testing.T) Config{
		"image":     func(t *testing.T) Config { return imageConfig(t, mkfs.MinSize(mkfs.XFS)) },
		"directory": func(t *testing.T) Config { return config(filepath.Join(onXFS(t), "pool")) },
	}
}

// Mounted, and unmounted as after a reboot.
func TestRemove(t *testing.T) {
	t.Parallel()
	for name, kind := range poolKinds() {
		for _, full := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, full %t", name, full), func(t *testing.T) {
				t.Parallel()
				c, files := removable(t, kind(t), full)
				if full {
					refuses(t, c, RemoveOptions{}, "(2: ", files[0], files[1], "--delete-volumes")
					testkit.Must(t, UnmountImage(t.Context(), c))
					refuses(t, c, RemoveOptions{}, "(2: ", files[0])
				}
				removes(t, c, RemoveOptions{DeleteVolumes: full})
				closeEngine(t, open(t, c)) // the old pool's record is gone
				removes(t, c, RemoveOptions{})
			})
		}
	}
}

// Also a raw block volume, an unmounted device, and an unlinked file are in
// use.
func TestRemoveRefusesUse(t *testing.T) {
	t.Parallel()
	for name, kind := range poolKinds() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, files := removable(t, kind(t), true)
			path := filepath.Join(c.Pool, files[0])
			d := bind(t, path)
			refuses(t, c, RemoveOptions{DeleteVolumes: true}, files[0], d.Path, "in use (1)")
			testkit.Must(t, os.Remove(path))
			refuses(t, c, RemoveOptions{DeleteVolumes: true}, filepath.Base(path), d.Path)
			testkit.Must(t, loop.Detach(t.Context(), d))
			removes(t, c, RemoveOptions{DeleteVolumes: true})
		})
	}
}

// Foreign loop devices on the pool's file system.
func TestRemoveIgnoresOtherFiles(t *testing.T) {
	t.Parallel()
	dir := onXFS(t)
	others := filepath.Join(dir, "others", volumesDir)
	testkit.Must(t, os.MkdirAll(others, 0o700))
	for _, name := range []string{"here", "unlinked"} {
		path := filepath.Join(others, name)
		testkit.Must(t, os.WriteFile(path, make([]byte, mib), 0o600))
		bind(t, path)
	}
	testkit.Must(t, os.Remove(filepath.Join(others, "unlinked")))
	c, _ := removable(t, config(filepath.Join(dir, "pool")), true)
	remove(t, c, RemoveOptions{DeleteVolumes: true})
}

func TestRemoveRefusesServedPool(t *testing.T) {
	t.Parallel()
	c, _ := removable(t, config(filepath.Join(t.TempDir(), "pool")), false)
	e := open(t, c)
	refuses(t, c, RemoveOptions{DeleteVolumes: true}, "stop the driver first")
	closeEngine(t, e)
	removes(t, c, RemoveOptions{})
}

// The volumes to detach are named while the driver, which detaches them, runs.
// Without it the paths and devices are.
func TestRemoveNamesAttachedBlockVolumes(t *testing.T) {
	t.Parallel()
	c, files := removable(t, config(filepath.Join(t.TempDir(), "pool")), true)
	d := bind(t, filepath.Join(c.Pool, files[0]))
	target := filepath.Join(t.TempDir(), "disk")
	testkit.Must(t, os.WriteFile(target, nil, 0o600))
	testkit.Must(t, unix.Mount(d.Path, target, "", unix.MS_BIND, ""))
	defer func() { _ = unix.Unmount(target, unix.MNT_DETACH) }()
	e := open(t, c)
	refuses(t, c, RemoveOptions{DeleteVolumes: true}, "detach the volumes in use first (1: "+files[0]+" ("+d.Path+", block device at "+target+")), then stop the driver")
	closeEngine(t, e)
	refuses(t, c, RemoveOptions{DeleteVolumes: true}, files[0]+" ("+d.Path+", block device at "+target+")", "unmount these paths", "losetup -d")
	testkit.Must(t, unix.Unmount(target, 0))
	testkit.Must(t, loop.Detach(t.Context(), d))
	removes(t, c, RemoveOptions{DeleteVolumes: true})
}

// Nothing is deleted that cleat did not create.
func TestRemoveRefusesForeign(t *testing.T) {
	t.Parallel()
	c, _ := removable(t, config(filepath.Join(t.TempDir(), "pool")), true)
	for _, name := range []string{"notes.txt", volumesDir + "/.notes", "volumes/a directory/", "lost+found/", "snapshots/link->", incomingDir + "/vol-a/"} {
		path := filepath.Join(c.Pool, strings.TrimSuffix(strings.TrimSuffix(name, "/"), "->"))
		var err error
		switch {
		case strings.HasSuffix(name, "/"):
			err = os.Mkdir(path, 0o700)
		case strings.HasSuffix(name, "->"):
			err = os.Symlink("/", path)
		default:
			err = os.WriteFile(path, nil, 0o600)
		}
		testkit.Must(t, err)
		refuses(t, c, RemoveOptions{DeleteVolumes: true}, "did not create", filepath.Base(path))
		testkit.Must(t, os.Remove(path))
	}
	other := t.TempDir()
	testkit.Must(t, os.Mkdir(filepath.Join(other, volumesDir), 0o700))
	refuses(t, Config{Pool: other}, RemoveOptions{DeleteVolumes: true}, "is not a pool", volumesDir)
	removes(t, c, RemoveOptions{DeleteVolumes: true})
}

// Mounts in the pool are never entered.
func TestRemoveRefusesMounts(t *testing.T) {
	t.Parallel()
	c, _ := removable(t, config(filepath.Join(t.TempDir(), "pool")), true)
	target := filepath.Join(c.Pool, volumesDir)
	testkit.Run(t, "mount", "--bind", t.TempDir(), target)
	t.Cleanup(func() { testkit.Unmount(t, target) })
	refuses(t, c, RemoveOptions{DeleteVolumes: true}, "is mounted on "+target)
}

// The pool's disk is not mounted, or another one is.
func TestRemoveRefusesWrongPool(t *testing.T) {
	t.Parallel()
	c, _ := removable(t, imageConfig(t, mkfs.MinSize(mkfs.XFS)), false)
	testkit.Must(t, UnmountImage(t.Context(), c))
	away := c.Pool + ".away"
	testkit.Must(t, os.Rename(c.Pool+".img", away))
	refuses(t, c, RemoveOptions{}, "is not here now")
	other := c
	other.StateDir = ""
	closeEngine(t, open(t, other))
	refuses(t, c, RemoveOptions{}, "was served from this path before")
	remove(t, other, RemoveOptions{})
	testkit.Must(t, os.Rename(away, c.Pool+".img"))
	removes(t, c, RemoveOptions{})
}

// The mount point and lost+found stay.
func TestRemoveKeepsMountPoint(t *testing.T) {
	t.Parallel()
	dir := onExt4(t)
	c, _ := removable(t, config(dir), true)
	remove(t, c, RemoveOptions{DeleteVolumes: true})
	if left := tree(t, dir); !slices.Equal(left, []string{dir, filepath.Join(dir, lostAndFound)}) {
		t.Errorf("these files are left: %q", left)
	}
}

// Files of a killed creation are removed too.
func TestRemoveUnfinished(t *testing.T) {
	t.Parallel()
	c := config(filepath.Join(t.TempDir(), "pool"))
	testkit.Must(t, os.Mkdir(c.Pool, 0o700))
	for _, path := range []string{filepath.Join(filepath.Dir(c.Pool), ".pool.img.making"), filepath.Join(c.Pool, identityDraft)} {
		testkit.Must(t, os.WriteFile(path, nil, 0o600))
	}
	if removed, err := Remove(t.Context(), c, RemoveOptions{}); err != nil || removed {
		t.Errorf("Remove: %t, %v", removed, err)
	}
	if left := tree(t, filepath.Dir(c.Pool)); len(left) != 1 {
		t.Errorf("these files are left: %q", left)
	}
}
