package hostfs

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/linux/mount"
	"github.com/cleatproject/cleat/test/testkit"
)

const name = "pvc-1"

func (r rig) wantMounted(t *testing.T, readOnly bool, file string) {
	t.Helper()
	e, mounted, err := mount.At(t.Context(), r.Path(name))
	testkit.Must(t, err)
	if !mounted {
		t.Fatal("nothing is mounted")
	}
	for _, option := range []string{"nosuid", "nodev"} {
		if !slices.Contains(e.Options, option) {
			t.Errorf("mounted with %v, without %s", e.Options, option)
		}
	}
	if e.ReadOnly() != readOnly {
		t.Errorf("mounted with %v, read-only wanted: %v", e.Options, readOnly)
	}
	if _, err := os.Stat(filepath.Join(r.Path(name), file)); err != nil {
		t.Error(err)
	}
	err = os.WriteFile(filepath.Join(r.Path(name), "new"), nil, 0o600)
	if readOnly != errors.Is(err, unix.EROFS) || !readOnly && err != nil {
		t.Errorf("writing: %v, read-only: %v", err, readOnly)
	}
}

func (r rig) layers(t *testing.T) (n int) {
	t.Helper()
	table := testkit.Value(mount.Table(t.Context()))(t)
	for _, e := range table {
		if e.Target == r.Path(name) {
			n++
		}
	}
	return n
}

func TestDirectory(t *testing.T) {
	for _, readOnly := range []bool{false, true} {
		t.Run(modeOf(readOnly), func(t *testing.T) {
			r := newRig(t)
			spec := dirSpec("two/deep", readOnly)
			ctx := t.Context()
			if is, err := r.IsMountPoint(ctx, name); err != nil || is {
				t.Errorf("IsMountPoint before Mount: %t, %v", is, err)
			}
			if there, err := r.Mounted(ctx, name, spec); err != nil || there {
				t.Errorf("Mounted before = %v, %v", there, err)
			}
			for range 3 {
				testkit.Must(t, r.Mount(ctx, name, spec))
				if there, err := r.Mounted(ctx, name, spec); err != nil || !there {
					t.Errorf("Mounted = %v, %v", there, err)
				}
			}
			r.wantMounted(t, readOnly, "file")
			if n := r.layers(t); n != 1 {
				t.Errorf("%d mounts on one another", n)
			}
			for range 2 {
				testkit.Must(t, r.Unmount(ctx, name))
			}
			if _, err := os.Lstat(r.Path(name)); !os.IsNotExist(err) {
				t.Errorf("the mount point stays: %v", err)
			}
			if _, err := os.Stat(filepath.Join(r.pool, "two/deep/file")); err != nil {
				t.Errorf("the volume's own file: %v", err)
			}
		})
	}
}

// A different mount is reported and kept.
func TestAnotherIsThere(t *testing.T) {
	r := newRig(t)
	ctx := t.Context()
	testkit.Must(t, r.Mount(ctx, name, dirSpec("one", false)))
	for _, spec := range []struct {
		name     string
		readOnly bool
	}{{"two/deep", false}, {"two", false}, {"one", true}} {
		want := dirSpec(spec.name, spec.readOnly)
		_, err := r.Mounted(ctx, name, want)
		if is, err := r.IsMountPoint(ctx, name); err != nil || !is {
			t.Errorf("IsMountPoint with another mount: %t, %v", is, err)
		}
		testkit.WantError(t, "the error", err, errs.Precondition, "/pool/one of ", "directory "+spec.name+" of pool "+poolID, modeOf(spec.readOnly))
		testkit.WantError(t, "Mount", r.Mount(ctx, name, want), errs.Precondition, "/pool/one of ", "directory "+spec.name+" of pool "+poolID)
	}
	r.wantMounted(t, false, "file")
	testkit.Must(t, r.Unmount(ctx, name))

	testkit.Must(t, os.Mkdir(r.Path(name), 0o755))
	testkit.Must(t, unix.Mount("foreign", r.Path(name), "tmpfs", 0, "size=64k"))
	testkit.WantError(t, "Mount", r.Mount(ctx, name, dirSpec("one", false)), errs.Precondition, "foreign (tmpfs, writable)", "directory one")
	if n := r.layers(t); n != 1 {
		t.Errorf("%d mounts on one another", n)
	}
}

func TestMountPoint(t *testing.T) {
	ctx := t.Context()
	for what, c := range map[string]struct {
		make func(path string) error
		says string // empty: accepted
		left func(path string) error
	}{
		"empty directory": {func(p string) error { return os.Mkdir(p, 0o755) }, "", nil},
		"directory with a file": {func(p string) error {
			return errors.Join(os.Mkdir(p, 0o755), os.WriteFile(p+"/data", []byte("x"), 0o600))
		}, `contains "data"`, func(p string) error { _, err := os.Stat(p + "/data"); return err }},
		"file": {func(p string) error { return os.WriteFile(p, []byte("x"), 0o600) }, "is a file or a symbolic link",
			func(p string) error { _, err := os.Stat(p); return err }},
		"link to an empty directory": {func(p string) error {
			return errors.Join(os.Mkdir(p+"-elsewhere", 0o755), os.Symlink(p+"-elsewhere", p))
		}, "is a file or a symbolic link", func(p string) error { _, err := os.Readlink(p); return err }},
		"link to nowhere": {func(p string) error { return os.Symlink("gone", p) }, "is a file or a symbolic link",
			func(p string) error { _, err := os.Readlink(p); return err }},
	} {
		t.Run(what, func(t *testing.T) {
			r := newRig(t)
			testkit.Must(t, c.make(r.Path(name)))
			err := r.Mount(ctx, name, dirSpec("one", false))
			if c.says == "" {
				testkit.Must(t, err)
				return
			}
			testkit.WantError(t, "the error", err, errs.Precondition, c.says)
			// A second unmount succeeds.
			testkit.Must(t, r.Unmount(ctx, name))
			if err := c.left(r.Path(name)); err != nil {
				t.Errorf("it is gone: %v", err)
			}
		})
	}
}

func TestFailedMount(t *testing.T) {
	r := newRig(t)
	testkit.WantError(t, "Mount", r.Mount(t.Context(), name, dirSpec("gone", false)), errs.Precondition, "gone of pool")
	testkit.WantError(t, "Mount", r.Mount(t.Context(), name, dirSpec("one/file", false)), errs.Precondition, "needs a directory")
	if _, err := os.Lstat(r.Path(name)); !os.IsNotExist(err) {
		t.Errorf("a mount point was left: %v", err)
	}
}

// TestLinkedPool: the mount table shows the pool's real path.
func TestLinkedPool(t *testing.T) {
	r := newRig(t, func(c *Config) {
		link := c.Pools[poolID] + "-link"
		testkit.Must(t, os.Symlink(c.Pools[poolID], link))
		c.Pools[poolID] = link
	})
	for range 2 {
		testkit.Must(t, r.Mount(t.Context(), name, dirSpec("one", false)))
	}
	r.wantMounted(t, false, "file")
}

// TestMountInPool: a directory of a pool can be the root of another mount.
func TestMountInPool(t *testing.T) {
	r := newRig(t)
	inner := filepath.Join(r.pool, "two")
	testkit.Must(t, unix.Mount("inner", inner, "tmpfs", 0, "size=64k"))
	t.Cleanup(func() { _ = unix.Unmount(inner, unix.MNT_DETACH) })
	testkit.Must(t, os.Mkdir(filepath.Join(inner, "below"), 0o755))
	for _, dir := range []string{"two", "two/below"} {
		for range 2 {
			testkit.Must(t, r.Mount(t.Context(), name, dirSpec(dir, true)))
		}
		testkit.Must(t, r.Unmount(t.Context(), name))
	}
}

func TestBusyUnmount(t *testing.T) {
	r := newRig(t)
	testkit.Must(t, r.Mount(t.Context(), name, dirSpec("one", false)))
	f, err := os.Open(filepath.Join(r.Path(name), "file"))
	testkit.Must(t, err)
	defer f.Close()
	testkit.Eventually(t, "a whole search", func() bool {
		err = r.Unmount(t.Context(), name)
		return err == nil || !strings.Contains(err.Error(), "not found in time")
	})
	testkit.WantError(t, "the error", err, errs.Precondition, "this process, whose open file is "+r.Path(name)+"/file")
	if !errors.Is(err, mount.ErrBusy) {
		t.Errorf("%v is not ErrBusy", err)
	}
	r.wantMounted(t, false, "file")
	testkit.Must(t, f.Close())
	testkit.Must(t, r.Unmount(t.Context(), name))
}

func TestHostileNames(t *testing.T) {
	r := newRig(t)
	for _, n := range []string{"", ".", "..", "../pool", "a/b", "/etc", "a/../../pool", "a\x00b", "-x", ".hidden", "a..b", "a\nb", string(make([]byte, 300))} {
		testkit.WantError(t, "Mount", r.Mount(t.Context(), n, dirSpec("one", false)), errs.Invalid, "volume_id")
		testkit.WantError(t, "Unmount", r.Unmount(t.Context(), n), errs.Invalid, "volume_id")
		_, err := r.Mounted(t.Context(), n, dirSpec("one", false))
		testkit.WantError(t, "the error", err, errs.Invalid, "volume_id")
		if p := r.Path(n); filepath.Dir(p) != r.config.Dir && p != r.config.Dir {
			t.Errorf("Path(%q) = %s", n, p)
		}
	}
	if left, err := os.ReadDir(r.config.Dir); err != nil || len(left) > 0 {
		t.Errorf("made: %v, %v", left, err)
	}
}

func TestTogether(t *testing.T) {
	r := newRig(t)
	var all sync.WaitGroup
	for range 16 {
		all.Go(func() {
			if err := r.Mount(t.Context(), name, dirSpec("one", false)); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if n := r.layers(t); n != 1 {
		t.Errorf("%d mounts on one another", n)
	}
	for range 16 {
		all.Go(func() {
			if err := r.Unmount(t.Context(), name); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
}
