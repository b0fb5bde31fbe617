package node_test

import (
	"bytes"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/linux/mkfs"
	"github.com/cleatproject/cleat/internal/linux/mkfs/mkfstest"
	"github.com/cleatproject/cleat/internal/linux/xattr"
	"github.com/cleatproject/cleat/node"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/volume"
	"github.com/cleatproject/cleat/volume/access"
)

func TestStageRefuses(t *testing.T) {
	n := newNode(t)
	ext4 := n.staging("vol-ext4", mkfs.Ext4)
	block := n.staging("vol-block", "")
	for name, c := range map[string]struct {
		change func(*node.StageRequest)
		kind   errs.Kind
		word   string
	}{
		"another file system": {func(r *node.StageRequest) { r.Capability.FSType = "xfs" }, errs.Precondition, "ext4"},
		"no such volume":      {func(r *node.StageRequest) { r.Locator = access.File{Pool: poolUUID, Name: "volumes/none"} }, errs.NotFound, "volumes/none"},
		"no locator":          {func(r *node.StageRequest) { r.Locator = nil }, errs.Invalid, "volume_context"},
		"another pool": {func(r *node.StageRequest) {
			r.Locator = access.File{Pool: "11111111-1111-4111-8111-111111111111", Name: "volumes/vol-ext4"}
		}, errs.Precondition, "is not on this machine"},
		"no staging path":   {func(r *node.StageRequest) { r.Staging = n.path("none", false) }, errs.Precondition, "does not exist"},
		"staging is a file": {func(r *node.StageRequest) { r.Staging = n.file("vol-ext4") }, errs.Precondition, "not a directory"},
		"a block volume": {func(r *node.StageRequest) {
			r.Locator, r.Capability.FSType = block.Locator, ""
		}, errs.Precondition, "created as block"},
	} {
		t.Run(name, func(t *testing.T) {
			r := ext4
			c.change(&r)
			n.refused(n.Stage(t.Context(), r), c.kind, c.word)
			n.nothingStaged(r)
		})
	}
}

func TestStageAgainWithOtherParameters(t *testing.T) {
	n := newNode(t)
	s := n.staging("vol-again", mkfs.Ext4)
	n.stage(s)
	other := s
	other.Capability.Mode = volume.SingleNodeReaderOnly
	n.refused(n.Stage(t.Context(), other), errs.Exists, "access mode")
	other = s
	other.Staging = n.path("elsewhere", true)
	n.refused(n.Stage(t.Context(), other), errs.Precondition, s.Staging)
	other = s
	other.Locator = nil
	n.stage(other) // recorded
	n.unstage(s)
}

func TestForeignMount(t *testing.T) {
	n := newNode(t)
	s := n.staging("vol-covered", mkfs.Ext4)
	p := n.publishOf(s, "target")
	for _, path := range []string{s.Staging, n.path("target", true)} {
		n.ok("mount tmpfs", unix.Mount("tmpfs", path, "tmpfs", 0, "size=64k"))
	}
	n.refused(n.Stage(t.Context(), s), errs.Precondition, "tmpfs")
	n.nothingForeignLost(s.Staging)
	n.ok("unmount tmpfs", unix.Unmount(s.Staging, 0))
	n.stage(s)
	n.refused(n.Publish(t.Context(), p), errs.Precondition, "tmpfs")
	n.ok("unpublish", n.Unpublish(t.Context(), node.UnpublishRequest{Volume: s.Volume, Target: p.Target}))
	n.nothingForeignLost(p.Target)
	n.ok("unmount tmpfs", unix.Unmount(p.Target, 0))
	n.unstage(s)
}

func (n *testNode) nothingForeignLost(path string) {
	n.t.Helper()
	if n.mounts(path) != 1 {
		n.t.Errorf("%d mounts at %s, want the foreign one", n.mounts(path), path)
	}
}

// heldBy checks that an error names a holder, which can take a moment.
func (n *testNode) heldBy(call func() error, holder string) {
	n.t.Helper()
	var err error
	testkit.Eventually(n.t, "a whole search", func() bool {
		err = call()
		return err == nil || !strings.Contains(err.Error(), "not found in time")
	})
	n.refused(err, errs.Precondition, holder)
}

func TestBusy(t *testing.T) {
	n := newNode(t)
	s := n.staging("vol-busy", mkfs.Ext4)
	p := n.publishOf(s, "target")
	n.up(s, p)
	f, err := os.Create(filepath.Join(p.Target, "open"))
	n.ok("create", err)
	n.heldBy(func() error {
		return n.Unpublish(t.Context(), node.UnpublishRequest{Volume: s.Volume, Target: p.Target})
	}, "this process")
	n.ok("close", f.Close())
	n.unpublish(p)
	f, err = os.Create(filepath.Join(s.Staging, "open"))
	n.ok("create", err)
	n.heldBy(func() error {
		return n.Unstage(t.Context(), node.UnstageRequest{Volume: s.Volume, Staging: s.Staging})
	}, "this process")
	n.ok("close", f.Close())
	n.unstage(s)
	n.loopCount(0)
}

// A mount namespace with a copy of the mount keeps the device.
func TestHeldInAnotherNamespace(t *testing.T) {
	n := newNode(t)
	s := n.staging("vol-elsewhere", mkfs.Ext4)
	n.stage(s)
	release := holdMounts(t, n.dir)
	n.heldBy(func() error {
		return n.Unstage(t.Context(), node.UnstageRequest{Volume: s.Volume, Staging: s.Staging})
	}, "mount namespace")
	n.loopCount(1)
	release()
	n.unstage(s)
	n.loopCount(0)
}

// It releases the copies of parallel tests' mounts at once.
func holdMounts(t *testing.T, dir string) (release func()) {
	t.Helper()
	const script = `while read -r _ _ _ _ target _; do
		case "$target" in "$1"/*) ;; "$2"/*) umount -l "$target" 2>/dev/null;; esac
	done </proc/self/mountinfo; echo ready; read wait`
	cmd := exec.Command("unshare", "--mount", "--propagation", "private", "sh", "-c", script, "sh", dir, os.TempDir())
	in := testkit.Value(cmd.StdinPipe())(t)
	holder := testkit.Start(t, cmd)
	holder.WaitFor(t, "ready")
	release = func() {
		in.Close()
		_ = holder.Wait()
	}
	t.Cleanup(release)
	return release
}

func TestMountGroup(t *testing.T) {
	n := newNode(t)
	s := n.staging("vol-group", mkfs.Ext4)
	n.stage(s)
	dir := filepath.Join(s.Staging, "d")
	n.ok("mkdir", os.Mkdir(dir, 0o700))
	n.write(filepath.Join(dir, "f"), "x")
	n.ok("program", os.WriteFile(filepath.Join(dir, "x"), nil, 0o700))
	n.ok("link", os.Symlink("/etc/passwd", filepath.Join(dir, "l")))
	outside, err := os.Stat("/etc/passwd")
	n.ok("stat", err)
	n.unstage(s)

	for _, mode := range []volume.AccessMode{volume.SingleNodeWriter, volume.SingleNodeReaderOnly} {
		gid := map[volume.AccessMode]int{volume.SingleNodeWriter: 4242, volume.SingleNodeReaderOnly: 4343}[mode]
		s.Capability.MountGroup, s.Capability.Mode = &gid, mode
		n.stage(s)
		n.stage(s)
		for name, want := range map[string]fs.FileMode{
			".": fs.ModeDir | fs.ModeSetgid | 0o775, "d": fs.ModeDir | fs.ModeSetgid | 0o770, "d/f": 0o660, "d/x": 0o770, "d/l": fs.ModeSymlink | 0o777,
		} {
			n.checkGroup(filepath.Join(s.Staging, name), gid, want)
		}
		if mode == volume.SingleNodeWriter {
			n.write(filepath.Join(dir, "new"), "x")
			n.checkGroup(filepath.Join(dir, "new"), gid, 0o600)
			n.ok("remove", os.Remove(filepath.Join(dir, "new")))
		} else {
			n.readOnlyAt(filepath.Join(dir, "new"))
		}
		n.unstage(s)
	}
	after, err := os.Stat("/etc/passwd")
	n.ok("stat", err)
	if outside.Mode() != after.Mode() || outside.Sys().(*syscall.Stat_t).Gid != after.Sys().(*syscall.Stat_t).Gid {
		t.Error("a symbolic link was followed out of the volume")
	}
}

func (n *testNode) checkGroup(path string, gid int, mode fs.FileMode) {
	n.t.Helper()
	info, err := os.Lstat(path)
	n.ok("stat", err)
	if got := int(info.Sys().(*syscall.Stat_t).Gid); got != gid || info.Mode() != mode {
		n.t.Errorf("%s: group %d, mode %v; want %d, %v", path, got, info.Mode(), gid, mode)
	}
}

// Immutable files keep their group, all others get it.
func TestMountGroupOfImmutableFiles(t *testing.T) {
	log := testkit.NewLog(t)
	n := newNode(t, func(n *testNode) { n.config.Logger = log.Logger() })
	s := n.staging("vol-immutable", mkfs.Ext4)
	n.stage(s)
	dir := filepath.Join(s.Staging, "d")
	n.ok("mkdir", os.Mkdir(dir, 0o700))
	for _, name := range []string{"a", "fixed", "z"} {
		n.write(filepath.Join(dir, name), "x")
	}
	n.unstage(s)
	gid := 4242
	for _, fixed := range []string{"d/fixed", "d"} {
		n.stage(s)
		f := testkit.Value(os.Open(filepath.Join(s.Staging, fixed)))(t)
		const immutable = 0x10 // FS_IMMUTABLE_FL
		testkit.Must(t, unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, immutable), f.Close())
		n.unstage(s)
	}
	s.Capability.MountGroup = &gid
	n.stage(s)
	for _, name := range []string{"d/a", "d/z"} {
		n.checkGroup(filepath.Join(s.Staging, name), gid, 0o660)
	}
	n.checkGroup(s.Staging, gid, fs.ModeDir|fs.ModeSetgid|0o775)
	n.checkGroup(filepath.Join(dir, "fixed"), os.Getgid(), 0o600)
	if line := log.WaitFor(t, "mount group not applied to all files"); !strings.Contains(line, "count=2") || !strings.Contains(line, "volume=vol-immutable") {
		t.Errorf("logged %s", line)
	}
	n.unstage(s)
}

// The root is changed last, so an interrupted walk does not look complete.
func TestInterruptedMountGroupContinues(t *testing.T) {
	dir := t.TempDir()
	for i := range 3 {
		testkit.Must(t, os.MkdirAll(filepath.Join(dir, string(rune('a'+i)), "deep"), 0o700))
	}
	canceled := testkit.Canceled(t)
	testkit.WantError(t, "a walk whose context has ended should fail", node.Give(canceled, dir, 4242), nil)
	if given, err := node.IsGiven(dir, 4242); err != nil || given {
		t.Errorf("applied after an interrupted walk: %t, %v", given, err)
	}
	testkit.Must(t, node.Give(t.Context(), dir, 4242))
	if given, err := node.IsGiven(dir, 4242); err != nil || !given {
		t.Errorf("group applied after the walk: %t, %v", given, err)
	}
}

// A clone of an XFS has the same UUID; both are used at once.
func TestCloneWithSameUUID(t *testing.T) {
	n := newNode(t)
	s := n.staging("vol-source", mkfs.XFS)
	twin := s
	twin.Volume, twin.Staging = "vol-twin", n.path("staging-twin", true)
	twin.Locator = access.File{Pool: poolUUID, Name: "volumes/vol-twin"}
	testkit.Run(t, "cp", "--sparse=always", n.file(s.Volume), n.file(twin.Volume))
	n.stage(s)
	n.stage(twin)
	n.write(filepath.Join(s.Staging, "only"), "in the source")
	n.gone(filepath.Join(twin.Staging, "only"))
	n.loopCount(2)
	n.unstage(s)
	n.unstage(twin)
}

func TestExpandInUse(t *testing.T) {
	for _, fs := range mkfs.Types() {
		t.Run(string(fs), func(t *testing.T) {
			n := newNode(t, withGrower)
			s := n.staging("vol-grow", fs)
			p := n.publishOf(s, "target")
			p.ReadOnly = true // it grows at the staging path
			n.stage(s)
			want := 2 * size[fs]
			expand := func(path string) error {
				got, err := n.Expand(t.Context(), node.ExpandRequest{Volume: s.Volume, Path: path, Size: volume.SizeRange{Required: want}})
				if err == nil && got != want {
					t.Errorf("expand at %s: %d, want %d", path, got, want)
				}
				return err
			}
			err := expand(s.Staging)
			n.publish(p)
			if fs == mkfs.Ext4 && !mkfstest.HasSysResource(t) {
				n.refused(err, errs.Precondition, "next stage", "CAP_SYS_RESOURCE")
				n.down(s, p)
				n.up(s, p)
			} else if err != nil {
				t.Fatal(err)
			}
			n.ok("expand again", expand(s.Staging))
			n.ok("expand by the target", expand(p.Target))
			st, err := n.Stats(t.Context(), node.StatsRequest{Volume: s.Volume, Path: p.Target})
			if err != nil || st.Bytes.Total < want*3/4 {
				t.Errorf("after the growth to %d: %+v, %v", want, st, err)
			}
			wrong := volume.Capability{Block: true}
			_, err = n.Expand(t.Context(), node.ExpandRequest{Volume: s.Volume, Path: p.Target, Capability: &wrong})
			n.refused(err, errs.Invalid, "block device")
			n.down(s, p)
		})
	}
}

// A growth by a large factor is never refused.
func TestManyGroupsOfXFSAreReported(t *testing.T) {
	var log bytes.Buffer
	n := newNode(t, func(n *testNode) { n.config.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
	s := n.staging("v", mkfs.XFS)
	for _, times := range []int64{2, 41} {
		log.Reset()
		testkit.Must(t, os.Truncate(n.file("v"), times*size[mkfs.XFS]))
		n.stage(s)
		n.unstage(s)
		if got := strings.Contains(log.String(), "allocation groups"); got != (times > 40) {
			t.Errorf("%d times the size: warned %t\n%s", times, got, &log)
		}
	}
}

// A volume that the controller expanded fills its size when staged.
func TestStageGrows(t *testing.T) {
	for _, fs := range mkfs.Types() {
		t.Run(string(fs), func(t *testing.T) {
			n := newNode(t)
			s := n.staging("vol-grown", fs)
			n.ok("truncate", os.Truncate(n.file(s.Volume), 2*size[fs]))
			n.stage(s)
			st, err := n.Stats(t.Context(), node.StatsRequest{Volume: s.Volume, Path: s.Staging})
			if err != nil || st.Bytes.Total < 2*size[fs]*3/4 {
				t.Errorf("after the growth to %d: %+v, %v", 2*size[fs], st, err)
			}
			_, err = n.Expand(t.Context(), node.ExpandRequest{Volume: s.Volume, Path: s.Staging, Size: volume.SizeRange{Required: 4 * size[fs]}})
			n.refused(err, errs.Precondition, "ControllerExpandVolume first")
			n.unstage(s)
		})
	}
}

func (n *testNode) attribute(id volume.ID, name, value string) {
	n.t.Helper()
	f, err := os.OpenFile(n.file(id), os.O_RDWR, 0)
	n.ok("open", err)
	defer f.Close()
	n.ok("set attribute", xattr.Set(f, xattr.Prefix+name, value))
}

func TestTrimDue(t *testing.T) {
	n := newNode(t)
	s := n.staging("vol-trim", mkfs.Ext4)
	n.attribute(s.Volume, "trim-interval", "1h")
	n.stage(s)
	fill := func() {
		f, err := os.Create(s.Staging + "/fill")
		n.ok("create", err)
		_, err = f.Write(make([]byte, 8*mib))
		n.ok("write", err)
		n.ok("sync", f.Sync())
		n.ok("close", f.Close())
		n.ok("remove", os.Remove(f.Name()))
		dir, err := os.Open(s.Staging)
		n.ok("open", err)
		n.ok("sync", unix.Syncfs(int(dir.Fd()))) // frees the blocks
		n.ok("close", dir.Close())
	}
	fill()
	before := mkfstest.Allocated(t, n.file(s.Volume))
	trim := func(want bool) {
		t.Helper()
		due, err := n.TrimIfDue(t.Context(), s.Volume, time.Now())
		n.ok("trim", err)
		if due != want {
			t.Errorf("due: %t, want %t", due, want)
		}
	}
	trim(false)
	if got := mkfstest.Allocated(t, n.file(s.Volume)); got < before {
		t.Errorf("trimmed before its time: %d bytes, before %d", got, before)
	}
	n.attribute(s.Volume, "trim-interval", "1ns") // while staged
	trim(true)
	if got := mkfstest.Allocated(t, n.file(s.Volume)); got > before-7*mib {
		t.Errorf("after the trim the file takes %d bytes, before %d", got, before)
	}
	n.unstage(s)
	trim(false)
}
