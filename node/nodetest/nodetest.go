// Package nodetest is the conformance suite of node.Attacher, by itself and
// through a node.Manager. An attacher's test calls Run with a function that
// makes a Rig.
package nodetest

import (
	"os"
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
	// Truncate makes a volume shorter than its size.
	Truncate func(id volume.ID)
	// CreateForeign creates a non-volume under a volume's name.
	CreateForeign func(id volume.ID) access.Access
	// Disconnect makes the storage unreachable until reconnect.
	Disconnect func() (reconnect func())
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
		{"Use", testUse},
		{"MountUse", testMountUse},
		{"Busy", testBusy},
		{"Resize", testResize},
		{"SetReadOnly", testSetReadOnly},
		{"Lock", testLock},
		{"Held", testHeld},
		{"Presence", testPresence},
		{"Deleted", testDeleted},
		{"Replaced", testReplaced},
		{"Unreachable", testUnreachable},
		{"ReusedNumber", testReusedNumber},
		{"FilesystemVolume", testFilesystemVolume},
		{"BlockVolume", testBlockVolume},
		{"DeletedWhilePublished", testDeletedWhilePublished},
		{"Orphans", testOrphans},
	} {
		t.Run(part.name, func(t *testing.T) { part.run(newTrial(t, newRig)) })
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

// open attaches a volume, and leaves the device open.
func (t *trial) open(v node.Target, use node.Use) (node.Device, *os.File) {
	t.Helper()
	a := testkit.Value(t.Attach(t.Context(), v, use))(t)
	if a.File == nil {
		t.Fatalf("Attach returns no open file: %+v", a)
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

func write(path, text string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|unix.O_SYNC, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := f.WriteAt([]byte(text), 0); err != nil {
		return err
	}
	return f.Sync()
}

func (t *trial) wantText(path, want string) {
	t.Helper()
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
