package local

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/cleatproject/cleat/internal/linux/mkfs"
	"github.com/cleatproject/cleat/internal/linux/mount"
	"github.com/cleatproject/cleat/volume"
)

// imageConfig is that of a pool in an image, unmounted at the end of the test.
func imageConfig(t testing.TB, size int64) Config {
	c := config(filepath.Join(t.TempDir(), "pool"))
	c.Image = size
	t.Cleanup(func() {
		if err := UnmountImage(context.Background(), c); err != nil {
			t.Errorf("UnmountImage: %v", err)
		}
	})
	return c
}

// imagePool mounts an image as a pool directory.
func imagePool(t testing.TB, size int64) string {
	c := imageConfig(t, size)
	if err := prepareImage(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	return c.Pool
}

// TestImage: made once, mounted again after a restart and after a reboot, grown
// when asked to.
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
	if err := UnmountImage(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	if err := UnmountImage(t.Context(), c); err != nil {
		t.Errorf("UnmountImage once more: %v", err)
	}

	c.Image += 100 * mib
	e = open(t, c) // as after a reboot
	if e.UUID() != uuid {
		t.Errorf("pool %s became %s", uuid, e.UUID())
	}
	if _, err := e.Get(t.Context(), v.ID); err != nil {
		t.Error(err)
	}
	s, err := e.pool.space()
	if err != nil || s.total < c.Image-100*mib {
		t.Errorf("the pool has %d bytes in an image of %d, %v", s.total, c.Image, err)
	}
	if got := allocatedBytes(t, c.Pool+".img"); got < c.Image {
		t.Errorf("the image has %d of %d bytes", got, c.Image)
	}
	closeEngine(t, e)
	closeEngine(t, open(t, c))
}

// TestImageIsNeverFormatted: whatever has the image's name is not ours to
// format.
func TestImageIsNeverFormatted(t *testing.T) {
	c := imageConfig(t, mkfs.MinSize(mkfs.XFS))
	blank := make([]byte, 64<<10)
	path := c.Pool + ".img"
	if err := os.WriteFile(path, blank, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(t.Context(), c); err == nil {
		t.Error("a blank file was taken for a pool image")
	} else {
		t.Log(err)
	}
	if info, err := mkfs.Probe(mustOpen(t, path)); err != nil || info.Type != "" {
		t.Errorf("the file holds %+v now, %v", info, err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	// What an interrupted attempt left is made anew.
	if err := os.WriteFile(filepath.Join(filepath.Dir(path), ".pool.img.making"), blank, 0o600); err != nil {
		t.Fatal(err)
	}
	closeEngine(t, open(t, c))
}

func mustOpen(t testing.TB, path string) *os.File {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func TestImageRefuses(t *testing.T) {
	c := imageConfig(t, mkfs.MinSize(mkfs.XFS))
	if err := os.MkdirAll(c.Pool, 0o700); err != nil {
		t.Fatal(err)
	}
	hidden := filepath.Join(c.Pool, "hidden")
	if err := os.WriteFile(hidden, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := Open(t.Context(), c)
	wantKind(t, err, "an image over files", volume.Precondition)
	if err := os.Remove(hidden); err != nil {
		t.Fatal(err)
	}
	small := c
	small.Image = 16 * mib
	_, err = Open(t.Context(), small)
	wantKind(t, err, "too small an image", volume.OutOfRange)

	mounted := config(onExt4(t))
	mounted.Image, mounted.ImagePath = c.Image, filepath.Join(t.TempDir(), "other.img")
	_, err = Open(t.Context(), mounted)
	wantKind(t, err, "an image over another mount", volume.Precondition)

	huge := imageConfig(t, 1<<50)
	_, err = Open(t.Context(), huge)
	wantKind(t, err, "an image of 1 PiB", volume.Exhausted)
	if entries, err := os.ReadDir(filepath.Dir(huge.Pool)); err != nil || len(entries) != 1 {
		t.Errorf("after a refused image: %v, %v", entries, err)
	}
	if _, ok, err := mount.At(t.Context(), huge.Pool); ok || err != nil {
		t.Error(ok, err)
	}
}
