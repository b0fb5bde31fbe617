package mkfs_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/linux/mkfs"
	"github.com/cleatproject/cleat/internal/linux/mkfs/mkfstest"
	"github.com/cleatproject/cleat/test/soak"
	"github.com/cleatproject/cleat/test/testkit"
)

// 64 MiB with one file, whose content is returned
func ext4With(t *testing.T, dir string) (path string, data []byte) {
	t.Helper()
	path = mkfstest.File(t, dir, "volume", 64*mib)
	mkfstest.Make(t, path, mkfs.Ext4)
	v := mkfstest.Mount(t, path, mkfs.Ext4)
	data = writeFile(t, v.Dir, "data", 8*mib)
	v.Unmount(t)
	return path, data
}

func truncate(t *testing.T, path string, size int64) {
	t.Helper()
	testkit.Must(t, os.Truncate(path, size))
}

func checkGrown(t *testing.T, path string, size int64, data []byte) {
	t.Helper()
	if got := probe(t, path).Size; got != size {
		t.Errorf("the file system has %d bytes, want %d", got, size)
	}
	if out, err := exec.CommandContext(t.Context(), "e2fsck", "-f", "-n", path).CombinedOutput(); err != nil {
		t.Errorf("after growing: %v\n%s", err, out)
	}
	v := mkfstest.Mount(t, path, mkfs.Ext4)
	checkFile(t, v.Dir, "data", data)
	v.Unmount(t)
}

func TestGrowOffline(t *testing.T) {
	path, data := ext4With(t, t.TempDir())
	for _, size := range []int64{64 * mib, 64*mib + 4096, 1000*mib + 512*1024, 20 << 30} {
		truncate(t, path, size)
		for range 2 {
			if err := mkfs.GrowOffline(t.Context(), path, mkfs.Ext4); err != nil {
				t.Fatalf("to %d bytes: %v", size, err)
			}
		}
		checkGrown(t, path, size, data)
	}
}

// The node has a block device, not the file.
func TestGrowOfflineThroughADevice(t *testing.T) {
	path, data := ext4With(t, t.TempDir())
	truncate(t, path, 256*mib)
	v := mkfstest.Mount(t, path, mkfs.Ext4)
	testkit.WantError(t, "a mounted file system was grown offline", mkfs.GrowOffline(t.Context(), v.Device.Path, mkfs.Ext4), nil)
	checkFile(t, v.Dir, "data", data)
	v.Unmount(t)
	device := mkfstest.Attach(t, path)
	testkit.Must(t, mkfs.GrowOffline(t.Context(), device.Path, mkfs.Ext4))
	device.Detach(t)
	checkGrown(t, path, 256*mib, data)
}

// At sizes at which resize2fs omits a last group, GrowOffline must not run the
// slow tools at each mount.
func TestFullFileSystemsAreLeftAlone(t *testing.T) {
	const group = 128 * mib
	noTools := mkfs.Tools{Path: t.TempDir()}
	for _, groups := range []int64{1, 2, 3} { // group 2 has no copy of the superblock, 1 and 3 have
		for _, rest := range []int64{4096, 200 * 4096, 567 * 4096, 600 * 4096, 5 * mib, 9 * mib} {
			path := mkfstest.File(t, t.TempDir(), "volume", groups*group)
			mkfstest.Make(t, path, mkfs.Ext4)
			truncate(t, path, groups*group+rest)
			testkit.Must(t, mkfs.GrowOffline(t.Context(), path, mkfs.Ext4))
			grown := probe(t, path).Size
			if err := noTools.GrowOffline(t.Context(), path, mkfs.Ext4); err != nil {
				t.Errorf("%d groups and %d bytes: it is grown to %d, yet the tools are wanted again: %v", groups, rest, grown, err)
			}
			if out, err := exec.CommandContext(t.Context(), "resize2fs", path).CombinedOutput(); err != nil || probe(t, path).Size != grown {
				t.Errorf("%d groups and %d bytes: resize2fs goes on from %d to %d: %v %s", groups, rest, grown, probe(t, path).Size, err, out)
			}
		}
	}
}

func TestGrowOfflineLeavesOthersAlone(t *testing.T) {
	for _, fs := range []mkfs.Type{mkfs.XFS, mkfs.Btrfs} {
		path := mkfstest.File(t, t.TempDir(), "volume", mkfs.MinSize(fs))
		mkfstest.Make(t, path, fs)
		truncate(t, path, 400*mib)
		before := probe(t, path)
		if err := mkfs.GrowOffline(t.Context(), path, fs); err != nil || probe(t, path) != before {
			t.Errorf("%s: %v, now %+v, want no change", fs, err, probe(t, path))
		}
	}
	testkit.WantError(t, "of an unknown type", mkfs.GrowOffline(t.Context(), "/nowhere", "vfat"), errs.Invalid)
}

// After a power loss the superblock is torn, and our marker exists.
func TestInterruptedResizeIsRepaired(t *testing.T) {
	path, data := ext4With(t, t.TempDir())
	truncate(t, path, 256*mib)
	const tear = `dd if=/dev/urandom of="$2" bs=1 seek=1150 count=20 conv=notrunc 2>/dev/null; kill -9 $$`
	if err := fake(t, "resize2fs", tear).GrowOffline(t.Context(), path, mkfs.Ext4); err == nil {
		t.Fatal("a killed resize2fs is no error")
	}
	if err := mkfs.GrowOffline(t.Context(), path, mkfs.Ext4); err != nil {
		t.Fatalf("after an interrupted resize: %v", err)
	}
	checkGrown(t, path, 256*mib, data)
	if first := readAt(t, path, 0, 1024); strings.Trim(string(first), "\x00") != "" {
		t.Errorf("the marker is left over: %q", first)
	}
}

// The same damage without our marker.
func TestForeignDamageIsNotRepaired(t *testing.T) {
	path, _ := ext4With(t, t.TempDir())
	truncate(t, path, 256*mib)
	overwrite(t, path, 1150, []byte("torn"))
	before := readAt(t, path, 0, 64<<10)
	testkit.WantError(t, "a torn superblock", mkfs.GrowOffline(t.Context(), path, mkfs.Ext4), mkfs.ErrDamaged, "e2fsck -f")
	if string(readAt(t, path, 0, 64<<10)) != string(before) {
		t.Error("the damaged file system was written to")
	}
}

// e2fsck -p rejects the inode table.
func TestDamageThatNeedsManualRepair(t *testing.T) {
	path, _ := ext4With(t, t.TempDir())
	truncate(t, path, 256*mib)
	out, err := exec.CommandContext(t.Context(), "debugfs", "-w", "-R", "clri <2>", path).CombinedOutput()
	if err != nil {
		t.Fatalf("debugfs: %v %s", err, out)
	}
	err = mkfs.GrowOffline(t.Context(), path, mkfs.Ext4)
	if !errors.Is(err, errs.Precondition) || !strings.Contains(err.Error(), "manually") {
		t.Errorf("a lost root directory: %v, want Precondition that says what to do", err)
	}
	if got := probe(t, path).Size; got != 64*mib {
		t.Errorf("the damaged file system was grown to %d", got)
	}
}

// User data before the file system stays.
func TestBootBlockIsRespected(t *testing.T) {
	path, data := ext4With(t, t.TempDir())
	overwrite(t, path, 100, []byte("a boot loader"))
	truncate(t, path, 256*mib)
	testkit.Must(t, mkfs.GrowOffline(t.Context(), path, mkfs.Ext4))
	checkGrown(t, path, 256*mib, data)
	if got := string(readAt(t, path, 100, 13)); got != "a boot loader" {
		t.Errorf("the boot block holds %q", got)
	}
}

// Another resize is refused even if the caller of the first is gone.
func TestResizeGoesOnAndHoldsItsLock(t *testing.T) {
	path, data := ext4With(t, t.TempDir())
	truncate(t, path, 256*mib)
	fifo := filepath.Join(t.TempDir(), "go")
	testkit.Must(t, mkfifo(fifo))
	tools := fake(t, "resize2fs", `echo > `+fifo+`; read x < `+fifo+`; exec /usr/sbin/resize2fs "$@"`)
	done := make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	go func() { done <- tools.GrowOffline(ctx, path, mkfs.Ext4) }()
	testkit.Value(os.ReadFile(fifo))(t) // it runs
	cancel()
	testkit.WantError(t, "a second resize beside a running one", mkfs.GrowOffline(t.Context(), path, mkfs.Ext4), errs.Busy)
	testkit.Must(t, os.WriteFile(fifo, []byte("\n"), 0))
	testkit.Must(t, <-done)
	checkGrown(t, path, 256*mib, data)
}

// resize2fs is killed at many times, with one group and with several.
func TestKilledResizesAreRepaired(t *testing.T) {
	pool := mkfstest.Pool(t, 1024*mib)
	path, data := ext4With(t, pool)
	needed, step := 0, 4 // of 0.3 ms
	if soak.Enabled {
		step = 1
	}
	for i := 0; i < 40; i += step {
		copied := filepath.Join(pool, "copy")
		mkfstest.Reflink(t, path, copied)
		truncate(t, copied, 10<<30)
		delay := strconv.FormatFloat(float64(i)*0.0003, 'f', 5, 64)
		script := `/usr/sbin/resize2fs "$@" & sleep ` + delay + `; kill -9 $!; wait $!; exit $?`
		if fake(t, "resize2fs", script).GrowOffline(t.Context(), copied, mkfs.Ext4) != nil {
			needed++
		}
		if err := mkfs.GrowOffline(t.Context(), copied, mkfs.Ext4); err != nil {
			t.Fatalf("after a kill at %s s: %v", delay, err)
		}
		checkGrown(t, copied, 10<<30, data)
		testkit.Must(t, os.Remove(copied))
	}
	t.Logf("%d of %d kills hit a running resize2fs", needed, 40/step)
	if needed == 0 {
		t.Error("no kill hit a running resize2fs")
	}
}

// Before resize2fs writes the superblock it flushes everything else once (seen
// with strace, release 1.47), so a power loss leaves the old superblock and any
// part of the rest.
func TestResizesInterruptedByPowerLossAreRepaired(t *testing.T) {
	pool := mkfstest.Pool(t, 1024*mib)
	path, data := ext4With(t, pool)
	random := rand.New(rand.NewPCG(1, 1))
	for _, size := range []int64{80 * mib, 256 * mib, 10 << 30} {
		before, after := filepath.Join(pool, "before"), filepath.Join(pool, "after")
		mkfstest.Reflink(t, path, after)
		truncate(t, after, size)
		script := `cp --reflink=always "$2" ` + before + ` && exec /usr/sbin/resize2fs "$@"`
		testkit.Must(t, fake(t, "resize2fs", script).GrowOffline(t.Context(), after, mkfs.Ext4))
		for range map[bool]int{true: 8, false: 3}[soak.Enabled] {
			interrupted := filepath.Join(pool, "interrupted")
			mkfstest.Reflink(t, before, interrupted)
			survive(t, random, before, after, interrupted)
			if err := mkfs.GrowOffline(t.Context(), interrupted, mkfs.Ext4); err != nil {
				t.Errorf("grown to %d MiB: %v", size/mib, err)
			} else {
				checkGrown(t, interrupted, size, data)
			}
			testkit.Must(t, os.Remove(interrupted))
		}
		for _, done := range []string{before, after} {
			testkit.Must(t, os.Remove(done))
		}
	}
}

// survive copies random changed blocks, except the first, with marker and
// superblock.
func survive(t *testing.T, random *rand.Rand, before, after, into string) {
	t.Helper()
	var files []*os.File
	for _, name := range []string{before, after, into} {
		f := testkit.Value(os.OpenFile(name, os.O_RDWR, 0))(t)
		defer f.Close()
		files = append(files, f)
	}
	const block = 4096
	through := random.Float64()
	old, young := make([]byte, block), make([]byte, block)
	for at := int64(0); ; {
		next, err := unix.Seek(int(files[1].Fd()), at, unix.SEEK_DATA)
		if err == unix.ENXIO {
			return
		}
		testkit.Must(t, err)
		at = max(next/block*block, block)
		for b, f := range map[*[]byte]*os.File{&old: files[0], &young: files[1]} {
			if _, err := f.ReadAt(*b, at); err != nil && err != io.EOF {
				t.Fatal(err)
			}
		}
		if !bytes.Equal(old, young) && random.Float64() < through {
			testkit.Value(files[2].WriteAt(young, at))(t)
		}
		at += block
	}
}
