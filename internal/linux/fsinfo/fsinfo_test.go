package fsinfo_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/linux/fsinfo"
	"github.com/cleatproject/cleat/internal/linux/kernelcall"
	"github.com/cleatproject/cleat/internal/linux/mkfs"
	"github.com/cleatproject/cleat/internal/linux/mkfs/mkfstest"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/test/testkit/scratchfs"
)

func TestMain(m *testing.M) {
	kernelcall.Main()
	goleak.VerifyTestMain(m)
}

const mib = mkfstest.MiB

func TestUsage(t *testing.T) {
	const size = 320 * mib
	for _, fs := range mkfs.Types() {
		v := mkfstest.New(t, fs, size)
		before := usage(t, v.Dir)
		if b := before.Bytes; b.Total > size || b.Total < size/2 || b.Used < 0 || b.Available > b.Total-b.Used || b.Available <= 0 {
			t.Errorf("%s: an empty volume of %d bytes has %+v", fs, size, b)
		}
		if hasInodes := before.Inodes.Total > 0; hasInodes != (fs != mkfs.Btrfs) {
			t.Errorf("%s: inodes %+v", fs, before.Inodes)
		}
		for i := range 10 {
			name := filepath.Join(v.Dir, fmt.Sprint(i))
			testkit.Must(t, os.WriteFile(name, bytes.Repeat([]byte{byte(i + 1)}, 2*mib), 0o600))
		}
		syncfs(t, v.Dir)
		after := usage(t, v.Dir)
		if grown := after.Bytes.Used - before.Bytes.Used; grown < 20*mib || grown > 40*mib {
			t.Errorf("%s: 20 MiB written, used grew by %d", fs, grown)
		}
		if fs != mkfs.Btrfs && after.Inodes.Used-before.Inodes.Used != 10 {
			t.Errorf("%s: 10 files made, inodes went from %+v to %+v", fs, before.Inodes, after.Inodes)
		}
	}
	if _, err := fsinfo.UsageOf(t.Context(), filepath.Join(t.TempDir(), "missing")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("of a missing path: %v", err)
	}
}

func TestUsageNeverOverflows(t *testing.T) {
	for _, c := range []struct {
		total, free, available, unit uint64
		want                         fsinfo.Amount
	}{
		{0, 0, 0, 4096, fsinfo.Amount{}},
		{10, 4, 3, 4096, fsinfo.Amount{Total: 40960, Used: 6 * 4096, Available: 3 * 4096}},
		{10, 11, 12, 1, fsinfo.Amount{Total: 10, Used: 0, Available: 10}},
		{math.MaxUint64, 0, 0, 4096, fsinfo.Amount{Total: math.MaxInt64, Used: math.MaxInt64}},
	} {
		if got := fsinfo.AmountOf(c.total, c.free, c.available, c.unit); got != c.want {
			t.Errorf("%+v gives %+v", c, got)
		}
	}
}

func TestHealthyFileSystemsHaveNoFaults(t *testing.T) {
	for _, fs := range mkfs.Types() {
		v := mkfstest.New(t, fs, 320*mib)
		if got := faults(t, v.Dir, fs); got != (fsinfo.Faults{}) {
			t.Errorf("%s: %+v", fs, got)
		}
	}
}

func TestExt4Errors(t *testing.T) {
	v := mkfstest.New(t, mkfs.Ext4, 64*mib)
	start := time.Now().Add(-2 * time.Second)
	trigger := filepath.Join("/sys/fs/ext4", filepath.Base(v.Device.Path), "trigger_fs_error")
	var got fsinfo.Faults
	for n := range uint64(2) {
		testkit.Must(t, os.WriteFile(trigger, []byte("an error for a test"), 0))
		// The kernel counts in a worker.
		testkit.Eventually(t, "the error is counted", func() bool {
			got = faults(t, v.Dir, mkfs.Ext4)
			return got.Count > n
		})
	}
	if got.Count != 2 || got.Shutdown || got.First.Function == "" || got.Last.Function == "" {
		t.Errorf("after two errors: %+v", got)
	}
	if got.First.Time.Before(start) || got.Last.Time.Before(got.First.Time) || got.Last.Time.After(time.Now().Add(2*time.Second)) {
		t.Errorf("the errors happened at %v and %v", got.First.Time, got.Last.Time)
	}
	if !strings.Contains(got.Detail, "2 errors") {
		t.Errorf("the words are %q", got.Detail)
	}
	v.Unmount(t)
	if again := mkfstest.Mount(t, v.File, mkfs.Ext4); faults(t, again.Dir, mkfs.Ext4).Count != 2 {
		t.Errorf("after a new mount: %+v, want the count kept", faults(t, again.Dir, mkfs.Ext4))
	}
}

// TestBtrfsErrors destroys data below the file system and reads it.
func TestBtrfsErrors(t *testing.T) {
	v := mkfstest.New(t, mkfs.Btrfs, mkfs.MinSize(mkfs.Btrfs))
	mark := bytes.Repeat([]byte("cleat spoils this text. "), 4096)
	path := filepath.Join(v.Dir, "data")
	testkit.Must(t, os.WriteFile(path, mark, 0o600))
	syncfs(t, v.Dir)
	v.Unmount(t)
	spoil(t, v.File, mark[:4096])
	again := mkfstest.Mount(t, v.File, mkfs.Btrfs)
	if _, err := os.ReadFile(filepath.Join(again.Dir, "data")); !errors.Is(err, unix.EIO) {
		t.Fatalf("reading spoilt data: %v, want EIO", err)
	}
	if got := faults(t, again.Dir, mkfs.Btrfs); got.Count == 0 || got.Shutdown || !strings.Contains(got.Detail, "wrong checksums") {
		t.Errorf("after a read of spoilt data: %+v", got)
	}
}

// The text occurs once in the file.
func spoil(t *testing.T, path string, text []byte) {
	t.Helper()
	f := testkit.Value(os.OpenFile(path, os.O_RDWR, 0))(t)
	defer f.Close()
	buf := make([]byte, 4096)
	for at := int64(0); ; at += 4096 {
		if _, err := f.ReadAt(buf, at); err != nil {
			t.Fatalf("the text is nowhere in %s: %v", path, err)
		}
		if bytes.Equal(buf, text) {
			testkit.Value(f.WriteAt([]byte{'!'}, at))(t)
			return
		}
	}
}

func TestShutdown(t *testing.T) {
	for _, fs := range []mkfs.Type{mkfs.XFS, mkfs.Ext4} {
		v := mkfstest.New(t, fs, 320*mib)
		scratchfs.ShutDown(t, v.Dir)
		if got := faults(t, v.Dir, fs); !got.Shutdown || got.Detail == "" {
			t.Errorf("%s after a shutdown: %+v", fs, got)
		}
		if _, err := fsinfo.UsageOf(t.Context(), v.Dir); err != nil {
			t.Errorf("%s after a shutdown: usage: %v", fs, err)
		}
	}
}

// Kernels with fewer attributes, and devices with unusual names.
func TestSysfsOfOtherKernels(t *testing.T) {
	v := mkfstest.New(t, mkfs.Ext4, 64*mib)
	for name, c := range map[string]struct {
		files map[string]string
		want  fsinfo.Faults
		fails bool
	}{
		"no errors":    {map[string]string{"errors_count": "0\n", "first_error_time": "0\n"}, fsinfo.Faults{}, false},
		"count only":   {map[string]string{"errors_count": "7\n"}, fsinfo.Faults{Count: 7, Detail: "7 errors, the last in (unknown) at (unknown)"}, false},
		"absurd time":  {map[string]string{"errors_count": "1\n", "last_error_time": "18446744073709551615\n"}, fsinfo.Faults{Count: 1, Detail: "1 errors, the last in (unknown) at (unknown)"}, false},
		"no counter":   {map[string]string{}, fsinfo.Faults{}, true},
		"not a number": {map[string]string{"errors_count": "many\n"}, fsinfo.Faults{}, true},
		"all values":   {map[string]string{"errors_count": "1", "last_error_time": "1700000000", "last_error_func": "ext4_find"}, fsinfo.Faults{Count: 1, Last: fsinfo.Event{Time: time.Unix(1700000000, 0).UTC(), Function: "ext4_find"}, Detail: "1 errors, the last in ext4_find at 2023-11-14T22:13:20Z"}, false},
	} {
		root := t.TempDir()
		link := filepath.Join(root, "dev/block", fmt.Sprintf("%d:%d", v.Device.Major, v.Device.Minor))
		dir := filepath.Join(root, "fs/ext4/cciss!c0d0")
		for _, d := range []string{filepath.Dir(link), dir} {
			testkit.Must(t, os.MkdirAll(d, 0o700))
		}
		testkit.Must(t, os.Symlink("../../devices/block/cciss!c0d0", link))
		for file, text := range c.files {
			testkit.Must(t, os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600))
		}
		got, err := fsinfo.Reader{Sysfs: root}.Errors(t.Context(), v.Dir, mkfs.Ext4)
		if (err != nil) != c.fails {
			t.Errorf("%s: %v", name, err)
		}
		testkit.Diff(t, name, c.want, got)
	}
}

func TestErrorsRefuses(t *testing.T) {
	v := mkfstest.New(t, mkfs.XFS, 320*mib)
	for _, wrong := range []mkfs.Type{mkfs.Ext4, mkfs.Btrfs} {
		if _, err := fsinfo.Errors(t.Context(), v.Dir, wrong); !errors.Is(err, errs.Precondition) {
			t.Errorf("an XFS as %s: %v, want Precondition", wrong, err)
		}
	}
	testkit.WantError(t, "/proc as XFS", testkit.Err(fsinfo.Errors(t.Context(), "/proc", mkfs.XFS)), errs.Precondition)
	testkit.WantError(t, "an unknown type", testkit.Err(fsinfo.Errors(t.Context(), v.Dir, "vfat")), errs.Invalid)
	if _, err := fsinfo.Errors(t.Context(), filepath.Join(v.Dir, "missing"), mkfs.XFS); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a missing directory: %v, want ErrNotExist", err)
	}
	ctx := testkit.Canceled(t)
	testkit.WantError(t, "with an ended context", testkit.Err(fsinfo.Errors(ctx, v.Dir, mkfs.XFS)), context.Canceled)
}

// TestReadOnlyIsNoFault: a remount is visible in the mount table, not by counters.
func TestReadOnlyIsNoFault(t *testing.T) {
	v := mkfstest.New(t, mkfs.XFS, 320*mib)
	testkit.Must(t, mkfstest.Remount(t.Context(), v.Dir, true))
	if got := faults(t, v.Dir, mkfs.XFS); got != (fsinfo.Faults{}) {
		t.Errorf("%+v", got)
	}
}

func usage(t *testing.T, dir string) fsinfo.Usage {
	t.Helper()
	return testkit.Value(fsinfo.UsageOf(t.Context(), dir))(t)
}

func faults(t *testing.T, dir string, fs mkfs.Type) fsinfo.Faults {
	t.Helper()
	return testkit.Value(fsinfo.Errors(t.Context(), dir, fs))(t)
}

func syncfs(t *testing.T, dir string) {
	t.Helper()
	d := testkit.Value(os.Open(dir))(t)
	defer d.Close()
	testkit.Must(t, unix.Syncfs(int(d.Fd())))
}
