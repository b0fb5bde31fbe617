package nvme_test

import (
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/google/uuid"
	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/linux/kmsg"
	kernel "github.com/cleatproject/cleat/internal/linux/nvme"
	"github.com/cleatproject/cleat/node"
	"github.com/cleatproject/cleat/node/nvme"
	"github.com/cleatproject/cleat/test/features"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/volume"
	"github.com/cleatproject/cleat/volume/access"
)

const mib = 1 << 20

// host is a volume of the kernel's target, and an attacher that runs.
type host struct {
	*testing.T
	*nvme.Attacher
	target  *kernelTarget
	config  nvme.Config
	locator access.NVMe
	stop    func()
}

// newHost has one path for each relay.
func newHost(t *testing.T, relays ...*relay) *host {
	features.Need(t, features.NVMeTarget)
	h := &host{T: t, target: newTarget(t), config: nvme.Config{Dir: t.TempDir(), HostNQN: access.HostNQN(uuid.NewString())}}
	h.locator = h.target.create("v", 16*mib)
	h.locator.Paths = nil
	for _, r := range relays {
		h.locator.Paths = append(h.locator.Paths, r.address)
	}
	h.start()
	t.Cleanup(func() {
		testkit.Must(t, h.Detach(testkit.Context(t), h.volume()))
		h.stop()
	})
	return h
}

func (h *host) start() {
	h.Attacher = testkit.Value(nvme.New(h.config))(h)
	end := testkit.Go(h, h.Attacher.Run)
	h.stop = func() {
		end()
		testkit.Must(h, h.Close(testkit.Context(h)))
	}
}

func (h *host) volume() node.Target { return node.Target{Locator: h.locator, Volume: "v"} }

// attach returns the device, open for direct I/O.
func (h *host) attach() (node.Device, *os.File) {
	h.Helper()
	a := testkit.Value(h.Attach(testkit.Context(h), h.volume(), node.Use{Block: true}))(h)
	testkit.Must(h, a.File.Close())
	return a.Device, testkit.Value(os.OpenFile(a.Device.Path, os.O_RDWR|unix.O_DIRECT, 0))(h)
}

func (h *host) inspect() node.Info {
	h.Helper()
	return testkit.Value(h.Inspect(h.Context(), h.volume()))(h)
}

// awaitCondition waits until Inspect reports a condition, or does not.
func (h *host) awaitCondition(reason string, want bool) {
	h.Helper()
	testkit.Eventually(h, fmt.Sprintf("condition %s: %t", reason, want), func() bool {
		has := false
		for _, c := range h.inspect().Conditions {
			has = has || c.Reason == reason
		}
		return has == want
	})
}

func (h *host) awaitPresence(want node.Presence) {
	h.Helper()
	testkit.Eventually(h, "the volume is "+string(want), func() bool { return h.inspect().Presence == want })
}

// aligned returns a block for direct I/O.
func aligned(text string) []byte {
	const size = 4096
	buffer := make([]byte, 2*size)
	offset := size - int(uintptr(unsafe.Pointer(&buffer[0]))%size)
	block := buffer[offset : offset+size]
	copy(block, text)
	return block
}

// within fails if a call takes longer than its bound.
func within[T any](t *testing.T, bound time.Duration, what string, call func() T) T {
	t.Helper()
	begun := time.Now()
	result := call()
	if took := time.Since(begun); took > bound {
		t.Errorf("%s took %v, want at most %v", what, took, bound)
	}
	return result
}

// outage is longer than the kernel takes to notice. make soak has a longer one.
var outage = flag.Duration("outage", 30*time.Second, "how long the target is silent")

// A silent target is an outage without an error, with default timeouts for a
// minute: the write in flight succeeds when the target answers again. Calls do
// not wait for it meanwhile.
func TestSilentTarget(t *testing.T) {
	r := newRelay(t)
	h := newHost(t, r)
	if *outage > time.Minute {
		h.locator.Timeouts.FastFail = access.Sec(0)
	}
	_, f := h.attach()
	testkit.Value(f.WriteAt(aligned("before"), 0))(t)
	r.fallSilent()
	wrote := make(chan error, 1)
	go func() {
		_, err := f.WriteAt(aligned("during"), 0)
		wrote <- err
	}()
	begun := time.Now()
	h.awaitPresence(node.Unreachable)
	noticed := time.Since(begun)
	second := h.target.create("second", 16*mib)
	second.Paths = h.locator.Paths
	err := within(t, 2*time.Minute, "Attach at a silent target", func() error {
		return testkit.Err(h.Attach(t.Context(), node.Target{Locator: second}, node.Use{Block: true}))
	})
	testkit.WantError(t, "Attach at a silent target", err, errs.Unavailable)
	time.Sleep(*outage - time.Since(begun)) // the outage itself
	select {
	case err := <-wrote:
		t.Fatalf("the write ended during the outage: %v", err)
	default:
	}
	r.interrupt() // the connections are stale
	r.speak()
	testkit.Must(t, testkit.Receive(t, "the end of the write", wrote))
	h.awaitPresence(node.Present)
	fmt.Printf("REPORT: nvme: a silence of %v, noticed after %.1f s, without an I/O error\n", time.Since(begun).Round(time.Second), noticed.Seconds())
	back := aligned("")
	testkit.Value(f.ReadAt(back, 0))(t)
	if !strings.HasPrefix(string(back), "during") {
		t.Errorf("read %q after the outage", back[:8])
	}
	testkit.Must(t, f.Close())
}

// A path that ends does not disturb I/O, is reported, and comes back, also if
// the kernel has removed its controller.
func TestPathLoss(t *testing.T) {
	a, b := newRelay(t), newRelay(t)
	h := newHost(t, a, b)
	_, f := h.attach()
	write := func(text string) {
		t.Helper()
		testkit.Value(f.WriteAt(aligned(text), 0))(t)
	}
	write("both paths")
	b.close()
	h.awaitCondition(volume.ReasonPathDown, true)
	write("one path")
	b.open()
	h.awaitCondition(volume.ReasonPathDown, false)
	write("both again")

	for _, c := range h.controllers() { // as the kernel does when the target refuses a reconnect
		if c.Address == a.address {
			testkit.Must(t, kernel.Host().Delete(t.Context(), c))
		}
	}
	write("the other path")
	h.awaitCondition(volume.ReasonPathDown, false)
	if n := len(h.controllers()); n != 2 {
		t.Errorf("%d controllers, want 2", n)
	}
	testkit.Must(t, f.Close())
}

func (h *host) controllers() []kernel.Controller {
	all := testkit.Value(kernel.Host().Controllers())(h)
	return slices.DeleteFunc(all, func(c kernel.Controller) bool { return c.NQN != h.locator.NQN })
}

// One path is enough to attach; without any the error names each.
func TestAttachWithOnePath(t *testing.T) {
	a, b := newRelay(t), newRelay(t)
	h := newHost(t, a, b)
	a.close()
	_, f := h.attach()
	testkit.Must(t, f.Close())
	h.awaitCondition(volume.ReasonPathDown, true)
	a.open()
	h.awaitCondition(volume.ReasonPathDown, false)
	testkit.Must(t, h.Detach(testkit.Context(t), h.volume()))
	a.close()
	b.close()
	err := testkit.Err(h.Attach(t.Context(), h.volume(), node.Use{Block: true}))
	testkit.WantError(t, "Attach without a path", err, errs.Unavailable)
	for _, p := range []netip.AddrPort{a.address, b.address} {
		if !strings.Contains(err.Error(), p.String()) {
			t.Errorf("the error does not name %v: %v", p, err)
		}
	}
	if held := testkit.Value(h.Held(t.Context()))(t); len(held) > 0 {
		t.Errorf("after a failed Attach: %+v", held)
	}
}

func TestIPv6(t *testing.T) {
	h := newHost(t)
	at := netip.MustParseAddrPort("[::1]:4420")
	port := nvmet + "/ports/6"
	h.target.listen(port, at)
	name := port + "/subsystems/" + h.locator.NQN
	testkit.Must(t, os.Symlink(nvmet+"/subsystems/"+h.locator.NQN, name))
	h.locator.Paths = []netip.AddrPort{at}
	_, f := h.attach()
	testkit.Must(t, f.Close())
	if all := h.controllers(); len(all) != 1 || all[0].Address != at {
		t.Errorf("controllers %+v, want one at %v", all, at)
	}
	testkit.Must(t, h.Detach(testkit.Context(t), h.volume()), os.Remove(name), os.Remove(port))
}

// After fast_io_fail_tmo I/O fails. Data of the page cache is lost then, which
// the first Detach reports.
func TestTargetGone(t *testing.T) {
	r := newRelay(t)
	h := newHost(t, r)
	h.locator.Timeouts = access.Timeouts{Loss: access.Sec(-1), Delay: access.Sec(1), FastFail: access.Sec(2)}
	d, f := h.attach()
	testkit.Must(t, f.Close())
	cached := testkit.Value(os.OpenFile(d.Path, os.O_RDWR, 0))(t)
	testkit.Value(cached.WriteAt(aligned("lost"), 0))(t)
	r.close()
	testkit.Must(t, cached.Close())
	h.awaitPresence(node.Unreachable)
	err := within(t, time.Minute, "Detach", func() error { return h.Detach(t.Context(), h.volume()) })
	if !errors.Is(err, unix.EIO) || !strings.Contains(err.Error(), "lost") {
		t.Errorf("Detach: %v, want the flush error", err)
	}
	testkit.Must(t, within(t, time.Minute, "Detach again", func() error { return h.Detach(t.Context(), h.volume()) }))
	if left := h.controllers(); len(left) > 0 {
		t.Errorf("left are %+v", left)
	}
	r.open()
	_, f = h.attach()
	testkit.Must(t, f.Close())
}

// The kernel answers a flush with success when the connection breaks under it.
// This is reported until the volume is staged again, also if it happened while
// no attacher ran.
func TestFlushUncertain(t *testing.T) {
	r := newRelay(t)
	h := newHost(t, r)
	for _, isRunning := range []bool{true, false} {
		_, f := h.attach()
		h.awaitCondition(volume.ReasonFlushUncertain, false)
		testkit.Value(f.WriteAt(aligned("data"), 0))(t)
		if !isRunning {
			h.stop()
		}
		r.fallSilent()
		before, flushed := r.flushCount(), make(chan error, 1)
		go func() { flushed <- unix.Fdatasync(int(f.Fd())) }()
		testkit.Eventually(t, "the flush is in flight", func() bool { return r.flushCount() > before })
		r.interrupt()
		r.speak()
		err := testkit.Receive(t, "the end of the flush", flushed)
		fmt.Printf("REPORT: nvme: a flush whose connection broke ended with: %v\n", err)
		if !isRunning {
			h.start()
		}
		h.awaitPresence(node.Present)
		h.awaitCondition(volume.ReasonFlushUncertain, true)
		testkit.Must(t, f.Close(), h.Detach(testkit.Context(t), h.volume()))
	}
}

// A subsystem that its target removes, and restores later: since 6.10 the kernel
// removes the controller, and the disk is lost until a new stage. Before, it
// works again.
func TestTargetRefuses(t *testing.T) {
	r := newRelay(t)
	h := newHost(t, r)
	d, f := h.attach()
	log := testkit.Value(kmsg.Open())(t)
	defer log.Close()
	testkit.Must(t, log.SkipAll())
	h.target.unlink("v")
	testkit.Eventually(t, "the target has refused a reconnect", func() bool {
		return slices.ContainsFunc(testkit.Value(log.Read())(t), func(r kmsg.Record) bool {
			return strings.Contains(r.Text, "subsysnqn") && strings.Contains(r.Text, h.locator.NQN)
		})
	})
	h.target.link("v")
	testkit.Eventually(t, "the end of the reconnect", func() bool {
		p := h.inspect().Presence
		return p == node.Lost || p == node.Present
	})
	i := h.inspect()
	fmt.Printf("REPORT: nvme: after its subsystem was removed and restored the volume is %s\n", i.Presence)
	if i.Device != d {
		t.Errorf("Inspect: %+v, want the device %+v", i, d)
	}
	testkit.Must(t, f.Close(), h.Detach(testkit.Context(t), h.volume()))
	_, f = h.attach()
	testkit.Value(f.WriteAt(aligned("again"), 0))(t)
	testkit.Must(t, f.Close())
}
