package mkfs_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/linux/loop"
	"github.com/cleatproject/cleat/internal/linux/mkfs"
	"github.com/cleatproject/cleat/internal/linux/mkfs/mkfstest"
	"github.com/cleatproject/cleat/test/soak"
	"github.com/cleatproject/cleat/test/testkit"
)

// ext4With creates an ext4 with one file, whose content is returned.
func ext4With(t *testing.T, dir string, size int64) (path string, data []byte) {
	t.Helper()
	path = mkfstest.File(t, dir, fmt.Sprintf("volume%d", size), size)
	mkfstest.Make(t, path, mkfs.Ext4)
	return path, fill(t, path, size)
}

func fill(t *testing.T, path string, size int64) []byte {
	t.Helper()
	v := mkfstest.Mount(t, path, mkfs.Ext4)
	defer v.Unmount(t)
	return writeFile(t, v.Dir, "data", int(size/8))
}

// A copy of the mount, as in a mount namespace that another test creates.
func TestUnmountedVolumeDoesNotChange(t *testing.T) {
	path := mkfstest.File(t, t.TempDir(), "volume", 64*mib)
	mkfstest.Make(t, path, mkfs.Ext4)
	v := mkfstest.Mount(t, path, mkfs.Ext4)
	other := testkit.Value(unix.OpenTree(unix.AT_FDCWD, v.Dir, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC))(t)
	writeFile(t, v.Dir, "data", mib)
	v.Unmount(t)
	unmounted := testkit.Value(os.ReadFile(path))(t)
	run(t, "e2fsck", "-f", "-n", path)
	testkit.Must(t, unix.Close(other))
	testkit.Eventually(t, "the device is detached", func() bool {
		return errors.Is(testkit.Err(loop.Size(t.Context(), v.Device)), loop.ErrGone)
	})
	if now := testkit.Value(os.ReadFile(path))(t); !bytes.Equal(now, unmounted) {
		t.Error("the file system has changed after it was unmounted")
	}
}

func truncate(t *testing.T, path string, size int64) {
	t.Helper()
	testkit.Must(t, os.Truncate(path, size))
}

func grow(t *testing.T, tools mkfs.Tools, path string) error {
	return tools.CheckAndGrow(t.Context(), mkfs.GrowRequest{Device: path, Scratch: path + ".scratch"})
}

// checkGrown requires that the file system has that size, is intact and has
// its content, and that nothing is left over.
func checkGrown(t *testing.T, path string, size int64, data []byte) {
	t.Helper()
	if got := probe(t, path).Size; got != size {
		t.Errorf("the file system has %d bytes, want %d", got, size)
	}
	run(t, "e2fsck", "-f", "-n", path)
	v := mkfstest.Mount(t, path, mkfs.Ext4)
	checkFile(t, v.Dir, "data", data)
	v.Unmount(t)
	if _, err := os.Stat(path + ".scratch"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the scratch file is left over: %v", err)
	}
	if first := string(readAt(t, path, 0, 1024)); strings.Contains(first, "cleat:") {
		t.Errorf("a marker is left over: %q", first)
	}
}

func run(t *testing.T, argv ...string) {
	t.Helper()
	if out, err := exec.CommandContext(t.Context(), argv[0], argv[1:]...).CombinedOutput(); err != nil {
		t.Errorf("%v: %v\n%s", argv, err, out)
	}
}

// oldExt4 has as many reserved group descriptors as mke2fs gives by itself, as
// releases before did.
func oldExt4(t *testing.T, path string) {
	t.Helper()
	run(t, "mkfs.ext4", "-q", "-b", "4096", "-I", "256", "-m", "0", "-E", "nodiscard", "-O", "none,has_journal,ext_attr,resize_inode,dir_index,"+
		"filetype,extent,64bit,flex_bg,sparse_super,large_file,huge_file,dir_nlink,extra_isize,metadata_csum", path)
}

// A growth succeeds, or leaves the file system as it was: resize2fs fails for
// the first two pairs of an old file system, and e2fsck -y then loses the file.
func TestGrowthLosesNothing(t *testing.T) {
	type pair struct {
		from, to int64
		old      bool // made by a release before
		refused  bool
	}
	pairs := []pair{
		{64 * mib, 100 << 30, true, true}, {8 * mib, 16 << 30, true, true},
		{64 * mib, 100 << 30, false, false}, {8 * mib, 16 << 30, false, false},
		{64 * mib, 64 << 30, true, false}, {64 * mib, 66 * mib, false, false},
	}
	if soak.Enabled {
		for _, from := range []int64{8, 9, 33, 127, 128, 129, 1000, 3000} {
			for _, times := range []int64{2, 3, 17, 129, 1025, 4097} {
				for _, old := range []bool{false, true} {
					pairs = append(pairs, pair{from * mib, from * mib * times, old, times > 4096 || old && times > 1024})
				}
			}
		}
	}
	for _, p := range pairs {
		t.Run(fmt.Sprintf("%d to %d MiB, old %t", p.from/mib, p.to/mib, p.old), func(t *testing.T) {
			path := mkfstest.File(t, t.TempDir(), "volume", p.from)
			if p.old {
				oldExt4(t, path)
			} else {
				mkfstest.Make(t, path, mkfs.Ext4)
			}
			data := fill(t, path, p.from)
			truncate(t, path, p.to)
			before := probe(t, path)
			for range 2 {
				err := grow(t, mkfs.Tools{}, path)
				switch {
				case errors.Is(err, mkfs.ErrNotGrown):
					if probe(t, path) != before {
						t.Errorf("%v, but the superblock has changed", err)
					}
					checkGrown(t, path, p.from, data)
				case err != nil:
					t.Fatal(err)
				default:
					checkGrown(t, path, p.to, data)
				}
				if refused := err != nil; refused && !p.refused || !soak.Enabled && refused != p.refused {
					t.Errorf("refused: %v, want %t", err, p.refused)
				}
			}
		})
	}
}

// The node has a block device, not the file.
func TestGrowthThroughADevice(t *testing.T) {
	path, data := ext4With(t, t.TempDir(), 64*mib)
	truncate(t, path, 256*mib)
	device := mkfstest.Attach(t, path)
	testkit.Must(t, mkfs.CheckAndGrow(t.Context(), mkfs.GrowRequest{Device: device.Path, Scratch: path + ".scratch"}))
	device.Detach(t)
	checkGrown(t, path, 256*mib, data)
}

// At sizes at which resize2fs omits a last group, the slow tools must not run
// at each mount.
func TestFullFileSystemsAreLeftAlone(t *testing.T) {
	const group = 128 * mib
	noTools := mkfs.Tools{Path: t.TempDir()}
	for _, groups := range []int64{1, 2, 3} { // group 2 has no copy of the superblock, 1 and 3 have
		for _, rest := range []int64{4096, mib, 567 * 4096, 600 * 4096, 5 * mib, 9 * mib} {
			path := mkfstest.File(t, t.TempDir(), "volume", groups*group)
			mkfstest.Make(t, path, mkfs.Ext4)
			truncate(t, path, groups*group+rest)
			testkit.Must(t, grow(t, mkfs.Tools{}, path))
			grown := probe(t, path).Size
			if err := grow(t, noTools, path); err != nil {
				t.Errorf("%d groups and %d bytes: it is grown to %d, yet the tools are wanted again: %v", groups, rest, grown, err)
			}
		}
	}
}

// Whatever a tool does on its copy, the volume keeps each byte.
func TestFailedToolsChangeNothing(t *testing.T) {
	path, data := ext4With(t, t.TempDir(), 64*mib)
	truncate(t, path, 256*mib)
	for tool, script := range map[string]string{
		"resize2fs": `dd if=/dev/urandom of="$2" bs=4096 count=9 conv=notrunc 2>/dev/null; echo Illegal block; exit 1`,
		"e2image":   `echo No space left on device; exit 1`,
		"e2fsck ":   `echo No space left on device; exit 8`,
		"e2fsck":    `case "$*" in *scratch*) echo it is broken; exit 4;; esac; exec /usr/sbin/e2fsck "$@"`,
	} {
		testkit.Must(t, exec.CommandContext(t.Context(), "e2fsck", "-f", "-p", path).Run())
		before := readAt(t, path, 0, 64*mib)
		testkit.WantError(t, tool+" fails", grow(t, fake(t, strings.TrimSpace(tool), script), path), mkfs.ErrNotGrown, strings.TrimSpace(tool))
		if after := readAt(t, path, 0, 64*mib); string(before[:1024]) != string(after[:1024]) || string(before[4096:]) != string(after[4096:]) {
			t.Errorf("after %s failed, the volume has changed", tool) // e2fsck -f -p writes its time to the superblock
		}
		checkGrown(t, path, 64*mib, data)
	}
	testkit.Must(t, grow(t, mkfs.Tools{}, path))
	checkGrown(t, path, 256*mib, data)
}

// The copy of the metadata does not fill the directory, which other files need.
func TestGrowthWithoutScratchSpace(t *testing.T) {
	path, data := ext4With(t, t.TempDir(), 64*mib)
	truncate(t, path, 256*mib)
	dir := t.TempDir()
	testkit.Must(t, unix.Mount("tmpfs", dir, "tmpfs", 0, "size=4m"))
	t.Cleanup(func() { testkit.Unmount(t, dir) })
	err := mkfs.CheckAndGrow(t.Context(), mkfs.GrowRequest{Device: path, Scratch: filepath.Join(dir, "scratch")})
	testkit.WantError(t, "a small directory", err, mkfs.ErrNotGrown, dir+", which has 4194304: free ")
	checkGrown(t, path, 64*mib, data)
	testkit.Must(t, grow(t, mkfs.Tools{}, path))
	checkGrown(t, path, 256*mib, data)
}

func TestBootBlockIsRespected(t *testing.T) {
	path, data := ext4With(t, t.TempDir(), 64*mib)
	overwrite(t, path, 100, []byte("a boot loader"))
	truncate(t, path, 256*mib)
	testkit.Must(t, grow(t, mkfs.Tools{}, path))
	checkGrown(t, path, 256*mib, data)
	if got := string(readAt(t, path, 100, 13)); got != "a boot loader" {
		t.Errorf("the boot block holds %q", got)
	}
}

// A release before left its marker after a failed resize2fs, and would run
// e2fsck -y now, which moves the file to lost+found.
func TestMarkerOfAReleaseBeforeRepairsNothing(t *testing.T) {
	path := mkfstest.File(t, t.TempDir(), "volume", 64*mib)
	oldExt4(t, path)
	fill(t, path, 64*mib)
	truncate(t, path, 100<<30)
	if exec.CommandContext(t.Context(), "resize2fs", "-f", path).Run() == nil {
		t.Fatal("this resize2fs does not fail: choose sizes for which it does")
	}
	overwrite(t, path, 0, []byte("cleat: resize2fs began here\n"))
	before := readAt(t, path, 4096, 64*mib-4096)
	testkit.WantError(t, "a file system that resize2fs has damaged", grow(t, mkfs.Tools{}, path), nil, "copy")
	if string(readAt(t, path, 4096, 64*mib-4096)) != string(before) {
		t.Error("the damaged file system was written to")
	}
}

func TestForeignDamageIsNotRepaired(t *testing.T) {
	path, _ := ext4With(t, t.TempDir(), 64*mib)
	truncate(t, path, 256*mib)
	overwrite(t, path, 1150, []byte("torn"))
	before := readAt(t, path, 0, 64<<10)
	testkit.WantError(t, "a torn superblock", grow(t, mkfs.Tools{}, path), mkfs.ErrDamaged, "e2fsck -f")
	if string(readAt(t, path, 0, 64<<10)) != string(before) {
		t.Error("the damaged file system was written to")
	}
}

// debugfs sets the state that the kernel records after an error.
func markErrors(t *testing.T, path string, commands ...string) {
	t.Helper()
	for _, c := range append(commands, "set_super_value state 3") {
		run(t, "debugfs", "-w", "-R", c, path)
	}
}

func needsCheck(t *testing.T, path string) bool {
	t.Helper()
	return testkit.Value(mkfs.NeedsCheck(bytes.NewReader(readAt(t, path, 0, 128<<10))))(t)
}

func TestMarkedErrorsAreRepairedOrRefused(t *testing.T) {
	path, data := ext4With(t, t.TempDir(), 64*mib)
	markErrors(t, path, "set_super_value free_blocks_count 7")
	testkit.Must(t, grow(t, mkfs.Tools{}, path))
	checkGrown(t, path, 64*mib, data)
	if needsCheck(t, path) {
		t.Error("the file system is still marked as damaged")
	}
	// e2fsck -p does not make a new root directory.
	markErrors(t, path, "clri <2>")
	err := grow(t, mkfs.Tools{}, path)
	testkit.WantError(t, "a lost root directory", err, errs.Precondition, "manually", "copy")
	if !needsCheck(t, path) {
		t.Error("the mark was removed")
	}
}

// The check continues without its caller, and another is refused meanwhile.
func TestCheckGoesOnAndHoldsItsLock(t *testing.T) {
	path, data := ext4With(t, t.TempDir(), 64*mib)
	markErrors(t, path)
	fifo := filepath.Join(t.TempDir(), "go")
	testkit.Must(t, mkfifo(fifo))
	tools := fake(t, "e2fsck", `echo > `+fifo+`; read x < `+fifo+`; echo noise; /usr/sbin/e2fsck "$@"; echo > `+fifo)
	done := make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	go func() { done <- tools.CheckAndGrow(ctx, mkfs.GrowRequest{Device: path, Scratch: path + ".scratch"}) }()
	testkit.Value(os.ReadFile(fifo))(t) // it runs
	cancel()
	testkit.WantError(t, "the cancelled call", <-done, errs.Busy, "continues")
	testkit.WantError(t, "a second check beside a running one", grow(t, mkfs.Tools{}, path), errs.Busy)
	if runs, _ := mkfs.IsLockedByTool(path); !runs {
		t.Error("the running check is not seen")
	}
	testkit.Must(t, os.WriteFile(fifo, []byte("\n"), 0))
	testkit.Value(os.ReadFile(fifo))(t) // it has ended
	testkit.EventuallyNil(t, "the check has ended", func() error { return grow(t, mkfs.Tools{}, path) })
	checkGrown(t, path, 64*mib, data)
}
