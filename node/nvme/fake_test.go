package nvme

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/linux/loop"
	kernel "github.com/cleatproject/cleat/internal/linux/nvme"
	"github.com/cleatproject/cleat/node"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/volume"
	"github.com/cleatproject/cleat/volume/access"
)

// fakeKernel is a kernel whose sysfs is a directory.
type fakeKernel struct {
	*testing.T
	kernel.Kernel
}

func newFakeKernel(t *testing.T) *fakeKernel {
	k := &fakeKernel{t, kernel.Kernel{Sys: t.TempDir(), Dev: t.TempDir()}}
	k.write("module/nvme_core/parameters/multipath", "Y")
	testkit.Must(t, os.Mkdir(filepath.Join(k.Sys, "block"), 0o755))
	return k
}

func (k *fakeKernel) write(name, text string) {
	k.Helper()
	path := filepath.Join(k.Sys, name)
	testkit.Must(k, os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o600))
}

// controller adds a live controller of this host.
func (k *fakeKernel) controller(name, nqn string, at netip.AddrPort) {
	k.Helper()
	for attribute, text := range map[string]string{
		"transport": "tcp", "address": fmt.Sprintf("traddr=%v,trsvcid=%d", at.Addr(), at.Port()), "subsysnqn": nqn,
		"state": kernel.StateLive, "hostnqn": self, "dhchap_secret": "none", "delete_controller": "",
	} {
		k.write("class/nvme/"+name+"/"+attribute, text)
	}
}

// disk adds a disk without a device node.
func (k *fakeKernel) disk(name, nqn string, nsid, major, minor uint32) node.Device {
	k.Helper()
	wwid := "uuid." + name
	for attribute, text := range map[string]string{
		"device/subsysnqn": nqn, "dev": fmt.Sprintf("%d:%d", major, minor), "nsid": fmt.Sprint(nsid), "wwid": wwid,
		"size": "2048", "ro": "0", "queue/write_cache": "write through",
	} {
		k.write("block/"+name+"/"+attribute, text)
	}
	return node.Device{Path: filepath.Join(k.Dev, name), Major: major, Minor: minor, Backing: nqn + separator + wwid}
}

func (k *fakeKernel) attacher() *Attacher {
	a := testkit.Value(New(Config{Dir: k.TempDir(), HostNQN: self, Boot: "b", Kernel: &k.Kernel}))(k)
	k.Cleanup(func() { testkit.Must(k, a.Close(testkit.Context(k))) })
	return a
}

// The kernel drops the data of a disk in use with its last controller.
func TestUnrecordedDiskInUse(t *testing.T) {
	k := newFakeKernel(t)
	k.controller("nvme0", red, first)
	// No device has this number, so the disk is not in use.
	const major, minor = 259, 1<<20 - 1
	idle := k.disk("nvme0n1", red, 1, major, minor)
	var proc unix.Stat_t
	testkit.Must(t, unix.Stat("/proc", &proc))
	k.disk("nvme0n2", red, 2, unix.Major(proc.Dev), unix.Minor(proc.Dev)) // in use, as /proc is mounted
	a := k.attacher()
	wantKept := func(what string, err error) {
		t.Helper()
		testkit.WantError(t, what, err, errs.Precondition, "the subsystem "+red+" stays connected", "nvme0n2: the device is used by a mount at ")
		if text := testkit.Value(os.ReadFile(filepath.Join(k.Sys, "class/nvme/nvme0/delete_controller")))(t); len(text) > 0 {
			t.Errorf("%s has removed the controller of a disk in use", what)
		}
	}
	wantKept("Detach of an orphan", a.Detach(testkit.Context(t), node.Target{Device: idle}))

	l := access.NVMe{Transport: "tcp", NQN: red, NSID: 1, Paths: []netip.AddrPort{first}}
	r, _, err := a.records.begin(node.Target{Locator: l}, l, host{nqn: self}, "")
	testkit.Must(t, err)
	r.Device = idle
	testkit.Must(t, a.records.put(r))
	wantKept("Detach", a.Detach(testkit.Context(t), node.Target{Locator: l}))
	testkit.Must(t, a.records.remove(r))

	l.TLSKey = "psk" // which the connection does not have
	_, err = a.Attach(testkit.Context(t), node.Target{Locator: l}, node.Use{Block: true})
	wantKept("a failed first Attach", err)
}

// A disk whose record is lost is not reported as detached.
func TestLostRecord(t *testing.T) {
	var proc unix.Stat_t
	testkit.Must(t, unix.Stat("/proc", &proc)) // in use, as /proc is mounted
	named := access.NVMe{Transport: "tcp", NQN: red, NSID: 1, Paths: []netip.AddrPort{first}}
	byAnother := named
	byAnother.HostNQN = "nqn.2024-01.example:other"
	for name, c := range map[string]struct {
		locator  access.NVMe
		shared   bool // another volume of the subsystem is attached
		attached bool
		inUse    string // in the error of Detach; empty: none
	}{
		"of its own subsystem":          {named, false, true, "used by a mount at "},
		"of a subsystem of two volumes": {named, true, false, "used by a mount at "},
		"not this driver's":             {byAnother, false, false, ""},
	} {
		t.Run(name, func(t *testing.T) {
			k := newFakeKernel(t)
			k.controller("nvme0", red, first)
			disk := k.disk("nvme0n1", red, 1, unix.Major(proc.Dev), unix.Minor(proc.Dev))
			a := k.attacher()
			if c.shared {
				other := named
				other.NSID = 2
				_, _, err := a.records.begin(node.Target{Locator: other}, other, host{nqn: self}, "")
				testkit.Must(t, err)
			}
			target := node.Target{Locator: c.locator}
			info := testkit.Value(a.Inspect(t.Context(), target))(t)
			if (info.Device == disk) != c.attached || info.Device.IsZero() == c.attached {
				t.Errorf("Inspect reports the device %+v", info.Device)
			}
			err := a.Detach(testkit.Context(t), target)
			if c.inUse == "" {
				testkit.Must(t, err)
			} else {
				testkit.WantError(t, "Detach", err, errs.Precondition, c.inUse)
			}
			if text := testkit.Value(os.ReadFile(filepath.Join(k.Sys, "class/nvme/nvme0/delete_controller")))(t); len(text) > 0 {
				t.Error("Detach has removed the controller of a disk in use")
			}
		})
	}
}

// A connection that is older than all records of its subsystem can have been
// interrupted before.
func TestUncertainAfterALostRecord(t *testing.T) {
	file := testkit.Value(os.CreateTemp(t.TempDir(), ""))(t)
	testkit.Must(t, file.Truncate(1<<20))
	device, f, err := loop.Attach(t.Context(), loop.Config{File: file, AutoClear: true})
	testkit.Must(t, err, file.Close())
	defer f.Close()
	k := newFakeKernel(t)
	a := k.attacher()
	attach := func(of node.Target) {
		t.Helper()
		attachment := testkit.Value(a.Attach(testkit.Context(t), of, node.Use{Block: true}))(t)
		testkit.Must(t, attachment.File.Close())
	}
	wantUncertain := func(what string, of node.Target, want bool) {
		t.Helper()
		info := testkit.Value(a.Inspect(t.Context(), of))(t)
		if got := slices.ContainsFunc(info.Conditions, func(c volume.Condition) bool { return c.Reason == volume.ReasonFlushUncertain }); got != want {
			t.Errorf("%s: %t with %+v, want %t", what, got, info.Conditions, want)
		}
	}
	var volumes []node.Target
	for i := range 2 {
		nsid := uint32(i + 1)
		l := access.NVMe{Transport: "tcp", NQN: red, NSID: nsid, Paths: []netip.AddrPort{first}}
		volumes = append(volumes, node.Target{Locator: l, Volume: volume.ID(fmt.Sprint("v", i))})
		name := fmt.Sprintf("nvme0n%d", nsid)
		testkit.Must(t, os.Symlink(device.Path, filepath.Join(k.Dev, name)))
		k.disk(name, red, nsid, device.Major, device.Minor)
		k.write("block/"+name+"/queue/write_cache", "write back")
	}
	// As if the process had ended before it found the disk.
	_, _, err = a.records.begin(volumes[0], volumes[0].Locator.(access.NVMe), host{nqn: self}, "")
	testkit.Must(t, err)
	k.controller("nvme0", red, first)
	for _, v := range volumes {
		attach(v)
		wantUncertain("connected with a record", v, false)
	}
	testkit.Must(t, os.RemoveAll(a.records.dir))
	wantUncertain("the record is lost", volumes[0], true)
	for _, v := range volumes {
		attach(v)
		wantUncertain("attached again", v, true)
		attach(v)
		wantUncertain("attached a second time", v, true)
	}
}

// A volume with the namespace of another one is refused, and that keeps its disk.
func TestRefusedStageKeepsTheOther(t *testing.T) {
	k := newFakeKernel(t)
	k.controller("nvme0", red, first)
	const major, minor = 259, 1<<20 - 1 // no device has this number, so the disk is not in use
	disk := k.disk("nvme0n1", red, 1, major, minor)
	a := k.attacher()
	l := access.NVMe{Transport: "tcp", NQN: red, NSID: 1, Paths: []netip.AddrPort{first}}
	r, _, err := a.records.begin(node.Target{Locator: l, Volume: "first"}, l, host{nqn: self}, "")
	r.Device = disk
	testkit.Must(t, err, a.records.put(r))

	dir := t.TempDir()
	m := testkit.Value(node.Open(t.Context(), node.Config{Store: filepath.Join(dir, "node.db"), Attachers: map[string]node.Attacher{Protocol(): a}}))(t)
	defer func() { testkit.Must(t, m.Close()) }()
	staging := filepath.Join(dir, "staging")
	testkit.Must(t, os.Mkdir(staging, 0o700))
	c := volume.Capability{Block: true, Mode: volume.SingleNodeWriter}
	err = m.Stage(testkit.Context(t), node.StageRequest{Volume: "second", Staging: staging, Locator: l, Capability: c})
	testkit.WantError(t, "Stage", err, errs.Precondition, "the namespace of volume first")
	if text := testkit.Value(os.ReadFile(filepath.Join(k.Sys, "class/nvme/nvme0/delete_controller")))(t); len(text) > 0 {
		t.Error("the disk of the other volume was disconnected")
	}
	if info := testkit.Value(a.Inspect(t.Context(), node.Target{Locator: l, Volume: "first"}))(t); info.Device != disk {
		t.Errorf("the other volume has the device %+v", info.Device)
	}
}

// An address that does not answer is tried once in a pass, for one of its
// volumes; another address is tried too.
func TestDownAddressInOnePass(t *testing.T) {
	k := newFakeKernel(t)
	a := k.attacher()
	down, other := closedPort(t), closedPort(t)
	for i, missing := range []netip.AddrPort{down, down, other} {
		nqn := fmt.Sprintf("%s-%d", red, i)
		k.controller(fmt.Sprintf("nvme%d", i), nqn, first)
		l := access.NVMe{Transport: "tcp", NQN: nqn, Paths: []netip.AddrPort{first, missing}}
		r, _, err := a.records.begin(node.Target{Locator: l}, l, host{nqn: self}, "")
		r.Device = k.disk(fmt.Sprintf("nvme%dn1", i), nqn, 1, 259, uint32(i))
		testkit.Must(t, err, a.records.put(r))
	}
	testkit.Must(t, a.addPaths(t.Context()))
	if len(a.retries) != 2 {
		t.Errorf("one pass: the attempts failed %+v, want one for each address", a.retries)
	}
	testkit.Eventually(t, "the address is tried for the other volume, while the first one's next attempt is later", func() bool {
		testkit.Must(t, a.addPaths(t.Context()))
		return len(a.retries) == 3
	})
}

// closedPort returns an address that refuses connections.
func closedPort(t *testing.T) netip.AddrPort {
	l := testkit.Value(net.Listen("tcp", "127.0.0.1:0"))(t)
	testkit.Must(t, l.Close())
	return netip.MustParseAddrPort(l.Addr().String())
}

// A path whose target reports the namespace as inaccessible does not work,
// although its controller is live.
func TestInaccessiblePaths(t *testing.T) {
	k := newFakeKernel(t)
	a := k.attacher()
	ana := func(controller int, state string) {
		k.write(fmt.Sprintf("class/nvme/nvme%d/nvme0c%dn1/ana_state", controller, controller), state)
	}
	for i, at := range []netip.AddrPort{first, second} {
		k.controller(fmt.Sprintf("nvme%d", i), red, at)
		k.write(fmt.Sprintf("class/nvme/nvme%d/nvme0c%dn1/nsid", i, i), "1")
		k.write(fmt.Sprintf("class/nvme/nvme%d/nvme0c%dn2/nsid", i, i), "2") // of another volume
		k.write(fmt.Sprintf("class/nvme/nvme%d/nvme0c%dn2/ana_state", i, i), "inaccessible")
	}
	l := access.NVMe{Transport: "tcp", NQN: red, NSID: 1, Paths: []netip.AddrPort{first, second}}
	r, _, err := a.records.begin(node.Target{Locator: l}, l, host{nqn: self}, "")
	r.Device = k.disk("nvme0n1", red, 1, 259, 1)
	testkit.Must(t, err, a.records.put(r))
	for _, c := range []struct {
		states   [2]string
		presence node.Presence
		reason   string
	}{
		{[2]string{"optimized", "non-optimized"}, node.Present, ""},
		{[2]string{"inaccessible", "non-optimized"}, node.Present, volume.ReasonPathDown},
		{[2]string{"optimized", "change"}, node.Present, volume.ReasonPathDown},
		{[2]string{"inaccessible", "persistent-loss"}, node.Unreachable, ""},
	} {
		ana(0, c.states[0])
		ana(1, c.states[1])
		info := testkit.Value(a.Inspect(t.Context(), node.Target{Locator: l}))(t)
		reason := ""
		for _, condition := range info.Conditions {
			reason += condition.Reason
		}
		if info.Presence != c.presence || reason != c.reason {
			t.Errorf("%v: %s with %+v, want %s with %q", c.states, info.Presence, info.Conditions, c.presence, c.reason)
		}
		if c.presence == node.Unreachable {
			testkit.WantError(t, "an inaccessible volume", info.Problem, errs.Unavailable, "reports the namespace as persistent-loss (ANA)")
		}
	}
}

// Two volumes, of which a locator names the namespace by its uuid and the other by
// its nsId, or both alike, are not attached as one disk.
func TestTwoVolumesOfOneNamespace(t *testing.T) {
	k := newFakeKernel(t)
	k.controller("nvme0", red, first)
	disk := k.disk("nvme0n1", red, 1, 259, 1<<20-1)
	a := k.attacher()
	l := access.NVMe{Transport: "tcp", NQN: red, NSID: 1, Paths: []netip.AddrPort{first}}
	r, _, err := a.records.begin(node.Target{Locator: l, Volume: "one"}, l, host{nqn: self}, "")
	testkit.Must(t, err)
	r.Device = disk
	testkit.Must(t, a.records.put(r))
	whole := l
	whole.NSID = 0
	for name, other := range map[string]access.NVMe{"the same locator": l, "another locator": whole} {
		_, err := a.Attach(testkit.Context(t), node.Target{Locator: other, Volume: "two"}, node.Use{Block: true})
		testkit.WantError(t, name, err, errs.Precondition, "volume one", "unstage")
	}
	all := testkit.Value(a.records.all())(t)
	if len(all) != 1 || all[0].Volume != "one" {
		t.Errorf("records %+v, want that of volume one", all)
	}
}

// The kernel's log is read although it could not be opened at the start.
func TestLogOpenedLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newFakeKernel(t).attacher()
		release := testkit.LimitFiles(t, 0)
		stop := testkit.Go(t, a.Run)
		time.Sleep(interval / 2)
		release()
		time.Sleep(interval)
		synctest.Wait()
		if seq := testkit.Value(a.records.position())(t); seq == 0 {
			t.Error("no message of the kernel's log has been read")
		}
		stop()
	})
}
