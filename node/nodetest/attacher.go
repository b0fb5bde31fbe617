package nodetest

import (
	"os"
	"sync"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/linux/blockdev"
	"github.com/cleatproject/cleat/internal/linux/fsinfo"
	"github.com/cleatproject/cleat/node"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/volume"
	"github.com/cleatproject/cleat/volume/access"
)

// Any process gets the same device again; Detach removes it and keeps the data;
// Backing is known before.
func testAttach(t *trial) {
	v := t.volume("v")
	before := t.wantAttached(v, node.Device{}, false)
	t.detach(v)
	d := t.attach(v, node.Use{Block: true})
	testkit.Must(t, write(d.Path, "kept"))
	if !t.Unseen && d.Backing != before.Backing {
		t.Errorf("attached with backing %q, before Inspect reported %q", d.Backing, before.Backing)
	}
	first := t.Attacher
	for _, t.Attacher = range []node.Attacher{first, t.New(), first} {
		if again := t.attach(v, node.Use{Block: true}); again != d {
			t.Errorf("attached again as %+v, first as %+v", again, d)
		}
		t.wantAttached(v, d, false)
	}
	t.wantHeld(d)
	t.Attacher = t.New()
	t.detach(v)
	t.detach(v)
	t.wantHeld()
	if after := t.wantAttached(v, node.Device{}, false); after.Backing != before.Backing {
		t.Errorf("backing %q after Detach, %q before Attach", after.Backing, before.Backing)
	}
	d = t.attach(v, node.Use{Block: true})
	t.wantText(d.Path, "kept")
	testkit.Must(t, t.Detach(t.Context(), node.Target{Locator: v.Locator, Device: d}))
}

// Concurrent processes get one device.
func testAttachConcurrently(t *trial) {
	v := t.volume("v")
	for range 3 {
		devices := make([]node.Device, 8)
		start := make(chan struct{})
		var running sync.WaitGroup
		for i := range devices {
			a := t.New()
			running.Go(func() {
				<-start
				attachment, err := a.Attach(t.Context(), v, node.Use{Block: !t.Directories})
				if err != nil {
					t.Error(err)
					return
				}
				devices[i] = attachment.Device
				attachment.File.Close()
			})
		}
		close(start)
		running.Wait()
		for _, d := range devices {
			if d != devices[0] {
				t.Errorf("attached at the same time as %s and %s", devices[0].Path, d.Path)
			}
		}
		t.wantHeld(devices[0])
		t.detach(v)
	}
}

// Attach adjusts the existing device to the use.
func testUse(t *trial) {
	v := t.volume("v")
	for _, readOnly := range []bool{false, true, false} {
		d := t.attach(v, node.Use{Block: true, ReadOnly: readOnly})
		t.wantAttached(v, d, readOnly)
		t.wantWrites(d, !readOnly)
		t.wantHeld(d)
	}
	testkit.Must(t, t.SetReadOnly(t.Context(), v, true))
	d := t.attach(v, node.Use{Block: true})
	t.wantAttached(v, d, false)
	t.wantWrites(d, true)
	t.detach(v)

	readOnly, f := t.open(v, node.Use{Block: true, ReadOnly: true})
	a, err := t.Attach(t.Context(), v, node.Use{Block: true})
	if err == nil {
		testkit.Must(t, a.File.Close())
		t.wantAttached(v, a.Device, false)
	} else {
		t.wantKind("Attach of a device that is in use read-only", err, errs.Precondition)
		t.wantAttached(v, readOnly, true)
	}
	testkit.Must(t, f.Close())
	t.detach(v)
}

// The device stays while File is open, and longer if the use becomes Block.
func testMountUse(t *trial) {
	v := t.volume("v")
	d, f := t.open(v, node.Use{})
	t.wantAttached(v, d, false)
	if block := t.attach(v, node.Use{Block: true}); block != d {
		t.Errorf("attached as %+v to mount it, and as %+v for block use", d, block)
	}
	testkit.Must(t, f.Close())
	t.wantAttached(v, d, false)
	t.attach(v, node.Use{}) // the kernel can remove it
	t.detach(v)
	t.wantHeld()
}

// A device in use stays as it is.
func testBusy(t *trial) {
	v := t.volume("v")
	d, f := t.open(v, node.Use{Block: true})
	t.wantKind("Detach of a device that is open", t.Detach(t.Context(), v), errs.Precondition)
	t.wantAttached(v, d, false)
	t.wantWrites(d, true)
	testkit.Must(t, f.Close())
	t.wantAttached(v, d, false)
	t.detach(v)
}

func testResize(t *trial) {
	v := t.volume("v")
	t.wantKind("Resize of a volume that is not attached", testkit.Err(t.Resize(t.Context(), v)), errs.Precondition)
	d := t.attach(v, node.Use{Block: true})
	for _, want := range []int64{size, 2 * size} {
		if want != size {
			t.Grow("v", want)
		}
		if got, err := t.Resize(t.Context(), v); err != nil || got != want {
			t.Errorf("Resize: %d, %v; want %d", got, err, want)
		}
		if got := t.size(d); got != want {
			t.Errorf("the device has %d bytes; want %d", got, want)
		}
		if i := t.wantAttached(v, d, false); i.Size != want {
			t.Errorf("Inspect: size %d, want %d", i.Size, want)
		}
	}
	t.detach(v)
}

// size returns the bytes of a device, or those that statfs shows of a directory.
func (t *trial) size(d node.Device) int64 {
	t.Helper()
	if t.Directories {
		return testkit.Value(fsinfo.UsageOf(t.Context(), d.Path))(t).Bytes.Total
	}
	f := testkit.Value(os.Open(d.Path))(t)
	defer f.Close()
	return testkit.Value(blockdev.Size(f))(t)
}

func testSetReadOnly(t *trial) {
	v := t.volume("v")
	t.wantKind("SetReadOnly of a volume that is not attached", t.SetReadOnly(t.Context(), v, true), errs.Precondition)
	d := t.attach(v, node.Use{Block: true})
	for _, readOnly := range []bool{true, true, false, false} {
		testkit.Must(t, t.SetReadOnly(t.Context(), v, readOnly))
		t.wantAttached(v, d, readOnly)
		t.wantWrites(d, !readOnly)
	}
	t.detach(v)
}

// Attachers share the lock, which excludes an engine's. A device holds none.
func testLock(t *trial) {
	v := t.volume("v")
	unlock := testkit.Value(t.Lock(t.Context(), v))(t)
	other := testkit.Value(t.New().Lock(t.Context(), v))(t)
	t.attach(v, node.Use{Block: true})
	for _, unlock := range []func(){unlock, other} {
		if t.Claim != nil {
			if release, err := t.Claim("v"); err == nil {
				release()
				t.Error("a locked volume can be claimed")
			}
		}
		unlock()
	}
	if t.can("Claim", t.Claim != nil) {
		release := testkit.Value(t.Claim("v"))(t)
		t.wantKind("Lock of a claimed volume", testkit.Err(t.Lock(t.Context(), v)), errs.Busy)
		release()
	}
	testkit.Value(t.Lock(t.Context(), v))(t)()
	t.detach(v)
}

// missing returns a deleted volume's locator.
func (t *trial) missing(id volume.ID) access.Access {
	l := t.Create(id, size)
	t.Delete(id)
	return l
}

// Held has exactly this storage's devices, and what Detach needs for each.
func testHeld(t *trial) {
	other := newTrial(t.T, t.newRig)
	foreign, _ := other.attached("named")
	_, d := t.attached("named")
	deleted, old := t.attached("deleted")
	t.Delete("deleted")
	t.wantHeld(d, old)
	for _, h := range testkit.Value(t.New().Held(t.Context()))(t) {
		switch {
		case h.Device == d && (h.Volume != "named" || h.Locator == nil):
			t.Errorf("Held: %+v, want volume and locator", h)
		case h.Device == old && (h.Volume != "" && h.Volume != "deleted" || h.Locator != nil && !t.Unseen):
			t.Errorf("Held: %+v, whose volume was deleted; want no locator", h)
		}
		t.detach(node.Target{Locator: h.Locator, Device: h.Device})
	}
	t.wantHeld()
	t.detach(deleted)
	other.detach(foreign)
}

// Inspect describes each state without an error, and Attach returns its
// problem.
func testPresence(t *trial) {
	check := func(v node.Target, want node.Presence, kind errs.Kind) {
		t.Helper()
		i := t.inspect(v)
		_, err := t.Attach(t.Context(), v, node.Use{Block: true})
		t.wantKind("Attach of a volume that is "+string(want), err, kind)
		if t.Unseen {
			t.wantAttached(v, node.Device{}, false)
		} else if i.Presence != want || !i.Device.IsZero() || i.Problem == nil || err == nil || i.Problem.Error() != err.Error() {
			t.Errorf("Inspect: %+v; want %s, and the error of Attach: %v", i, want, err)
		}
		testkit.Value(t.Lock(t.Context(), v))(t)()
		t.detach(v)
	}
	check(node.Target{Locator: t.missing("missing")}, node.Missing, errs.NotFound)
	if t.can("CreateForeign", t.CreateForeign != nil) {
		check(node.Target{Locator: t.CreateForeign("foreign")}, node.Foreign, errs.Precondition)
	}
	if t.can("Truncate", t.Truncate != nil) {
		v := t.volume("truncated")
		t.Truncate("truncated")
		check(v, node.Truncated, errs.Precondition)
	}
	if t.can("Disconnect", t.Disconnect != nil) {
		v := t.volume("unreachable")
		reconnect := t.Disconnect()
		check(v, node.Unreachable, errs.Precondition)
		t.wantKind("Held", testkit.Err(t.Held(t.Context())), errs.Unavailable)
		reconnect()
	}
}

// A deleted volume's device is found by its backing, and works until detached.
func testDeleted(t *trial) {
	for _, whole := range []bool{false, true} {
		v, d := t.attached("v")
		if whole {
			v.Device = d
		}
		t.Delete("v")
		t.Attacher = t.New()
		if t.Unseen {
			t.wantDeleted(v, d)
			t.detach(v)
			t.detach(v)
			t.wantHeld()
			t.wantKind("Attach", testkit.Err(t.Attach(t.Context(), v, node.Use{Block: true})), errs.NotFound)
			continue
		}
		if i := t.inspect(v); i.Device != d || i.Presence != node.Replaced || i.Problem == nil || i.Backing != "" || i.Size != 0 {
			t.Errorf("Inspect with %+v: %+v; want the device, replaced, no backing", v.Device, i)
		}
		t.wantWrites(d, true)
		t.wantKind("Attach", testkit.Err(t.Attach(t.Context(), v, node.Use{Block: true})), errs.NotFound)
		t.detach(v)
		t.detach(v)
		t.wantHeld()
		if i := t.inspect(v); !i.Device.IsZero() || i.Presence != node.Missing {
			t.Errorf("Inspect after Detach: %+v, want missing", i)
		}
	}
}

// wantDeleted checks the device of a deleted volume, which the attacher cannot
// see.
func (t *trial) wantDeleted(v node.Target, d node.Device) {
	t.Helper()
	if !t.Vanishes {
		t.wantAttached(v, d, false)
		t.wantWrites(d, true)
		return
	}
	if i := t.inspect(v); i.Device != d || i.Presence != node.Lost || i.Problem == nil {
		t.Errorf("Inspect: %+v; want the device %+v, lost, and the problem", i, d)
	}
}

// A volume of the same name has its own device. The old one is reported until
// it is gone.
func testReplaced(t *trial) {
	if t.Unseen {
		testReplacedUnseen(t)
		return
	}
	v, old := t.attached("v")
	testkit.Must(t, write(old.Path, "old"))
	t.Delete("v")
	t.Create("v", size)
	i := t.inspect(v)
	if i.Device != old || i.Presence != node.Replaced || i.Problem == nil || i.Backing == "" || i.Backing == old.Backing || i.Size != size {
		t.Errorf("Inspect: %+v; want device %+v, replaced, and the backing of the new volume", i, old)
	}
	d := t.attach(v, node.Use{Block: true})
	if d == old || d.Backing != i.Backing {
		t.Errorf("attached as %+v, want a device with backing %q", d, i.Backing)
	}
	t.wantText(d.Path, "\x00\x00\x00")
	t.wantText(old.Path, "old")
	t.wantHeld(d, old)
	if i := t.inspect(v); i.Device != old || i.Presence != node.Replaced {
		t.Errorf("Inspect: %+v; want the old device %+v first", i, old)
	}
	t.detach(v)
	t.wantHeld()
	t.wantAttached(v, node.Device{}, false)
}

// Volumes of one name have different locators, and the old one's never attaches
// the new volume.
func testReplacedUnseen(t *trial) {
	v, old := t.attached("v")
	testkit.Must(t, write(old.Path, "old"))
	t.Delete("v")
	next := t.volume("v")
	t.wantAttached(next, node.Device{}, false)
	d := t.attach(next, node.Use{Block: true})
	if d == old || d.Backing == old.Backing {
		t.Errorf("attached as %+v, want another device than %+v, with another backing", d, old)
	}
	t.wantText(d.Path, "\x00\x00\x00")
	if !t.Vanishes {
		t.wantText(old.Path, "old")
	}
	t.wantHeld(d, old)
	t.wantDeleted(v, old)
	t.detach(v)
	t.wantHeld(d)
	t.wantKind("Attach of the replaced volume", testkit.Err(t.Attach(t.Context(), v, node.Use{Block: true})), errs.NotFound)
	t.wantHeld(d)
	t.detach(next)
}

// A fenced device is reported until it is detached; the next one works.
func testFenced(t *trial) {
	if !t.can("Fence", t.Fence != nil) {
		return
	}
	v, d := t.attached("v")
	testkit.Must(t, write(d.Path, "kept"))
	t.Fence("v")
	testkit.Eventually(t, "Inspect reports the fenced device as lost", func() bool {
		i := t.inspect(v)
		return i.Device == d && i.Presence == node.Lost && i.Problem != nil
	})
	t.Attacher = t.New()
	if i := t.inspect(v); i.Device != d || i.Presence != node.Lost {
		t.Errorf("Inspect of another process: %+v; want the device %+v, lost", i, d)
	}
	t.detach(v)
	t.wantHeld()
	next := t.attach(v, node.Use{Block: true})
	t.wantAttached(v, next, false)
	t.wantText(next.Path, "kept")
	t.detach(v)
}

// Devices are found and detached without the storage.
func testUnreachable(t *trial) {
	if !t.can("Disconnect", t.Disconnect != nil) {
		return
	}
	v, d := t.attached("v")
	reconnect := t.Disconnect()
	t.Attacher = t.New()
	if i := t.inspect(v); i.Device != d || i.Presence != node.Unreachable || i.Problem == nil {
		t.Errorf("Inspect: %+v; want device %+v, unreachable", i, d)
	}
	reconnect()
	t.wantAttached(v, d, false)
	t.wantHeld(d)
	reconnect = t.Disconnect()
	t.detach(v)
	t.detach(v)
	if i := t.inspect(v); !i.Device.IsZero() || i.Presence != node.Unreachable {
		t.Errorf("Inspect after Detach: %+v, want unreachable", i)
	}
	reconnect()
	t.wantAttached(v, node.Device{}, false)
}

// A reused number does not make a device a volume's.
func testReusedNumber(t *trial) {
	v, d := t.attached("v")
	t.detach(v)
	other := t.volume("other")
	theirs := t.attach(other, node.Use{Block: true})
	v.Device = node.Device{Path: theirs.Path, Major: theirs.Major, Minor: theirs.Minor, Backing: d.Backing}
	t.wantAttached(v, node.Device{}, false)
	t.detach(v)
	t.detach(node.Target{Device: v.Device})
	t.wantAttached(other, theirs, false)
	t.detach(other)
}
