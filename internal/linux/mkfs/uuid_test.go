package mkfs_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/linux/mkfs"
	"github.com/cleatproject/cleat/internal/linux/mkfs/mkfstest"
)

// TestCopiesMountBesideTheirOriginal cuts copies of a mounted file system, once
// frozen and once not, and mounts them beside it. What was synced is there in
// either, also what only the log holds.
func TestCopiesMountBesideTheirOriginal(t *testing.T) {
	pool := mkfstest.Pool(t, 2048*mib)
	for _, fs := range mkfs.Types() {
		t.Run(string(fs), func(t *testing.T) {
			path := mkfstest.File(t, pool, string(fs), 320*mib)
			mkfstest.Make(t, path, fs)
			v := mkfstest.Mount(t, path, fs)
			first := writeFile(t, v.Dir, "committed", 4*mib)
			syncDir(t, v.Dir)
			second := writeFile(t, v.Dir, "in-the-log", 256<<10)
			running := path + "-running"
			mkfstest.Reflink(t, path, running)
			if fs == mkfs.Btrfs && logRoot(t, running) == 0 {
				t.Fatal("the copy has no log tree: this test does not test what it is for")
			}
			thaw := freeze(t, v.Dir)
			frozen := path + "-frozen"
			mkfstest.Reflink(t, path, frozen)
			thaw()
			original := probe(t, path)
			for _, copied := range []string{running, frozen} {
				if err := (mkfs.Tools{}).NewUUID(t.Context(), copied, fs); err != nil {
					t.Fatal(err)
				}
				got := probe(t, copied)
				if changed := got.UUID != original.UUID; changed != (fs == mkfs.Btrfs) {
					t.Errorf("the UUID of %s went from %s to %s", copied, original.UUID, got.UUID)
				}
				twin := mkfstest.Mount(t, copied, fs)
				checkFile(t, twin.Dir, "committed", first)
				checkFile(t, twin.Dir, "in-the-log", second)
				writeFile(t, twin.Dir, "own-of-the-twin", mib)
				if _, err := os.Stat(filepath.Join(v.Dir, "own-of-the-twin")); err == nil {
					t.Error("what was mounted as the twin is the original")
				}
			}
			checkFile(t, v.Dir, "committed", first)
			writeFile(t, v.Dir, "still-writable", mib)
		})
	}
}

// TestCopiesOfCopies: a second change keeps what the metadata carries.
func TestCopiesOfCopies(t *testing.T) {
	pool := mkfstest.Pool(t, 1024*mib)
	path := mkfstest.File(t, pool, "volume", 256*mib)
	mkfstest.Make(t, path, mkfs.Btrfs)
	seen := map[string]bool{probe(t, path).UUID: true}
	var mounted []mkfstest.Volume
	for _, name := range []string{"1", "12", "123"} {
		next := filepath.Join(pool, name)
		mkfstest.Reflink(t, path, next)
		for range 2 { // a repeat, as after a crash
			if err := (mkfs.Tools{}).NewUUID(t.Context(), next, mkfs.Btrfs); err != nil {
				t.Fatal(err)
			}
		}
		if id := probe(t, next).UUID; seen[id] {
			t.Fatalf("UUID %s again", id)
		} else {
			seen[id] = true
		}
		v := mkfstest.Mount(t, next, mkfs.Btrfs)
		writeFile(t, v.Dir, name, mib)
		syncDir(t, v.Dir)
		mounted = append(mounted, v)
		path = next
	}
	for i, v := range mounted {
		if entries, err := os.ReadDir(v.Dir); err != nil || len(entries) != i+1 {
			t.Errorf("copy %d holds %v, %v; want %d files", i, entries, err, i+1)
		}
	}
}

func TestNewUUIDRefusesWhatItCannotChange(t *testing.T) {
	pool := t.TempDir()
	empty := mkfstest.File(t, pool, "empty", 256*mib)
	if err := (mkfs.Tools{}).NewUUID(t.Context(), empty, mkfs.Btrfs); !errors.Is(err, mkfs.ErrDamaged) {
		t.Errorf("on an empty file: %v, want ErrDamaged", err)
	}
	if err := (mkfs.Tools{}).NewUUID(t.Context(), empty, "vfat"); !errors.Is(err, errs.Invalid) {
		t.Errorf("of an unknown type: %v, want Invalid", err)
	}
	if err := (mkfs.Tools{}).NewUUID(t.Context(), filepath.Join(pool, "missing"), mkfs.Btrfs); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("of a missing file: %v, want ErrNotExist", err)
	}
	torn := mkfstest.File(t, pool, "torn", 256*mib)
	mkfstest.Make(t, torn, mkfs.Btrfs)
	overwrite(t, torn, 64<<10+300, []byte("!"))
	if err := (mkfs.Tools{}).NewUUID(t.Context(), torn, mkfs.Btrfs); !errors.Is(err, mkfs.ErrDamaged) {
		t.Errorf("with a wrong checksum: %v, want ErrDamaged", err)
	}
}

func logRoot(t *testing.T, path string) byte {
	t.Helper()
	b := make([]byte, 8)
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.ReadAt(b, 64<<10+0x60); err != nil {
		t.Fatal(err)
	}
	var sum byte
	for _, x := range b {
		sum |= x
	}
	return sum
}

func overwrite(t *testing.T, path string, at int64, b []byte) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt(b, at); err != nil {
		t.Fatal(err)
	}
}

func syncDir(t *testing.T, dir string) {
	t.Helper()
	d, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if err := unix.Syncfs(int(d.Fd())); err != nil {
		t.Fatal(err)
	}
}

// freeze stops the file system until the returned function is called, or the
// test ends.
func freeze(t *testing.T, dir string) (thaw func()) {
	t.Helper()
	const fifreeze, fithaw = 0xc0045877, 0xc0045878
	d, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetInt(int(d.Fd()), fifreeze, 0); err != nil {
		t.Fatalf("freeze: %v", err)
	}
	frozen := true
	thaw = func() {
		if frozen {
			if err := unix.IoctlSetInt(int(d.Fd()), fithaw, 0); err != nil {
				t.Errorf("thaw: %v", err)
			}
			d.Close()
		}
		frozen = false
	}
	t.Cleanup(thaw)
	return thaw
}

func readAt(t testing.TB, path string, at int64, n int) []byte {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b := make([]byte, n)
	if _, err := f.ReadAt(b, at); err != nil {
		t.Fatal(err)
	}
	return b
}

func mkfifo(path string) error { return unix.Mkfifo(path, 0o600) }
