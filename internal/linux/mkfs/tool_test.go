package mkfs_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/linux/kernelcall"
	"github.com/cleatproject/cleat/internal/linux/mkfs"
	"github.com/cleatproject/cleat/internal/linux/mkfs/mkfstest"
	"github.com/cleatproject/cleat/test/testkit"
)

func TestMain(m *testing.M) {
	kernelcall.Main()
	goleak.VerifyTestMain(m)
}

// fake replaces one tool by a shell script.
func fake(t *testing.T, tool, script string) mkfs.Tools {
	t.Helper()
	dir := t.TempDir()
	testkit.Must(t, os.WriteFile(filepath.Join(dir, tool), []byte("#!/bin/sh\n"+script), 0o700))
	return mkfs.Tools{Path: dir + ":" + mkfs.DefaultPath}
}

func TestMissingToolsAreNamed(t *testing.T) {
	none := mkfs.Tools{Path: t.TempDir()}
	for fs, want := range map[mkfs.Type][2]string{
		mkfs.Ext4:  {"mkfs.ext4", "e2fsprogs"},
		mkfs.XFS:   {"mkfs.xfs", "xfsprogs"},
		mkfs.Btrfs: {"mkfs.btrfs", "btrfs-progs"},
	} {
		path := mkfstest.File(t, t.TempDir(), "volume", mkfs.MinSize(fs))
		err := none.Make(t.Context(), mkfs.Request{Path: path, Type: fs})
		if !errors.Is(err, mkfs.ErrNoTool) || !errors.Is(err, errs.Precondition) ||
			!strings.Contains(err.Error(), want[0]) || !strings.Contains(err.Error(), want[1]) {
			t.Errorf("%s without tools: %v, want ErrNoTool that names %q", fs, err, want)
		}
	}
	path := mkfstest.File(t, t.TempDir(), "volume", 16*mib)
	mkfstest.Make(t, path, mkfs.Ext4)
	testkit.Must(t, os.Truncate(path, 64*mib))
	err := grow(t, none, path)
	if !errors.Is(err, mkfs.ErrNoTool) || !strings.Contains(err.Error(), "e2fsck") {
		t.Errorf("growing without tools: %v, want ErrNoTool that names e2fsck", err)
	}
}

// The script's child holds the output open; it must not keep Make waiting.
func TestCancelKillsTheToolAndItsChildren(t *testing.T) {
	pids := filepath.Join(t.TempDir(), "pids")
	tools := fake(t, "mkfs.xfs", "sleep 1000 & echo $$ $! > "+pids+".new; mv "+pids+".new "+pids+"; wait\n")
	path := mkfstest.File(t, t.TempDir(), "volume", 310*mib)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- tools.Make(ctx, mkfs.Request{Path: path, Type: mkfs.XFS}) }()
	var text []byte
	testkit.Eventually(t, "the tool starts", func() bool {
		text, _ = os.ReadFile(pids)
		return len(text) > 0
	})
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled mkfs: %v, want Canceled", err)
	}
	for _, field := range strings.Fields(string(text)) {
		pid := testkit.Value(strconv.Atoi(field))(t)
		// Zombies are dead, too.
		testkit.Eventually(t, "process "+field+" ends", func() bool { return !alive(pid) })
	}
	testkit.WantError(t, "mkfs with an ended context", tools.Make(ctx, mkfs.Request{Path: path, Type: mkfs.XFS}), context.Canceled)
}

func alive(pid int) bool {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return false
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	return !strings.HasPrefix(rest, "Z") && unix.Kill(pid, 0) == nil
}

func TestToolsSeeACleanWorld(t *testing.T) {
	t.Setenv("MKE2FS_CONFIG", "/nowhere")
	t.Setenv("LC_ALL", "de_DE.UTF-8")
	tools := fake(t, "mkfs.btrfs", `env; echo "cwd=$PWD"; echo "stdin=$(cat | wc -c)"; exit 3`)
	path := mkfstest.File(t, t.TempDir(), "volume", 310*mib)
	err := tools.Make(t.Context(), mkfs.Request{Path: path, Type: mkfs.Btrfs})
	if err == nil {
		t.Fatal("a tool that failed is taken for one that did not")
	}
	for _, want := range []string{"exit code 3", path, "LC_ALL=C;", "PATH=" + tools.Path, "cwd=/;", "stdin=0"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error %q lacks %q", err, want)
		}
	}
	if strings.Contains(err.Error(), "MKE2FS_CONFIG") {
		t.Errorf("the tool saw our environment: %v", err)
	}
}

func TestOutputIsBounded(t *testing.T) {
	tools := fake(t, "mkfs.btrfs", `echo first; yes | head -c 10000000; echo last >&2; exit 1`)
	path := mkfstest.File(t, t.TempDir(), "volume", 310*mib)
	err := tools.Make(t.Context(), mkfs.Request{Path: path, Type: mkfs.Btrfs})
	if err == nil || len(err.Error()) > 16<<10 || !strings.Contains(err.Error(), "first") || !strings.Contains(err.Error(), "last") {
		t.Errorf("an error of %d bytes, want the first and the last words and little between", len(err.Error()))
	}
}

func TestFalseSuccessIsDetected(t *testing.T) {
	for _, fs := range mkfs.Types() {
		path := mkfstest.File(t, t.TempDir(), "volume", 310*mib)
		if err := fake(t, "mkfs."+string(fs), "exit 0").Make(t.Context(), mkfs.Request{Path: path, Type: fs}); err == nil {
			t.Errorf("%s: no error though there is no file system", fs)
		}
	}
}

// New features of simulated releases are switched off.
func TestNewerToolsArePinnedToo(t *testing.T) {
	for fs, c := range map[mkfs.Type]struct {
		script    string
		want, not []string
	}{
		mkfs.XFS: {
			`[ $# = 0 ] && { echo "[-m crc=0|1,bigtime=0|1,metadir=0|1] [-i nrext64=0|1,
				exchange=0|1] [-n version=2|ci,ftype=0|1,parent=0|1]" >&2; exit 1; }; echo "$@"; exit 1`,
			[]string{"bigtime=1", "metadir=0", "nrext64=0,exchange=0", "-n version=2,parent=0"}, []string{"inobtcount"},
		},
		mkfs.Btrfs: {
			`[ "$2" = list-all ] && { cat >&2; exit 0; } <<.
Filesystem features available:
no-holes            - no explicit hole extents for files (compat=3.14, safe=4.0, default=5.15)
block-group-tree    - block group tree, more efficient block group tracking (compat=6.1, safe=6.1, default=6.19)
raid-stripe-tree    - raid stripe tree (compat=6.7)
squota              - squota support (simple accounting qgroups) (compat=6.7)
.
echo "$@"; exit 1`,
			[]string{"-O ^block-group-tree --"}, []string{"no-holes", "squota", "raid"},
		},
		mkfs.Ext4: {
			`[ "$1" = -V ] && { echo "mke2fs 1.46.2 (28-Feb-2021)" >&2; exit 0; }; echo "$@"; exit 1`,
			[]string{"-O none,", "-E nodiscard,resize=268435456 --"}, []string{"prezeroed", "orphan_file"},
		},
	} {
		path := mkfstest.File(t, t.TempDir(), "volume", 310*mib)
		err := fake(t, "mkfs."+string(fs), c.script).Make(t.Context(), mkfs.Request{Path: path, Type: fs})
		testkit.WantError(t, string(fs), err, nil, c.want...)
		for _, not := range c.not {
			if strings.Contains(err.Error(), not) {
				t.Errorf("%s was called so: %v; %q must not be in it", fs, err, not)
			}
		}
	}
}

// mkfs.btrfs fails if a loop device in the mount table was just detached. A
// tmpfs with a free loop device as its source is such a mount; the script
// unmounts it after the first failure.
func TestBtrfsIsMadeBesideAnUnmount(t *testing.T) {
	gone := filepath.Join(t.TempDir(), "gone")
	testkit.Must(t, os.Mkdir(gone, 0o700), unix.Mount(freeLoop(t), gone, "tmpfs", 0, ""))
	t.Cleanup(func() { _ = unix.Unmount(gone, unix.MNT_DETACH) })
	tools := fake(t, "mkfs.btrfs", "/usr/sbin/mkfs.btrfs \"$@\" && exit 0\numount "+gone+"\nexit 1\n")
	path := mkfstest.File(t, t.TempDir(), "volume", mkfs.MinSize(mkfs.Btrfs))
	testkit.Must(t, tools.Make(t.Context(), mkfs.Request{Path: path, Type: mkfs.Btrfs}))
	if mounted(t, gone) {
		t.Error("the tool did not fail once: this test must be adapted")
	}
}

// The number is the highest possible: the kernel uses the lowest first.
func freeLoop(t *testing.T) string {
	t.Helper()
	control := testkit.Open(os.OpenFile("/dev/loop-control", os.O_RDWR, 0))(t)
	number := 255 // above 255 the tool does not know a loop device
	for ; ; number-- {
		if number < 0 {
			t.Fatal("the loop devices 0 to 255 are all bound")
		}
		err := unix.IoctlSetInt(int(control.Fd()), unix.LOOP_CTL_ADD, number)
		if err == nil {
			t.Cleanup(func() {
				// EBUSY: open in another program.
				if err := unix.IoctlSetInt(int(control.Fd()), unix.LOOP_CTL_REMOVE, number); err != nil && !errors.Is(err, unix.EBUSY) {
					t.Error(err)
				}
			})
			break
		}
		if !errors.Is(err, unix.EEXIST) {
			t.Fatalf("LOOP_CTL_ADD %d: %v", number, err)
		}
		if _, err := os.Stat(fmt.Sprintf("/sys/block/loop%d/loop", number)); errors.Is(err, fs.ErrNotExist) {
			break
		}
	}
	path := filepath.Join(t.TempDir(), "loop")
	const major = 7
	testkit.Must(t, unix.Mknod(path, unix.S_IFBLK|0o600, int(unix.Mkdev(major, uint32(number)))))
	return path
}

func mounted(t *testing.T, dir string) bool {
	t.Helper()
	table := testkit.Value(os.ReadFile("/proc/self/mounts"))(t)
	return strings.Contains(string(table), " "+dir+" ")
}
