package loop

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/errs"
)

const testSize = 64 << 20

// newFile makes a sparse file that goes with the test.
func newFile(t testing.TB, size int64) *os.File {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "volume"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	if err := f.Truncate(size); err != nil {
		t.Fatal(err)
	}
	return f
}

// mustAttach attaches and lets go after the test, also when it failed.
func mustAttach(t testing.TB, c Config) (Device, *os.File) {
	t.Helper()
	d, f, err := Attach(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		f.Close()
		if err := Detach(context.Background(), d); err != nil {
			t.Error(err)
		}
	})
	return d, f
}

func mustFind(t testing.TB, b Backing) []Device {
	t.Helper()
	found, err := Find(t.Context(), b)
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func TestAttachFindDetach(t *testing.T) {
	file := newFile(t, testSize)
	backing, err := BackingOf(file)
	if err != nil {
		t.Fatal(err)
	}
	if found := mustFind(t, backing); len(found) != 0 {
		t.Fatalf("before the attach there is %v", found)
	}
	d, f := mustAttach(t, Config{File: file})
	if d.Backing != backing || d.ReadOnly || d.AutoClear || d.Major != 7 {
		t.Errorf("attached %+v, want a writable device of %v", d, backing)
	}
	if diff := cmp.Diff([]Device{d}, mustFind(t, backing)); diff != "" {
		t.Errorf("found (-want +got):\n%s", diff)
	}
	want := bytes.Repeat([]byte("cleat"), 4096)
	if _, err := f.WriteAt(want, 1<<20); err != nil {
		t.Fatal(err)
	}
	if err := Flush(t.Context(), d); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, len(want))
	if _, err := file.ReadAt(got, 1<<20); err != nil || !bytes.Equal(got, want) {
		t.Errorf("the file does not hold what was written to the device (err %v)", err)
	}
	f.Close()
	for range 2 {
		if err := Detach(t.Context(), d); err != nil {
			t.Fatalf("detach: %v", err)
		}
	}
	if found := mustFind(t, backing); len(found) != 0 {
		t.Errorf("after the detach there is %v", found)
	}
}

func TestAttachGivesLargeSectorsAndDirectIO(t *testing.T) {
	d, f := mustAttach(t, Config{File: newFile(t, testSize)})
	sector, err := unix.IoctlGetInt(int(f.Fd()), unix.BLKSSZGET)
	if err != nil || sector != SectorSize {
		t.Errorf("sectors of %d bytes (err %v), want %d", sector, err, SectorSize)
	}
	if !d.DirectIO {
		t.Errorf("no direct I/O on the file system of %s: run the tests where TMPDIR has it (ext4, xfs, btrfs)", t.TempDir())
	}
}

func TestAttachRefusesFilesThatMakeNoDevice(t *testing.T) {
	dir, err := os.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	for name, file := range map[string]*os.File{
		"empty": newFile(t, 0), "part of a sector": newFile(t, SectorSize+512), "directory": dir,
	} {
		t.Run(name, func(t *testing.T) {
			_, f, err := Attach(t.Context(), Config{File: file})
			if !errors.Is(err, errs.Invalid) {
				t.Errorf("err %v, want %v", err, errs.Invalid)
			}
			if err == nil {
				f.Close()
			}
		})
	}
}

func TestEndedContextChangesNothing(t *testing.T) {
	d, _ := mustAttach(t, Config{File: newFile(t, testSize)})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, _, attachErr := Attach(ctx, Config{File: newFile(t, testSize)})
	_, listErr := List(ctx)
	_, sizeErr := Size(ctx, d)
	for call, err := range map[string]error{
		"Attach": attachErr, "Detach": Detach(ctx, d), "List": listErr, "Size": sizeErr, "Resize": Resize(ctx, d),
		"SetReadOnly": SetReadOnly(ctx, d, true),
	} {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%s: err %v, want %v", call, err, context.Canceled)
		}
	}
	if diff := cmp.Diff([]Device{d}, mustFind(t, d.Backing)); diff != "" {
		t.Errorf("the device changed (-want +got):\n%s", diff)
	}
}

func TestFindGoesByInodeNotByPath(t *testing.T) {
	file := newFile(t, testSize)
	d, _ := mustAttach(t, Config{File: file})
	if err := os.Rename(file.Name(), file.Name()+".moved"); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]Device{d}, mustFind(t, d.Backing)); diff != "" {
		t.Errorf("after the rename (-want +got):\n%s", diff)
	}
	if err := os.Remove(file.Name() + ".moved"); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]Device{d}, mustFind(t, d.Backing)); diff != "" {
		t.Errorf("after the unlink (-want +got):\n%s", diff)
	}
}

func TestListHoldsDevicesInOrder(t *testing.T) {
	a, _ := mustAttach(t, Config{File: newFile(t, testSize)})
	b, _ := mustAttach(t, Config{File: newFile(t, testSize)})
	all, err := List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	seen := map[Backing]bool{}
	for i, d := range all {
		seen[d.Backing] = true
		if i > 0 && all[i-1].Number >= d.Number {
			t.Errorf("%s stands behind %s", d.Path, all[i-1].Path)
		}
	}
	if !seen[a.Backing] || !seen[b.Backing] {
		t.Errorf("of %s and %s at least one is missing in %v", a.Path, b.Path, all)
	}
}

func TestReadOnly(t *testing.T) {
	file := newFile(t, testSize)
	readOnly, err := os.Open(file.Name())
	if err != nil {
		t.Fatal(err)
	}
	defer readOnly.Close()
	d, _ := mustAttach(t, Config{File: readOnly, ReadOnly: true})
	if !d.ReadOnly {
		t.Errorf("attached %+v, want it read-only", d)
	}
	if err := writeTo(d); err == nil {
		t.Error("a read-only device took a write")
	}
}

func TestSetReadOnly(t *testing.T) {
	d, _ := mustAttach(t, Config{File: newFile(t, testSize)})
	for _, on := range []bool{true, false} {
		if err := SetReadOnly(t.Context(), d, on); err != nil {
			t.Fatal(err)
		}
		if now := mustFind(t, d.Backing)[0]; now.ReadOnly != on {
			t.Errorf("read-only is %t, want %t", now.ReadOnly, on)
		}
		if err := writeTo(d); (err != nil) != on {
			t.Errorf("read-only %t: a write gives %v", on, err)
		}
	}
}

// writeTo writes a sector for sure.
func writeTo(d Device) error {
	f, err := os.OpenFile(d.Path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := f.Write(make([]byte, SectorSize)); err != nil {
		return err
	}
	return f.Sync()
}

func TestResize(t *testing.T) {
	file := newFile(t, testSize)
	d, _ := mustAttach(t, Config{File: file})
	if size, err := Size(t.Context(), d); err != nil || size != testSize {
		t.Fatalf("size %d (err %v), want %d", size, err, testSize)
	}
	if err := file.Truncate(2 * testSize); err != nil {
		t.Fatal(err)
	}
	if err := Resize(t.Context(), d); err != nil {
		t.Fatal(err)
	}
	if size, err := Size(t.Context(), d); err != nil || size != 2*testSize {
		t.Errorf("size %d (err %v), want %d", size, err, 2*testSize)
	}
}
