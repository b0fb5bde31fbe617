package growfs_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/linux/growfs"
	"github.com/cleatproject/cleat/internal/linux/kernelcall"
	"github.com/cleatproject/cleat/internal/linux/loop"
	"github.com/cleatproject/cleat/internal/linux/mkfs"
	"github.com/cleatproject/cleat/internal/linux/mkfs/mkfstest"
	"github.com/cleatproject/cleat/test/features"
	"github.com/cleatproject/cleat/test/testkit"
)

func TestMain(m *testing.M) {
	kernelcall.Main()
	goleak.VerifyTestMain(m)
}

const mib = mkfstest.MiB

func enlarge(t *testing.T, v mkfstest.Volume, size int64) {
	t.Helper()
	testkit.Must(t, os.Truncate(v.File, size), loop.Resize(t.Context(), v.Device))
}

func write(t *testing.T, v mkfstest.Volume) (check func()) {
	t.Helper()
	data := bytes.Repeat([]byte("test data\n"), 100_000)
	path := filepath.Join(v.Dir, "data")
	testkit.Must(t, os.WriteFile(path, data, 0o600))
	return func() {
		t.Helper()
		if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, data) {
			t.Errorf("the data did not survive: %v", err)
		}
	}
}

func TestGrowXFSAndBtrfs(t *testing.T) {
	for _, fs := range []mkfs.Type{mkfs.XFS, mkfs.Btrfs} {
		t.Run(string(fs), func(t *testing.T) {
			v := mkfstest.New(t, fs, 320*mib)
			check := write(t, v)
			const last = 20 << 30 // hundreds of groups of XFS; 400 MiB + 4096 leaves a rest that is too small for a group
			for _, size := range []int64{320 * mib, 321*mib + 8192, 400 * mib, 400*mib + 4096, 2 << 30, last} {
				enlarge(t, v, size)
				for range 2 {
					got, err := growfs.Grow(t.Context(), v.Dir, fs)
					if err != nil {
						t.Fatalf("to %d bytes: %v", size, err)
					}
					if got > size || got < size-64*4096 {
						t.Errorf("grown to %d bytes of %d", got, size)
					}
				}
			}
			check()
			v.Unmount(t)
			checker := map[mkfs.Type][]string{mkfs.XFS: {"xfs_repair", "-n", "-f"}, mkfs.Btrfs: {"btrfs", "check", "--readonly"}}[fs]
			if out, err := exec.CommandContext(t.Context(), checker[0], append(checker[1:], v.File)...).CombinedOutput(); err != nil {
				t.Errorf("%v: %v\n%s", checker, err, out)
			}
			again := mkfstest.Mount(t, v.File, fs)
			if got, err := growfs.Grow(t.Context(), again.Dir, fs); err != nil || got != last {
				t.Errorf("after a new mount it has %d bytes, %v", got, err)
			}
		})
	}
}

// The kernel refuses to resize a btrfs to less than 256 MiB.
func TestGrowTheSmallestByALittle(t *testing.T) {
	for _, fs := range []mkfs.Type{mkfs.XFS, mkfs.Btrfs} {
		v := mkfstest.New(t, fs, mkfs.MinSize(fs))
		enlarge(t, v, mkfs.MinSize(fs)+4*mib)
		if _, err := growfs.Grow(t.Context(), v.Dir, fs); err != nil {
			t.Errorf("%s: %v", fs, err)
		}
	}
}

func TestGrowExt4Online(t *testing.T) {
	features.Need(t, features.OnlineExt4Growth)
	v := mkfstest.New(t, mkfs.Ext4, 64*mib)
	check := write(t, v)
	enlarge(t, v, 256*mib)
	if got, err := growfs.Grow(t.Context(), v.Dir, mkfs.Ext4); err != nil || got != 256*mib {
		t.Errorf("with CAP_SYS_RESOURCE: %d, %v; want 256 MiB", got, err)
	}
	check()
}

// The error says when it grows instead.
func TestGrowExt4WithoutTheCapability(t *testing.T) {
	v := mkfstest.New(t, mkfs.Ext4, 64*mib)
	check := write(t, v)
	if got, err := growfs.Grow(t.Context(), v.Dir, mkfs.Ext4); err != nil || got != 64*mib {
		t.Errorf("one that fills its device: %d, %v; want 64 MiB and no error", got, err)
	}
	if mkfstest.HasSysResource(t) {
		return // TestGrowExt4Online grows it
	}
	enlarge(t, v, 256*mib)
	_, err := growfs.Grow(t.Context(), v.Dir, mkfs.Ext4)
	check()
	if !errors.Is(err, growfs.ErrNeedsSysResource) || !errors.Is(err, errs.Precondition) || !strings.Contains(err.Error(), "staged again") {
		t.Errorf("without CAP_SYS_RESOURCE: %v, want ErrNeedsSysResource that says when it grows", err)
	}
	v.Unmount(t)
	testkit.Must(t, mkfs.CheckAndGrow(t.Context(), mkfs.GrowRequest{Device: v.File, Scratch: v.File + ".scratch"}))
	again := mkfstest.Mount(t, v.File, mkfs.Ext4)
	if got, err := growfs.Grow(t.Context(), again.Dir, mkfs.Ext4); err != nil || got != 256*mib {
		t.Errorf("at the next stage it has %d bytes, %v; want 256 MiB", got, err)
	}
}

// A rest that is too small for a group does not count as growth.
func TestGrowExt4ByTooLittle(t *testing.T) {
	v := mkfstest.New(t, mkfs.Ext4, 128*mib)
	enlarge(t, v, 128*mib+4096)
	if got, err := growfs.Grow(t.Context(), v.Dir, mkfs.Ext4); err != nil || got != 128*mib {
		t.Errorf("%d, %v; want 128 MiB and no error", got, err)
	}
}

// The superblock changes while it is read.
func TestGrowExt4WhileInUse(t *testing.T) {
	v := mkfstest.New(t, mkfs.Ext4, 64*mib)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			if f, err := os.CreateTemp(v.Dir, ""); err == nil {
				os.Remove(f.Name()) // an orphan: the superblock points to it
				f.Close()
			}
		}
	}()
	for range 500 {
		if got, err := growfs.Grow(t.Context(), v.Dir, mkfs.Ext4); err != nil || got != 64*mib {
			t.Errorf("%d, %v; want 64 MiB", got, err)
			break
		}
	}
	cancel()
	<-done
}

func TestGrowRefuses(t *testing.T) {
	v := mkfstest.New(t, mkfs.XFS, 320*mib)
	testkit.WantError(t, "an XFS as ext4", testkit.Err(growfs.Grow(t.Context(), v.Dir, mkfs.Ext4)), errs.Precondition)
	testkit.WantError(t, "an unknown type", testkit.Err(growfs.Grow(t.Context(), v.Dir, "vfat")), errs.Invalid)
	testkit.WantError(t, "a file is no mount point", testkit.Err(growfs.Grow(t.Context(), v.File, mkfs.XFS)), nil)
	ctx := testkit.Canceled(t)
	testkit.WantError(t, "with an ended context", testkit.Err(growfs.Grow(ctx, v.Dir, mkfs.XFS)), context.Canceled)
	enlarge(t, v, 400*mib)
	testkit.Must(t, mkfstest.Remount(t.Context(), v.Dir, true))
	testkit.WantError(t, "mounted read-only", testkit.Err(growfs.Grow(t.Context(), v.Dir, mkfs.XFS)), errs.Precondition)
}
