package fstrim_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/linux/fstrim"
	"github.com/cleatproject/cleat/internal/linux/loop"
	"github.com/cleatproject/cleat/internal/linux/mkfs"
	"github.com/cleatproject/cleat/internal/linux/mkfs/mkfstest"
	"github.com/cleatproject/cleat/internal/linux/mount"
	"github.com/cleatproject/cleat/internal/linux/retry"
)

const mib = mkfstest.MiB

// fill writes a file of 32 MiB and removes it again.
func fill(t *testing.T, dir string) {
	t.Helper()
	path := filepath.Join(dir, "gone")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	block := make([]byte, mib)
	for i := range block {
		block[i] = byte(i%251 + 1)
	}
	for range 32 {
		if _, err := f.Write(block); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
}

func sync(t *testing.T, dir string) {
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

// TestTrimGivesRoomBack looks at the file below, which is what counts. The
// volumes are larger than one step of the trim.
func TestTrimGivesRoomBack(t *testing.T) {
	for _, fs := range mkfs.Types() {
		t.Run(string(fs), func(t *testing.T) {
			v := mkfstest.New(t, fs, 40<<30)
			fill(t, v.Dir)
			sync(t, v.Dir)
			full := mkfstest.Allocated(t, v.File)
			// XFS frees the blocks of a removed file a moment later.
			err := retry.For(t.Context(), time.Minute, func() (bool, error) {
				got, err := fstrim.Trim(t.Context(), v.Dir)
				if err != nil {
					return false, err
				}
				if got > 41<<30 {
					return false, fmt.Errorf("%d bytes trimmed, more than there are", got)
				}
				left := mkfstest.Allocated(t, v.File)
				if left > full-30*mib {
					return true, fmt.Errorf("the file takes %d bytes after the trim of %d, %d before; want 32 MiB less", left, got, full)
				}
				return false, nil
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
}

func TestTrimOfThickVolumesIsUnsupported(t *testing.T) {
	for _, fs := range mkfs.Types() {
		path := mkfstest.File(t, t.TempDir(), "thick", 320*mib)
		mkfstest.Fallocate(t, path, 320*mib)
		mkfstest.Make(t, path, fs)
		v := mkfstest.Mount(t, path, fs)
		if err := loop.SetDiscard(t.Context(), v.Device, false); err != nil {
			t.Fatal(err)
		}
		if _, err := fstrim.Trim(t.Context(), v.Dir); !errors.Is(err, fstrim.ErrUnsupported) || !errors.Is(err, errs.Unsupported) {
			t.Errorf("%s: %v, want ErrUnsupported", fs, err)
		}
		if got := mkfstest.Allocated(t, path); got < 320*mib {
			t.Errorf("%s: the trim took room from a thick file, it has %d bytes", fs, got)
		}
	}
}

func TestTrimRefuses(t *testing.T) {
	if _, err := fstrim.Trim(t.Context(), "/proc"); !errors.Is(err, fstrim.ErrUnsupported) {
		t.Errorf("/proc: %v, want ErrUnsupported", err)
	}
	if _, err := fstrim.Trim(t.Context(), filepath.Join(t.TempDir(), "missing")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a missing directory: %v, want ErrNotExist", err)
	}
	v := mkfstest.New(t, mkfs.XFS, 320*mib)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := fstrim.Trim(ctx, v.Dir); !errors.Is(err, context.Canceled) {
		t.Errorf("with an ended context: %v", err)
	}
	if err := mount.Remount(t.Context(), v.Dir, true); err != nil {
		t.Fatal(err)
	}
	if got, err := fstrim.Trim(t.Context(), v.Dir); err != nil && !errors.Is(err, errs.Precondition) {
		t.Errorf("mounted read-only: %d, %v; want success or Precondition", got, err)
	}
}
