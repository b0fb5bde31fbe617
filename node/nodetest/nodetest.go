// Package nodetest is the conformance suite of node.Attacher, by itself and
// through a node.Manager. An attacher's test calls Run with a function that
// makes a Rig.
package nodetest

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/linux/blockdev"
	"github.com/cleatproject/cleat/node"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/volume"
	"github.com/cleatproject/cleat/volume/access"
)

// Rig is storage for one test's volumes, with changes to it behind the
// attacher's back. Functions end the test if they fail. A nil function is
// impossible with the protocol; its tests log that.
type Rig struct {
	// New returns an Attacher like another process's: it shares only the
	// storage.
	New func() node.Attacher
	// Create creates a volume of zeros, also under a deleted one's id.
	Create func(id volume.ID, size int64) access.Access
	// Also an attached volume.
	Delete func(id volume.ID)
	// Grow enlarges a volume, also an attached one.
	Grow func(id volume.ID, size int64)

	// Unseen: the attacher cannot see the storage without attaching, and a
	// volume's locator identifies it.
	Unseen bool
	// Vanishes: the device of a deleted volume ends with the volume.
	Vanishes bool
	// Directories: volumes are directories of a shared file system, and sizes
	// their quotas. A file in them is written instead of the device.
	Directories bool
	// Truncate makes a volume shorter than its size.
	Truncate func(id volume.ID)
	// CreateForeign creates a non-volume under a volume's name.
	CreateForeign func(id volume.ID) access.Access
	// Disconnect makes the storage unreachable until reconnect.
	Disconnect func() (reconnect func())
	// Fence ends the device of an attached volume: its client is fenced, and does
	// not return. Another device of the volume works.
	Fence func(id volume.ID)
	// Claim locks a volume like an engine that snapshots or deletes it. It
	// fails at once while an attacher holds Lock.
	Claim func(id volume.ID) (release func(), err error)
}

const size = 16 << 20

// Run tests an attacher. Each part calls newRig for its own storage, which
// t.Cleanup removes.
func Run(t *testing.T, newRig func(t *testing.T) Rig) {
	for _, part := range []struct {
		name string
		run  func(*trial)
	}{
		{"Attach", testAttach},
		{"AttachConcurrently", testAttachConcurrently},
		{"Use", ofDevices(testUse)},
		{"MountUse", testMountUse},
		{"Busy", testBusy},
		{"Resize", testResize},
		{"SetReadOnly", ofDevices(testSetReadOnly)},
		{"Lock", testLock},
		{"Held", testHeld},
		{"Presence", testPresence},
		{"Deleted", testDeleted},
		{"Replaced", testReplaced},
		{"Unreachable", testUnreachable},
		{"Fenced", testFenced},
		{"ReusedNumber", testReusedNumber},
		{"FilesystemVolume", testFilesystemVolume},
		{"BlockVolume", ofDevices(testBlockVolume)},
		{"DeletedWhilePublished", testDeletedWhilePublished},
		{"Orphans", testOrphans},
	} {
		t.Run(part.name, func(t *testing.T) { part.run(newTrial(t, newRig)) })
	}
}

// ofDevices skips a part about block devices for directories.
func ofDevices(part func(*trial)) func(*trial) {
	return func(t *trial) {
		if t.Directories {
			t.wantKind("Attach for block use", testkit.Err(t.Attacher.Attach(t.Context(), t.volume("v"), node.Use{Block: true})), errs.Invalid)
			t.Log("not tested: the volumes are directories")
			return
		}
		part(t)
	}
}

type trial struct {
	*testing.T
	Rig
	node.Attacher
	newRig func(*testing.T) Rig
}

// The storage must have no device at the end.
func newTrial(t *testing.T, newRig func(*testing.T) Rig) *trial {
	rig := newRig(t)
	n := &trial{T: t, Rig: rig, Attacher: rig.New(), newRig: newRig}
	t.Cleanup(func() {
		ctx := testkit.Context(t)
		held, err := n.New().Held(ctx)
		if err != nil {
			t.Errorf("Held at the end of the test: %v", err)
		}
		for _, h := range held {
			if !t.Failed() {
				t.Errorf("left attached: %+v", h)
			}
			if err := n.Detach(ctx, node.Target{Locator: h.Locator, Device: h.Device}); err != nil {
				t.Log(err)
			}
		}
	})
	return n
}

// volume creates a volume that was never attached.
func (t *trial) volume(id volume.ID) node.Target {
	return node.Target{Locator: t.Create(id, size), Volume: id}
}

// attached creates and attaches a volume. The target has only Backing, as known
// to a caller killed during Attach.
func (t *trial) attached(id volume.ID) (node.Target, node.Device) {
	t.Helper()
	v := t.volume(id)
	v.Device.Backing = t.inspect(v).Backing
	return v, t.attach(v, node.Use{Block: true})
}

// Attach is the attacher's, for a use that it has.
func (t *trial) Attach(ctx context.Context, v node.Target, use node.Use) (*node.Attachment, error) {
	use.Block = use.Block && !t.Directories
	return t.Attacher.Attach(ctx, v, use)
}

// open attaches a volume, and leaves the device open.
func (t *trial) open(v node.Target, use node.Use) (node.Device, *os.File) {
	t.Helper()
	a := testkit.Value(t.Attach(t.Context(), v, use))(t)
	if a.File == nil {
		t.Fatalf("Attach returns no open file: %+v", a)
	}
	if t.Directories {
		t.checkDirectory(a)
		return a.Device, a.File
	}
	major, minor, err := blockdev.RdevOf(a.File)
	testkit.Must(t, err)
	nodeMajor, nodeMinor, err := blockdev.Rdev(a.Device.Path)
	testkit.Must(t, err)
	if d := a.Device; d.Backing == "" || major != d.Major || minor != d.Minor || nodeMajor != d.Major || nodeMinor != d.Minor {
		t.Errorf("Attach returns %+v; File is %d:%d, the path is %d:%d", d, major, minor, nodeMajor, nodeMinor)
	}
	if have := testkit.Value(blockdev.Size(a.File))(t); a.Size != have {
		t.Errorf("Attach returns the size %d, the device has %d", a.Size, have)
	}
	return a.Device, a.File
}

func (t *trial) checkDirectory(a *node.Attachment) {
	t.Helper()
	var file, path unix.Stat_t
	testkit.Must(t, unix.Fstat(int(a.File.Fd()), &file), unix.Stat(a.Device.Path, &path))
	d := a.Device
	if d.Backing == "" || !d.IsDirectory() || file.Dev != unix.Mkdev(0, d.Minor) || path.Dev != file.Dev || path.Ino != file.Ino || a.Size < size {
		t.Errorf("Attach returns %+v, size %d; File is %d on %#x, the path is %d on %#x", d, a.Size, file.Ino, file.Dev, path.Ino, path.Dev)
	}
}

// attach is open with a closed device.
func (t *trial) attach(v node.Target, use node.Use) node.Device {
	t.Helper()
	d, f := t.open(v, use)
	testkit.Must(t, f.Close())
	return d
}

func (t *trial) detach(v node.Target) {
	t.Helper()
	testkit.Must(t, t.Detach(t.Context(), v))
}

func (t *trial) inspect(v node.Target) node.Info {
	t.Helper()
	return testkit.Value(t.Inspect(t.Context(), v))(t)
}

// wantAttached checks Inspect; a zero Device is not attached.
func (t *trial) wantAttached(v node.Target, d node.Device, readOnly bool) node.Info {
	t.Helper()
	i := t.inspect(v)
	unseen := t.Unseen && d.IsZero()
	if i.Device != d || i.ReadOnly != readOnly || i.Presence != node.Present || i.Problem != nil || !unseen && (i.Size < size || i.Backing == "") {
		t.Errorf("Inspect: %+v; want device %+v, read-only %t, present, size %d", i, d, readOnly, size)
	}
	if !d.IsZero() && i.Backing != d.Backing {
		t.Errorf("Inspect: backing %q, and the device has %q", i.Backing, d.Backing)
	}
	return i
}

// wantHeld checks the storage's devices as a new process finds them.
func (t *trial) wantHeld(want ...node.Device) {
	t.Helper()
	held := testkit.Value(t.New().Held(t.Context()))(t)
	have := map[node.Device]bool{}
	for _, h := range held {
		have[h.Device] = true
	}
	for _, d := range want {
		if !have[d] {
			t.Errorf("Held: %+v is missing", d)
		}
	}
	if len(held) != len(want) {
		t.Errorf("Held: %+v; want %+v", held, want)
	}
}

// write writes to a device, or to a file, also to one in a directory.
func write(path, text string) error {
	flags := os.O_WRONLY | unix.O_SYNC
	if file, ok := inDirectory(path); ok {
		path, flags = file, flags|os.O_CREATE
	}
	f, err := os.OpenFile(path, flags, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := f.WriteAt([]byte(text), 0); err != nil {
		return err
	}
	return f.Sync()
}

func inDirectory(path string) (file string, ok bool) {
	info, err := os.Stat(path)
	return filepath.Join(path, "data"), err == nil && info.IsDir()
}

// wantText reads what write has written. A volume without it has zeros.
func (t *trial) wantText(path, want string) {
	t.Helper()
	if file, ok := inDirectory(path); ok {
		path = file
		if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) && strings.Trim(want, "\x00") == "" {
			return
		}
	}
	f := testkit.Value(os.Open(path))(t)
	defer f.Close()
	have := make([]byte, len(want))
	if _, err := f.ReadAt(have, 0); err != nil || string(have) != want {
		t.Errorf("%s begins with %q, %v; want %q", path, have, err, want)
	}
}

func (t *trial) wantWrites(d node.Device, want bool) {
	t.Helper()
	if err := write(d.Path, "text"); (err == nil) != want {
		t.Errorf("a write to %s: %v; want success %t", d.Path, err, want)
	}
}

func (t *trial) wantKind(what string, err error, kind errs.Kind) {
	t.Helper()
	testkit.WantError(t, what, err, kind)
}

// can logs a missing optional function.
func (t *trial) can(what string, has bool) bool {
	if !has {
		t.Logf("not tested, as the rig has no %s", what)
	}
	return has
}
