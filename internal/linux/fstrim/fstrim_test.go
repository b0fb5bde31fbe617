package fstrim_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/linux/fstrim"
	"github.com/cleatproject/cleat/internal/linux/kernelcall"
	"github.com/cleatproject/cleat/internal/linux/loop"
	"github.com/cleatproject/cleat/internal/linux/mkfs"
	"github.com/cleatproject/cleat/internal/linux/mkfs/mkfstest"
	"github.com/cleatproject/cleat/test/testkit"
)

func TestMain(m *testing.M) {
	kernelcall.Main()
	goleak.VerifyTestMain(m)
}

const mib = mkfstest.MiB

func fill(t *testing.T, dir string) {
	t.Helper()
	path := filepath.Join(dir, "gone")
	f := testkit.Value(os.Create(path))(t)
	defer f.Close()
	block := make([]byte, mib)
	for i := range block {
		block[i] = byte(i%251 + 1)
	}
	for range 32 {
		testkit.Value(f.Write(block))(t)
	}
	testkit.Must(t, f.Sync(), os.Remove(path))
}

func sync(t *testing.T, dir string) {
	t.Helper()
	d := testkit.Value(os.Open(dir))(t)
	defer d.Close()
	testkit.Must(t, unix.Syncfs(int(d.Fd())))
}

// The volumes are larger than one step of the trim.
func TestTrimReleasesSpace(t *testing.T) {
	for _, fs := range mkfs.Types() {
		t.Run(string(fs), func(t *testing.T) {
			v := mkfstest.New(t, fs, 40<<30)
			fill(t, v.Dir)
			sync(t, v.Dir)
			full := mkfstest.Allocated(t, v.File)
			// XFS frees the blocks of a removed file a moment later.
			testkit.EventuallyNil(t, "trimmed", func() error {
				got := testkit.Value(fstrim.Trim(t.Context(), v.Dir))(t)
				if got > 41<<30 {
					t.Fatalf("%d bytes trimmed, more than there are", got)
				}
				if left := mkfstest.Allocated(t, v.File); left > full-30*mib {
					return fmt.Errorf("the file takes %d bytes after the trim of %d, %d before; want 32 MiB less", left, got, full)
				}
				return nil
			})
		})
	}
}

func TestTrimOfThickVolumesIsUnsupported(t *testing.T) {
	for _, fs := range mkfs.Types() {
		path := mkfstest.File(t, t.TempDir(), "thick", 320*mib)
		mkfstest.Fallocate(t, path, 320*mib)
		mkfstest.Make(t, path, fs)
		v := mkfstest.Mount(t, path, fs)
		testkit.Must(t, loop.SetDiscard(t.Context(), v.Device, false))
		if _, err := fstrim.Trim(t.Context(), v.Dir); !errors.Is(err, fstrim.ErrUnsupported) || !errors.Is(err, errs.Unsupported) {
			t.Errorf("%s: %v, want ErrUnsupported", fs, err)
		}
		if got := mkfstest.Allocated(t, path); got < 320*mib {
			t.Errorf("%s: the trim released space of a thick file, it has %d bytes", fs, got)
		}
	}
}

func TestTrimRefuses(t *testing.T) {
	testkit.WantError(t, "/proc", testkit.Err(fstrim.Trim(t.Context(), "/proc")), fstrim.ErrUnsupported)
	if _, err := fstrim.Trim(t.Context(), filepath.Join(t.TempDir(), "missing")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a missing directory: %v, want ErrNotExist", err)
	}
	v := mkfstest.New(t, mkfs.XFS, 320*mib)
	ctx := testkit.Canceled(t)
	testkit.WantError(t, "with an ended context", testkit.Err(fstrim.Trim(ctx, v.Dir)), context.Canceled)
	testkit.Must(t, mkfstest.Remount(t.Context(), v.Dir, true))
	if got, err := fstrim.Trim(t.Context(), v.Dir); err != nil && !errors.Is(err, errs.Precondition) {
		t.Errorf("mounted read-only: %d, %v; want success or Precondition", got, err)
	}
}
