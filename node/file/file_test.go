package file_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/linux/kernelcall"
	"github.com/cleatproject/cleat/internal/linux/loop"
	"github.com/cleatproject/cleat/internal/linux/mount"
	"github.com/cleatproject/cleat/internal/linux/xattr"
	"github.com/cleatproject/cleat/internal/poolfile"
	"github.com/cleatproject/cleat/node"
	"github.com/cleatproject/cleat/node/file"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/test/testkit/scratchfs"
	"github.com/cleatproject/cleat/volume/access"
)

func TestMain(m *testing.M) {
	kernelcall.Main()
	goleak.VerifyTestMain(m)
}

const (
	uuid = "0f0e0d0c-0b0a-4908-8706-050403020100"
	size = 1 << 20
)

type pool struct {
	*file.Attacher
	t   *testing.T
	dir string
}

func newPool(t *testing.T) pool {
	t.Helper()
	dir := testkit.Value(filepath.EvalSymlinks(t.TempDir()))(t)
	p := pool{Attacher: file.New(dir), t: t, dir: dir}
	testkit.Must(p.t, os.Mkdir(filepath.Join(dir, "volumes"), 0o700))
	testkit.Must(p.t, os.WriteFile(filepath.Join(dir, "pool.json"), []byte(`{"version":1,"uuid":"`+uuid+`"}`), 0o600))
	t.Cleanup(func() {
		all := testkit.Value(loop.List(context.Background()))(p.t)
		for _, d := range all {
			if name, _, err := loop.BackingName(d); err == nil && strings.HasPrefix(name, dir+"/") {
				t.Errorf("left over: %s on %s", d.Path, name)
				_ = loop.Detach(context.Background(), d)
			}
		}
	})
	return p
}

func (p pool) path(id string) string { return filepath.Join(p.dir, "volumes", id) }

func (p pool) volume(id string) node.Target {
	p.t.Helper()
	testkit.Must(p.t, os.WriteFile(p.path(id), nil, 0o600), os.Truncate(p.path(id), size))
	return node.Target{Locator: access.File{Pool: uuid, Name: "volumes/" + id}}
}

// grow resizes a volume's file, as an engine does.
func (p pool) grow(id string, size int64) {
	p.t.Helper()
	testkit.Must(p.t, os.Truncate(p.path(id), size))
	f := testkit.Value(os.OpenFile(p.path(id), os.O_RDWR, 0))(p.t)
	defer f.Close()
	testkit.Must(p.t, poolfile.WriteSize(f, size))
}

func (p pool) set(id, name, value string) {
	p.t.Helper()
	f := testkit.Value(os.OpenFile(p.path(id), os.O_RDWR, 0))(p.t)
	defer f.Close()
	testkit.Must(p.t, xattr.Set(f, xattr.Prefix+name, value))
}

func (p pool) attach(t node.Target, use node.Use) node.Device {
	p.t.Helper()
	a := testkit.Value(p.Attach(p.t.Context(), t, use))(p.t)
	testkit.Must(p.t, a.File.Close())
	if a.Size != size {
		p.t.Errorf("size %d, want %d", a.Size, size)
	}
	return a.Device
}

func (p pool) attachRefused(t node.Target, kind error, word string) {
	p.t.Helper()
	_, err := p.Attach(p.t.Context(), t, node.Use{})
	p.refused(err, kind, word)
}

func (p pool) refused(err, kind error, word string) {
	p.t.Helper()
	if !errors.Is(err, kind) || !strings.Contains(err.Error(), word) {
		p.t.Errorf("got %v, want %v and the word %q", err, kind, word)
	}
}

// A second device would show other data.
func TestTwoLoopsAreRefused(t *testing.T) {
	p := newPool(t)
	v := p.volume("v")
	for range 2 {
		f := testkit.Value(os.OpenFile(p.path("v"), os.O_RDWR, 0))(p.t)
		_, device, err := loop.Attach(t.Context(), loop.Config{File: f})
		testkit.Must(p.t, err)
		testkit.Must(p.t, device.Close(), f.Close())
	}
	p.attachRefused(v, errs.Precondition, "2 loop devices")
	testkit.Must(p.t, p.Detach(t.Context(), v))
}

func TestAttributes(t *testing.T) {
	p := newPool(t)
	v := p.volume("v")
	p.set("v", "read-ahead-kib", "2048")
	p.set("v", "provisioning", "thick")
	p.set("v", "trim-interval", "24h")
	d := p.attach(v, node.Use{Block: true})
	p.queue(d, "read_ahead_kb", "2048")
	p.queue(d, "discard_max_bytes", "0")
	if view, err := p.Inspect(t.Context(), v); err != nil || view.TrimInterval != 0 {
		t.Errorf("trim of a thick volume: %+v, %v", view, err)
	}
	p.set("v", "provisioning", "thin")
	p.attach(v, node.Use{Block: true}) // even if that needs a new device
	testkit.Must(p.t, p.Detach(t.Context(), v))
	d = p.attach(v, node.Use{Block: true})
	if got := p.read(d, "discard_max_bytes"); got == "0" {
		t.Error("a thin volume does not accept discards")
	}
	if view, err := p.Inspect(t.Context(), v); err != nil || view.TrimInterval != 24*time.Hour {
		t.Errorf("trim interval: %+v, %v", view, err)
	}
	testkit.Must(p.t, p.Detach(t.Context(), v))
	p.set("v", "read-ahead-kib", "much")
	p.attachRefused(v, errs.Internal, "much")
}

func TestTruncated(t *testing.T) {
	p := newPool(t)
	v := p.volume("v")
	p.set("v", "size", strconv.Itoa(size))
	p.attach(v, node.Use{Block: true})
	testkit.Must(p.t, p.Detach(t.Context(), v))
	p.set("v", "size", strconv.Itoa(size+4096))
	p.attachRefused(v, errs.Precondition, "truncated to 1048576 of 1052672 bytes")
	p.set("v", "size", "much")
	p.attachRefused(v, errs.Internal, "much")
}

func (p pool) read(d node.Device, name string) string {
	p.t.Helper()
	text := testkit.Value(os.ReadFile(filepath.Join("/sys/block", filepath.Base(d.Path), "queue", name)))(p.t)
	return strings.TrimSpace(string(text))
}

func (p pool) queue(d node.Device, name, want string) {
	p.t.Helper()
	if got := p.read(d, name); got != want {
		p.t.Errorf("%s is %s, want %s", name, got, want)
	}
}

func TestCopyRefusesAttach(t *testing.T) {
	p := newPool(t)
	v := p.volume("v")
	p.set("v", "copying", "snap-1")
	p.attachRefused(v, errs.Busy, "snap-1")
}

// For writing, the error is not retryable.
func TestReadOnlyPool(t *testing.T) {
	p := newPool(t)
	v := p.volume("v")
	testkit.Must(p.t, mount.Bind(t.Context(), p.dir, p.dir, mount.BindOptions{ReadOnly: true}))
	t.Cleanup(func() { testkit.Must(p.t, mount.Unmount(context.Background(), p.dir)) })
	p.attachRefused(v, errs.Precondition, "mount it read-write")
	p.attach(v, node.Use{Block: true, ReadOnly: true})
	testkit.Must(p.t, p.Detach(t.Context(), v))
}

func TestNames(t *testing.T) {
	p := newPool(t)
	p.volume("v")
	testkit.Must(p.t, os.WriteFile(filepath.Join(p.dir, "..", "outside"), make([]byte, size), 0o600))
	t.Cleanup(func() { os.Remove(filepath.Join(p.dir, "..", "outside")) })
	testkit.Must(p.t, os.Symlink("v", p.path("link")), os.Symlink("../../outside", p.path("away")))
	testkit.Must(p.t, os.Mkdir(p.path("dir"), 0o700))
	for name, kind := range map[string]errs.Kind{
		"volumes/none": errs.NotFound, "volumes/v/below": errs.Invalid, "volumes/link": errs.Precondition,
		"volumes/away": errs.Precondition, "volumes/dir": errs.Precondition, "../outside": errs.Invalid,
		"pool.json": errs.Invalid, "engine.db": errs.Invalid, "snapshots/s": errs.Invalid, "incoming/v": errs.Invalid,
	} {
		target := node.Target{Locator: access.File{Pool: uuid, Name: name}}
		if _, err := p.Attach(t.Context(), target, node.Use{}); !errors.Is(err, kind) {
			t.Errorf("%s: %v, want kind %q", name, err, kind)
		}
		if view, err := p.Inspect(t.Context(), target); kind == errs.Precondition && (err != nil || view.Presence != node.Foreign) {
			t.Errorf("Inspect of %s: %+v, %v", name, view, err)
		}
	}
}

func TestPool(t *testing.T) {
	p := newPool(t)
	v := p.volume("v")
	other := access.File{Pool: "11111111-1111-4111-8111-111111111111", Name: "volumes/v"}
	_, err := p.Attach(t.Context(), node.Target{Locator: other}, node.Use{})
	p.refused(err, errs.Precondition, "pool 11111111-1111-4111-8111-111111111111 is not on this machine")
	_, err = file.New(p.path("none")).Attach(t.Context(), v, node.Use{})
	p.refused(err, errs.Precondition, "is not on this machine")
	testkit.Must(t, os.MkdirAll(p.path("other"), 0o700), os.WriteFile(p.path("other/pool.json"), []byte(`{"version":1,"uuid":"`+other.Pool+`"}`), 0o600))
	_, err = file.New(p.path("other")).Attach(t.Context(), v, node.Use{})
	p.refused(err, errs.Precondition, "contains pool "+other.Pool)
	_, err = file.New(filepath.Join(p.dir, "volumes")).Attach(t.Context(), v, node.Use{})
	p.refused(err, errs.Precondition, "is not on this machine")
	_, err = file.New(p.path("none")).Held(t.Context())
	p.refused(err, errs.Unavailable, "open the pool")
	for _, dir := range []string{p.path("none"), filepath.Join(p.dir, "volumes")} {
		if view, err := file.New(dir).Inspect(t.Context(), v); err != nil || view.Presence != node.Unreachable || view.Problem == nil {
			t.Errorf("Inspect without the pool: %+v, %v", view, err)
		}
	}
	testkit.Must(p.t, os.WriteFile(filepath.Join(p.dir, "pool.json"), []byte("{"), 0o600))
	p.attachRefused(v, errs.Precondition, "pool.json")
}

// A recorded backing that is now another file's does not match, also if that file is
// deleted. It has another name, or the same one in another pool, as in a copy of the pool.
func TestReusedInode(t *testing.T) {
	for name, c := range map[string]struct {
		name               string
		otherPool, deleted bool
	}{
		"of another name":                     {"mine", false, false},
		"of another name, deleted":            {"mine", false, true},
		"of the same name in another pool":    {"old", true, false},
		"of that in another pool and deleted": {"old", true, true},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPool(t)
			of := p
			if c.otherPool {
				of = newPool(t)
			}
			old, mine := p.volume("old"), of.volume(c.name)
			old.Device = of.attach(mine, node.Use{Block: true}) // with the inode of "old"
			testkit.Must(t, os.Remove(p.path("old")))
			if mine.Device = old.Device; c.deleted {
				testkit.Must(t, os.Remove(of.path(c.name)))
			}
			view, err := p.Inspect(t.Context(), old)
			if err != nil || !view.Device.IsZero() || view.Presence != node.Missing {
				t.Errorf("the device of another volume is reported: %+v, %v", view, err)
			}
			testkit.Must(t, p.Detach(t.Context(), old))
			if view, err := of.Inspect(t.Context(), mine); err != nil || view.Device != old.Device {
				t.Errorf("the device of another volume was detached: %+v, %v", view, err)
			}
			testkit.Must(t, of.Detach(t.Context(), mine))
		})
	}
}

// A file that is replaced while it is opened is not missing.
func TestInspectDuringReplacement(t *testing.T) {
	p := newPool(t)
	v := p.volume("v")
	p.volume("new")
	testkit.Go(t, func(ctx context.Context) error {
		var err error
		for err == nil && ctx.Err() == nil {
			err = unix.Renameat2(unix.AT_FDCWD, p.path("new"), unix.AT_FDCWD, p.path("v"), unix.RENAME_EXCHANGE)
		}
		return err
	})
	testkit.Eventually(t, "a replacement between two calls", func() bool {
		view, err := p.Inspect(t.Context(), v)
		if err == nil && view.Presence != node.Present {
			t.Fatalf("Inspect: %+v", view)
		}
		return errors.Is(err, errs.Busy)
	})
}

// While the pool cannot be read it is not known whose file has the inode.
func TestReusedInodeOfUnreadablePool(t *testing.T) {
	p := newPool(t)
	old, mine := p.volume("old"), p.volume("mine")
	old.Device = p.attach(mine, node.Use{Block: true}) // with the inode of "old"
	testkit.Must(t, os.Remove(p.path("old")))
	identity := filepath.Join(p.dir, poolfile.Identity)
	testkit.Must(t, os.Rename(identity, identity+".was"))
	testkit.WantError(t, "Inspect", testkit.Err(p.Inspect(t.Context(), old)), errs.Precondition, "is not on this machine")
	testkit.WantError(t, "Detach", p.Detach(t.Context(), old), errs.Precondition, "is not on this machine")
	testkit.Must(t, os.Rename(identity+".was", identity))
	if view, err := p.Inspect(t.Context(), mine); err != nil || view.Device != old.Device {
		t.Errorf("the device of another volume was detached: %+v, %v", view, err)
	}
	testkit.Must(t, p.Detach(t.Context(), old), p.Detach(t.Context(), mine))
}

// A pool's file system shuts down under a device in use, which is still
// reported, and detached after an error about lost data. Other pools are not
// affected.
func TestPoolFilesystemShutdown(t *testing.T) {
	dir := scratchfs.Mount(t, "xfs")
	dead := pool{Attacher: file.New(dir), t: t, dir: dir}
	testkit.Must(dead.t, os.Mkdir(filepath.Join(dir, "volumes"), 0o700))
	testkit.Must(dead.t, os.WriteFile(filepath.Join(dir, "pool.json"), []byte(`{"version":1,"uuid":"`+uuid+`"}`), 0o600))
	v := dead.volume("v")
	v.Device = dead.attach(v, node.Use{Block: true})
	f := testkit.Value(os.OpenFile(v.Device.Path, os.O_WRONLY, 0))(dead.t)
	testkit.Value(f.Write(make([]byte, 1<<16)))(dead.t)
	listed := slices.DeleteFunc(testkit.Value(loop.List(t.Context()))(t), func(d loop.Device) bool { return d.Path != v.Device.Path })
	scratchfs.ShutDown(t, dir)
	testkit.Must(dead.t, f.Close())
	// Deletions of other volumes look at all devices.
	if name, deleted, err := loop.BackingName(listed[0]); err != nil || deleted || filepath.Base(name) != "v" {
		t.Errorf("the name of a device that was listed before: %q, %t, %v", name, deleted, err)
	}

	view, err := dead.Inspect(t.Context(), v)
	if err != nil || view.Device != v.Device || view.Presence != node.Unreachable {
		t.Errorf("the device on a dead pool: %+v, %v", view, err)
	}
	unresponsive := slices.DeleteFunc(testkit.Value(loop.List(t.Context()))(t), func(d loop.Device) bool { return d.Path != v.Device.Path })
	if len(unresponsive) != 1 || filepath.Base(unresponsive[0].Silent) != "v" {
		t.Errorf("the loop device on a dead pool: %+v", unresponsive)
	}
	testkit.WantError(t, "Held of a dead pool", testkit.Err(dead.Held(t.Context())), nil)

	living := newPool(t)
	other := living.volume("v")
	other.Device = living.attach(other, node.Use{Block: true})
	if held, err := living.Held(t.Context()); err != nil || len(held) != 1 {
		t.Errorf("another pool holds %v, %v; want its one device", held, err)
	}
	testkit.Must(living.t, living.Detach(t.Context(), other))

	testkit.WantError(t, "Detach with data that cannot be written", dead.Detach(t.Context(), v), unix.EIO, "is lost")
	testkit.Must(dead.t, dead.Detach(t.Context(), v))
	if view, err := dead.Inspect(t.Context(), v); err != nil || !view.Device.IsZero() {
		t.Errorf("after detach: %+v, %v", view, err)
	}
}

// On a full pool data of a thin block volume is lost: the first Detach says so,
// the next one detaches.
func TestDetachOnFullPool(t *testing.T) {
	dir := scratchfs.Mount(t, "xfs")
	p := pool{Attacher: file.New(dir), t: t, dir: dir}
	testkit.Must(t, os.Mkdir(filepath.Join(dir, "volumes"), 0o700))
	testkit.Must(t, os.WriteFile(filepath.Join(dir, "pool.json"), []byte(`{"version":1,"uuid":"`+uuid+`"}`), 0o600))
	v := p.volume("v")
	v.Device = p.attach(v, node.Use{Block: true})
	ballast := testkit.Open(os.Create(filepath.Join(dir, "ballast")))(t)
	for at, chunk := int64(0), int64(scratchfs.Size); chunk >= 4096; {
		if err := unix.Fallocate(int(ballast.Fd()), 0, at, chunk); err != nil {
			chunk /= 2
			continue
		}
		at += chunk
	}
	f := testkit.Value(os.OpenFile(v.Device.Path, os.O_WRONLY, 0))(t)
	testkit.Value(f.Write(make([]byte, 1<<16)))(t)
	testkit.Must(t, f.Close())
	testkit.WantError(t, "Detach with data that cannot be written", p.Detach(t.Context(), v), errs.Exhausted, "is full", "is lost")
	testkit.Must(t, p.Detach(t.Context(), v))
}

// A device whose name cannot be read is not left out: a list without it, and a
// Detach that did not find it, would say that nothing is attached.
func TestDevicesWithoutDescriptors(t *testing.T) {
	p := newPool(t)
	kept, removed := p.volume("kept"), p.volume("removed")
	kept.Device, removed.Device = p.attach(kept, node.Use{Block: true}), p.attach(removed, node.Use{Block: true})
	testkit.Must(t, os.Remove(p.path("removed")))
	for left, detached := 0, false; !detached; left++ {
		release := testkit.LimitFiles(t, left)
		held, heldErr := p.Held(t.Context())
		err := p.Detach(t.Context(), removed)
		release()
		if heldErr == nil && len(held) != 2 {
			t.Errorf("with %d descriptors, %d devices are held, want 2 or an error", left, len(held))
		}
		info := testkit.Value(p.Inspect(t.Context(), removed))(t)
		if detached = info.Device.IsZero(); err == nil && !detached {
			t.Errorf("with %d descriptors, Detach has left %s without an error", left, info.Device.Path)
		}
	}
	testkit.Must(t, p.Detach(t.Context(), kept))
}
