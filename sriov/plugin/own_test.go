package plugin_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/cleatproject/cleat/internal/linux/devlink"
	"github.com/cleatproject/cleat/internal/linux/netlinks"
	"github.com/cleatproject/cleat/sriov/gate"
	"github.com/cleatproject/cleat/sriov/inventory/sysfstest"
	"github.com/cleatproject/cleat/sriov/plugin"
	"github.com/cleatproject/cleat/sriov/plugin/plugintest"
	"github.com/cleatproject/cleat/test/testkit"
)

func (r *rig) end(s *plugintest.Stream) *gate.End {
	r.t.Helper()
	ctx := testkit.Context(r.t)
	for {
		_, err := s.Next(ctx)
		if over, ok := errors.AsType[*gate.End](err); ok {
			return over
		}
		testkit.Must(r.t, err)
	}
}

func TestNewerGenerationTakesOver(t *testing.T) {
	t.Parallel()
	r := newControlled(t, 2)
	first := r.enable("first", gate.Claim{Generation: 5, UID: "u", Node: "worker"})
	r.awaitOffered(2)
	second := r.enable("second", gate.Claim{Generation: 6, UID: "u"})
	if over := r.end(first); over.Code != codes.Aborted || !strings.Contains(over.Reason, "generation 6") {
		t.Errorf("the first stream ended with %v, want ABORTED and who took over", over)
	}
	older := r.enable("older", gate.Claim{Generation: 4, UID: "u"})
	if over := r.end(older); over.Code != codes.FailedPrecondition {
		t.Errorf("an older generation is answered %v, want FAILED_PRECONDITION", over)
	}
	first.Close()
	if s, err := second.Next(testkit.Context(r.t)); err != nil || s.Generation != 6 {
		t.Errorf("the second stream has %+v, %v; want generation 6", s, err)
	}
	if n := r.kubelet.Allocatable(resource); n != 2 {
		t.Errorf("%d devices are offered, want 2: a take-over keeps them", n)
	}
}

func TestLeaseRunsOut(t *testing.T) {
	t.Parallel()
	const lease = time.Second
	r := newControlled(t, 2)
	r.enable("long", gate.Claim{Generation: 1, Lease: time.Hour})
	if got, err := r.plugin.Heartbeat("long"); err != nil || got != time.Hour {
		t.Errorf("a heartbeat is answered %s, %v", got, err)
	}
	r.awaitOffered(2)
	began := time.Now()
	s := r.enable("s", gate.Claim{Generation: 2, Lease: lease})
	r.awaitOffered(0)
	if held := time.Since(began); held < lease {
		t.Errorf("the devices were withdrawn after %s, want the lease, %s", held, lease)
	}
	if over := r.end(s); over.Code != codes.DeadlineExceeded {
		t.Errorf("the stream ended with %v, want DEADLINE_EXCEEDED", over)
	}
	testkit.WantError(t, "a lease that ran out was renewed", testkit.Err(r.plugin.Heartbeat("s")), nil)
}

func TestHoldOutlastsALoss(t *testing.T) {
	t.Parallel()
	r := newControlled(t, 2)
	r.enable("s", gate.Claim{Generation: 1, Hold: time.Hour}).Close()
	r.awaitOffered(2)
	if s := r.plugin.Status(); s.Holding != gate.Lost || s.HoldEnds.IsZero() {
		t.Errorf("the plugin says %+v, want that a hold time runs", s)
	}
	if d, err := r.plugin.Disable(testkit.Context(r.t), ""); err != nil || !d.Acknowledged {
		t.Errorf("Disable: %+v, %v; no hold time applies to it", d, err)
	}
	r.awaitOffered(0)
}

// A claim with another hash is refused until the configuration, which is read
// again, has it.
func TestEnableRequiresItsConfigHash(t *testing.T) {
	t.Parallel()
	r := newRig(t, 2)
	r.config.Controlled = true
	r.config.Interval = time.Hour
	r.start()
	next := `{"resourceList": [{"resourceName": "vf", "resourcePrefix": "example.com", "selectors": [{"pfNames": ["ens1#0"]}]}]}`
	s := r.enable("early", gate.Claim{Generation: 1, Hash: plugin.Hash([]byte(next))})
	if over := r.end(s); over.Code != codes.FailedPrecondition || !strings.Contains(over.Reason, "hash") {
		t.Errorf("answered %v, want FAILED_PRECONDITION about the hash", over)
	}
	r.configure(next)
	r.enable("in time", gate.Claim{Generation: 1, Hash: plugin.Hash([]byte(next))})
	r.awaitOffered(1)
	r.configure(oneResource)
	r.awaitOffered(0)
}

func TestDisableContinuesWithoutItsCaller(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	r.config.Controlled = true
	blocked, entered := make(chan struct{}), make(chan struct{})
	r.config.Memory = &slowMemory{entered: entered, blocked: blocked}
	r.start()
	r.enable("s", gate.Claim{Generation: 1})
	r.awaitOffered(1)
	result := make(chan error, 1)
	go func() {
		_, err := r.kubelet.Allocate(r.t.Context(), resource, r.tree.Virtual(pfAddress)[0])
		result <- err
	}()
	<-entered
	ctx := testkit.Canceled(t)
	testkit.WantError(t, "a Disable whose caller is gone", testkit.Err(r.plugin.Disable(ctx, "")), context.Canceled)
	testkit.Eventually(r.t, "the withdrawal has begun", func() bool { return r.plugin.Status().Resources[resource].Phase == gate.Withdrawing })
	close(blocked)
	if err := <-result; status.Code(err) != codes.FailedPrecondition {
		t.Errorf("the call ended with %v, want that it is refused: the withdrawal goes on", err)
	}
	if d, err := r.plugin.Disable(testkit.Context(r.t), ""); err != nil || !d.Acknowledged {
		t.Errorf("asked again: %+v, %v", d, err)
	}
}

func TestLinkHealth(t *testing.T) {
	t.Parallel()
	r := newRig(t, 2)
	r.config.LinkHealth = true
	r.tree.ChangeLink("ens1", func(l *netlinks.Link) { l.Running = true })
	r.start()
	r.awaitOffered(2)
	r.tree.ChangeLink("ens1", func(l *netlinks.Link) { l.Running = false })
	r.changes <- struct{}{}
	r.awaitOffered(0)
	lists := r.kubelet.Lists(resource)
	if last := lists[len(lists)-1]; len(last.All) != 2 {
		t.Errorf("the list has %v, want both, unhealthy", last.All)
	}
	r.tree.ChangeLink("ens1", func(l *netlinks.Link) { l.Running = true })
	r.changes <- struct{}{}
	r.awaitOffered(2)
}

func TestCDI(t *testing.T) {
	t.Parallel()
	r := newRig(t, 2)
	r.config.CDI = true
	const pf = "0000:3c:00.0"
	r.tree.Add(sysfstest.Function{Address: pf, Vendor: "8086", Device: "1572", Driver: "i40e", Netdev: "ens2", TotalVFs: 8, VFDevice: "154c", VFDriver: "igb_uio"})
	testkit.Must(t, r.tree.Write(sysfstest.Device(pf)+"/sriov_numvfs", "2"))
	for _, vf := range r.tree.Virtual(pf) {
		r.tree.AddUIO(vf)
	}
	r.configure(strings.ReplaceAll(oneResource, "ens1", "ens2"))
	r.start()
	r.awaitOffered(2)
	specs := func() []string {
		return testkit.Value(filepath.Glob(filepath.Join(r.config.Files.CDI, "sriov-dp-*")))(t)
	}
	given := testkit.Value(r.kubelet.Allocate(testkit.Context(r.t), resource, r.tree.Virtual(pf)[0]))(t)
	if len(given.Devices) != 0 {
		t.Errorf("device nodes go along beside CDI: %v", given.Devices)
	}
	names := specs()
	if len(names) != 1 {
		t.Fatalf("the specifications are %v, want one", names)
	}
	if text, err := os.ReadFile(names[0]); err != nil || !strings.Contains(string(text), "/dev/uio1") {
		t.Errorf("the specification holds %q, %v", text, err)
	}
	r.configure(`{"resourceList": []}`)
	r.await("the resource goes", func() bool { return r.kubelet.Allocatable(resource) == 0 })
	testkit.Eventually(r.t, "its specification goes", func() bool { return len(specs()) == 0 })
}

type countedDevlink struct{ asked atomic.Int64 }

func (d *countedDevlink) Devices(context.Context) (map[devlink.Handle]devlink.Device, error) {
	d.asked.Add(1)
	return nil, nil
}

func TestDevlinkIsReadOnlyIfASelectorNeedsIt(t *testing.T) {
	t.Parallel()
	r := newRig(t, 2)
	counted := &countedDevlink{}
	r.config.Discovery.Devlink = counted
	r.start()
	r.awaitOffered(2)
	if n := counted.asked.Load(); n != 0 {
		t.Errorf("drivers were asked %d times, and no selector wants to know", n)
	}
	r.configure(`{"resourceList": [{"resourceName": "vf", "resourcePrefix": "example.com", "selectors": [{"ddpProfiles": ["x"]}, {"pfNames": ["ens1#0"]}]}]}`)
	r.awaitOffered(1)
	if n := counted.asked.Load(); n == 0 {
		t.Error("drivers were not asked, and a selector is about profiles")
	}
}

func TestTwoPluginsOnANode(t *testing.T) {
	t.Parallel()
	r := newOffering(t, 2)
	first := r.plugin
	r.start()
	r.wrong("another SR-IOV device plugin")
	if err := first.Check(t.Context()); err != nil {
		t.Errorf("the first plugin says %v", err)
	}
	if n, m := r.kubelet.Allocatable(resource), r.kubelet.Registrations(resource); n != 2 || m != 1 {
		t.Errorf("%d devices after %d registrations, want the 2 of the first", n, m)
	}
}

func TestKubeletRefuses(t *testing.T) {
	t.Parallel()
	r := newRig(t, 2)
	r.kubelet.Refuse(errors.New("no"))
	r.start()
	testkit.Eventually(r.t, "it is tried again", func() bool { return r.plugin.Status().Error != "" || r.kubelet.Registrations(resource) > 1 })
	r.kubelet.Refuse(nil)
	r.awaitOffered(2)
	r.wrong("")
}

func TestRefusedAllocatesInTheLog(t *testing.T) {
	t.Parallel()
	r := newRig(t, 2)
	log := r.log()
	r.start()
	r.awaitOffered(2)
	began := time.Now()
	refuse := func() {
		if _, err := r.kubelet.AllocateAny(t.Context(), resource, "no such device"); err == nil {
			t.Fatal("a device that is not there was given out")
		}
	}
	for range 100 {
		refuse()
	}
	lines := func() int { return strings.Count(log.String(), "code=FailedPrecondition") }
	if n, most := lines(), 1+int(time.Since(began)/time.Second); n > most {
		t.Errorf("100 refused calls are %d lines of the log, want %d at most", n, most)
	}
	testkit.Eventually(r.t, "the next one that is logged has the count", func() bool {
		refuse()
		return strings.Contains(log.String(), "suppressed=")
	})
}

func FuzzAllocate(f *testing.F) {
	f.Add("0000:3b:02.0", "0000:3b:02.0", int32(1))
	f.Add("../../etc", "", int32(-1))
	r := newRig(f, 2)
	r.start()
	r.awaitOffered(2)
	vfs := r.tree.Virtual(pfAddress)
	f.Fuzz(func(t *testing.T, a, b string, size int32) {
		known := map[string]bool{vfs[0]: true, vfs[1]: true}
		given, err := r.kubelet.AllocateAny(t.Context(), resource, a, b)
		if (err == nil) != (known[a] && known[b]) {
			t.Errorf("%q and %q: %v, %v", a, b, given, err)
		}
		if _, err := r.kubelet.Prefer(t.Context(), resource, []string{a, b}, []string{b}, int(size)); err != nil && status.Code(err) != codes.Internal {
			t.Errorf("no preference among %q and %q, %d: %v", a, b, size, err)
		}
	})
}
