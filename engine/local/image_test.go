package local

import (
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/linux/mkfs"
	"github.com/cleatproject/cleat/internal/linux/mount"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/volume"
)

// The image is unmounted at the end of the test.
func imageConfig(t testing.TB, size int64) Config {
	c := config(filepath.Join(t.TempDir(), "pool"))
	c.Image = size
	t.Cleanup(func() { testkit.Must(t, UnmountImage(context.Background(), c)) })
	return c
}

func imagePool(t testing.TB, size int64) string {
	c := imageConfig(t, size)
	testkit.Must(t, prepareImage(t.Context(), c))
	return c.Pool
}

// An image is created once, mounted after a restart or reboot, and grown on
// request.
func TestImage(t *testing.T) {
	c := imageConfig(t, mkfs.MinSize(mkfs.XFS))
	e := open(t, c)
	if !e.pool.reflink || !e.pool.ownMount {
		t.Errorf("pool on an image: %+v", e.pool)
	}
	v := create(t, e, volume.CreateRequest{Name: "v", Size: volume.SizeRange{Required: mib}})
	uuid := e.UUID()
	closeEngine(t, e)
	closeEngine(t, open(t, c)) // still mounted
	f := testkit.Value(os.OpenFile(file(e, v), os.O_WRONLY, 0))(t)
	fillUp(t, f) // a full image grows too
	testkit.Must(t, f.Close())
	testkit.Must(t, UnmountImage(t.Context(), c))
	if err := UnmountImage(t.Context(), c); err != nil {
		t.Errorf("repeated UnmountImage: %v", err)
	}

	c.Image += 100 * mib
	e = open(t, c) // as after a reboot
	if e.UUID() != uuid {
		t.Errorf("pool %s became %s", uuid, e.UUID())
	}
	testkit.Value(e.Get(t.Context(), v.ID))(t)
	if s, err := e.pool.space(); err != nil || s.total < c.Image-100*mib || s.free < 50*mib {
		t.Errorf("the pool has %+v in an image of %d, %v", s, c.Image, err)
	}
	if got := allocatedBytes(t, c.Pool+".img"); got < c.Image {
		t.Errorf("the image has %d of %d bytes", got, c.Image)
	}
	closeEngine(t, e)
	closeEngine(t, open(t, c))
}

// Whatever has the image's name is kept.
func TestImageIsNeverFormatted(t *testing.T) {
	c := imageConfig(t, mkfs.MinSize(mkfs.XFS))
	blank := make([]byte, 64<<10)
	path := c.Pool + ".img"
	testkit.Must(t, os.WriteFile(path, blank, 0o600))
	if _, err := Open(t.Context(), c); err == nil {
		t.Error("a blank file was taken for a pool image")
	} else {
		t.Log(err)
	}
	if info, err := mkfs.Probe(mustOpen(t, path)); err != nil || info.Type != "" {
		t.Errorf("the file holds %+v now, %v", info, err)
	}
	testkit.Must(t, os.Remove(path))
	// The file of an interrupted attempt is recreated.
	testkit.Must(t, os.WriteFile(filepath.Join(filepath.Dir(path), ".pool.img.making"), blank, 0o600))
	closeEngine(t, open(t, c))
}

func mustOpen(t testing.TB, path string) *os.File {
	t.Helper()
	return testkit.Open(os.Open(path))(t)
}

func TestImageRefuses(t *testing.T) {
	c := imageConfig(t, mkfs.MinSize(mkfs.XFS))
	testkit.Must(t, os.MkdirAll(c.Pool, 0o700))
	hidden := filepath.Join(c.Pool, "hidden")
	testkit.Must(t, os.WriteFile(hidden, nil, 0o600))
	_, err := Open(t.Context(), c)
	wantKind(t, err, "an image over files", errs.Precondition)
	testkit.Must(t, os.Remove(hidden))
	small := c
	small.Image = 16 * mib
	_, err = Open(t.Context(), small)
	wantKind(t, err, "too small an image", errs.OutOfRange)

	mounted := config(onExt4(t))
	mounted.Image, mounted.ImagePath = c.Image, filepath.Join(t.TempDir(), "other.img")
	_, err = Open(t.Context(), mounted)
	wantKind(t, err, "an image over another mount", errs.Precondition)

	huge := imageConfig(t, 1<<50)
	_, err = Open(t.Context(), huge)
	wantKind(t, err, "an image of 1 PiB", errs.Exhausted)
	if entries, err := os.ReadDir(filepath.Dir(huge.Pool)); err != nil || len(entries) != 1 {
		t.Errorf("after a refused image: %v, %v", entries, err)
	}
	if _, ok, err := mount.At(t.Context(), huge.Pool); ok || err != nil {
		t.Error(ok, err)
	}
}

// A start without the recorded image creates and mounts nothing, and succeeds
// when the image exists again.
func TestImageMissing(t *testing.T) {
	disk := testkit.Value(filepath.EvalSymlinks(t.TempDir()))(t)
	c := config(filepath.Join(disk, "data", "pool"))
	c.Image, c.StateDir = mkfs.MinSize(mkfs.XFS), t.TempDir()
	t.Cleanup(func() { testkit.Must(t, UnmountImage(context.Background(), c)) })
	testkit.Must(t, prepareImage(t.Context(), c)) // an interrupted first start
	e := open(t, c)
	uuid := e.UUID()
	closeEngine(t, e)
	testkit.Must(t, UnmountImage(t.Context(), c))
	link := filepath.Join(disk, "link")
	testkit.Must(t, os.Symlink("data", link))
	relative := testkit.Value(filepath.Rel(testkit.Value(os.Getwd())(t), c.Pool))(t)
	hide := func(path string) func() {
		testkit.Must(t, os.Rename(path, path+".away"))
		return func() {
			testkit.Must(t, os.Rename(path+".away", path))
		}
	}
	without := c
	without.Image, without.ImagePath = mkfs.MinSize(mkfs.XFS), filepath.Join(disk, "other.img")
	remounted := open(t, c)
	refusedWithoutTrace(t, without, disk, uuid) // the pool without its image
	closeEngine(t, remounted)
	testkit.Must(t, UnmountImage(t.Context(), c))
	for _, lost := range []string{c.Pool + ".img", filepath.Dir(c.Pool)} { // the image, and its whole disk
		back := hide(lost)
		for _, pool := range []string{c.Pool, relative, filepath.Join(link, "pool")} {
			wrong := c
			wrong.Pool = pool
			refusedWithoutTrace(t, wrong, disk, uuid)
		}
		back()
	}
	for _, pool := range []string{c.Pool, relative} {
		again := c
		again.Pool = pool
		e = open(t, again)
		if e.UUID() != uuid {
			t.Errorf("pool %s became %s", uuid, e.UUID())
		}
		closeEngine(t, e)
	}
}

// A failed open leaves no files, mounts or loop devices.
func refusedWithoutTrace(t *testing.T, c Config, disk, uuid string) {
	t.Helper()
	before, mountsBefore := tree(t, disk), mountsBelow(t, disk)
	e, err := Open(t.Context(), c)
	if err == nil {
		closeEngine(t, e)
	}
	wantKind(t, err, "a start at "+c.Pool+" without the image", errs.Precondition)
	if err != nil && !strings.Contains(err.Error(), uuid) {
		t.Errorf("%v does not name pool %s", err, uuid)
	}
	if diff := cmp.Diff(before, tree(t, disk)); diff != "" {
		t.Errorf("a refused start at %s left (-before +after):\n%s", c.Pool, diff)
	}
	if diff := cmp.Diff(mountsBefore, mountsBelow(t, disk)); diff != "" {
		t.Errorf("a refused start at %s mounted (-before +after):\n%s", c.Pool, diff)
		_ = mount.Unmount(t.Context(), filepath.Join(disk, "data", "pool"))
	}
}

func mountsBelow(t *testing.T, dir string) (all []string) {
	t.Helper()
	table := testkit.Value(mount.Table(t.Context()))(t)
	for _, m := range table {
		if strings.HasPrefix(m.Target, dir+"/") {
			all = append(all, m.Source+" on "+m.Target)
		}
	}
	return all
}

func tree(t *testing.T, dir string) (paths []string) {
	t.Helper()
	testkit.Must(t, filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		paths = append(paths, path)
		return err
	}))
	return paths
}

// An image of another pool is neither left mounted nor grown.
func TestForeignImage(t *testing.T) {
	c := imageConfig(t, mkfs.MinSize(mkfs.XFS))
	c.StateDir = t.TempDir()
	closeEngine(t, open(t, c))
	testkit.Must(t, UnmountImage(t.Context(), c))
	path := c.Pool + ".img"
	real, foreign := path+".real", path+".foreign"
	testkit.Must(t, os.Rename(path, real))
	other := c
	other.StateDir = ""
	testkit.Must(t, prepareImage(t.Context(), other)) // mounted, not yet a pool
	testkit.Must(t, UnmountImage(t.Context(), c))
	larger := c
	larger.Image += 16 * mib
	for _, becomes := range []string{"nothing yet", "another pool"} {
		_, err := Open(t.Context(), larger)
		wantKind(t, err, "an image that holds "+becomes, errs.Precondition)
		if m, ok, err := mount.At(t.Context(), c.Pool); ok || err != nil {
			t.Errorf("an image that holds %s is left mounted: %v, %v", becomes, m, err)
		}
		if info, err := os.Stat(path); err != nil || info.Size() != c.Image {
			t.Errorf("an image that holds %s was grown: %v, %v", becomes, info, err)
		}
		if becomes == "nothing yet" {
			closeEngine(t, open(t, other))
			testkit.Must(t, UnmountImage(t.Context(), c))
		}
	}
	testkit.Must(t, os.Rename(path, foreign), os.Rename(real, path))
	closeEngine(t, open(t, larger))
}
