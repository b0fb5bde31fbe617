package blocklist

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/fence/enforce"
	"github.com/cleatproject/cleat/fence/plan"
	"github.com/cleatproject/cleat/internal/ledger"
	"github.com/cleatproject/cleat/internal/op"
	"github.com/cleatproject/cleat/internal/store"
	"github.com/cleatproject/cleat/internal/store/storetest"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/volume"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig is a fencer with two nodes, a at 192.0.2.1 and 198.51.100.1 and b at
// 192.0.2.2, each with a volume that it has open.
type rig struct {
	*Fencer
	cluster *fakeCluster
	object  *storetest.Object
}

func newRig(t *testing.T, osds int) *rig {
	t.Helper()
	r := &rig{cluster: newFake(osds), object: storetest.NewObject(store.ErrChanged)}
	r.restart(t)
	r.open(t, "va", clientOf("a", "192.0.2.1 198.51.100.1"), Watcher{netip.MustParseAddr("192.0.2.1"), 11, 4101})
	r.open(t, "vb", clientOf("b", "192.0.2.2"), Watcher{netip.MustParseAddr("192.0.2.2"), 22, 4102})
	return r
}

func (f *Fencer) ledger() *ledger.Ledger { return f.Grants.(*ledger.Ledger) }

// restart is what a new process has.
func (r *rig) restart(t *testing.T) {
	t.Helper()
	db := testkit.Value(store.OpenShared(t.Context(), "state", r.object, store.Options{Role: "grants", Version: 1}))(t)
	r.Fencer = New(Config{Cluster: r.cluster, Grants: ledger.New(db), Database: db, Logger: slog.New(slog.NewTextHandler(t.Output(), nil))})
}

func (r *rig) open(t *testing.T, id volume.ID, c volume.Client, watchers ...Watcher) {
	t.Helper()
	testkit.Value(r.ledger().Grant(t.Context(), volume.Grant{Volume: id, Client: c, Mode: "SINGLE_NODE_WRITER/block", Granted: time.Now()}))(t)
	r.watch(id, watchers...)
}

func (r *rig) watch(id volume.ID, watchers ...Watcher) {
	r.cluster.mu.Lock()
	defer r.cluster.mu.Unlock()
	r.cluster.watchers[id] = watchers
}

// fence applies a set of blocks as package enforce does.
func (r *rig) fence(ctx context.Context, blocks string) error {
	set := volume.FenceSet{Blocks: prefixes(blocks)}
	var err error
	if set.Clients, err = r.ledger().ClientsIn(ctx, set.Blocks); err != nil {
		return err
	}
	return r.Apply(ctx, set)
}

func (r *rig) wantHeld(t *testing.T, want string) {
	t.Helper()
	if held, err := r.Held(t.Context()); err != nil || !slices.Equal(held, prefixes(want)) {
		t.Errorf("held: %v, %v; want [%s]", held, err, want)
	}
}

// wantOpen expects that a client is accepted by all OSDs or by none.
func (r *rig) wantOpen(t *testing.T, addr string, nonce uint32, open bool) {
	t.Helper()
	want := 0
	if open {
		want = len(r.cluster.osds)
	}
	if n := r.cluster.accepts(addr, nonce); n != want {
		t.Errorf("%d OSDs accept %s/%d, want %d", n, addr, nonce, want)
	}
}

func TestFenceAndUnfence(t *testing.T) {
	r := newRig(t, 3)
	for _, o := range r.cluster.osds {
		o.lag = 2
	}
	r.cluster.pgs[0].lag, r.cluster.pgs[1].unserved = 3, true
	testkit.Must(t, r.fence(t.Context(), "192.0.2.1/32"))
	if r.cluster.pgs[0].lag > 0 {
		t.Error("Apply returned before a placement group had the map")
	}
	r.wantHeld(t, "192.0.2.1/32")
	r.wantOpen(t, "192.0.2.1", 11, false)
	r.wantOpen(t, "192.0.2.1", 99, false)
	r.wantOpen(t, "198.51.100.1", 99, false) // the node's other address
	r.wantOpen(t, "192.0.2.2", 22, true)

	before := len(r.cluster.changes)
	testkit.Must(t, r.fence(t.Context(), "192.0.2.1/32"))
	if got := r.cluster.changes[before:]; len(got) > 0 {
		t.Errorf("the same again: %q", got)
	}

	testkit.Must(t, r.fence(t.Context(), "192.0.2.0/24"))
	r.wantHeld(t, "192.0.2.0/24")
	r.wantOpen(t, "192.0.2.2", 22, false)
	r.wantOpen(t, "192.0.2.3", 1, false)

	testkit.Must(t, r.fence(t.Context(), ""))
	r.wantHeld(t, "")
	for addr, nonce := range map[string]uint32{"192.0.2.1": 11, "192.0.2.2": 22} {
		r.wantOpen(t, addr, nonce, false) // the device from before the fence
		r.wantOpen(t, addr, nonce+1, true)
	}
	r.wantOpen(t, "198.51.100.1", 99, true)
}

// An instance is fenced long after its watch has expired.
func TestInstanceWithoutAWatch(t *testing.T) {
	r := newRig(t, 1)
	testkit.Must(t, r.Record(t.Context()))
	r.watch("va")
	r.restart(t)
	testkit.Must(t, r.fence(t.Context(), "198.51.100.1/32"), r.fence(t.Context(), ""))
	r.wantOpen(t, "192.0.2.1", 11, false)
	r.wantOpen(t, "192.0.2.1", 12, true)
}

func TestRunRecordsInstances(t *testing.T) {
	r := newRig(t, 1)
	r.cluster.setFault(func(call string) (func() error, error) {
		if call == "watchers va" {
			return nil, errs.Errorf(errs.Unavailable, "inactive placement group")
		}
		return nil, nil
	})
	r.Interval = time.Millisecond
	stop := testkit.Go(t, r.Run)
	recorded := func(n int) func() bool {
		return func() bool {
			recorded, err := r.Grants.Records(t.Context())
			return err == nil && len(recorded.Instances) == n
		}
	}
	testkit.Eventually(t, "an instance, of the volume that can be listed", recorded(1))
	r.cluster.setFault(nil)
	testkit.Eventually(t, "both instances", recorded(2))
	r.watch("vb", Watcher{netip.MustParseAddr("192.0.2.2"), 23, 4103})
	testkit.Eventually(t, "a new instance", recorded(3))
	stop()
}

func TestReleaseWithoutRanges(t *testing.T) {
	r := newRig(t, 1)
	r.cluster.ranges = nil
	testkit.WantError(t, "a large block", r.fence(t.Context(), "192.0.0.0/16"), errs.Unsupported, "192.0.0.0/16", "256")
	r.wantOpen(t, "192.0.2.1", 11, true)
	testkit.Must(t, r.fence(t.Context(), "192.0.2.0/30"))
	r.wantHeld(t, "192.0.2.0/30")
	r.wantOpen(t, "192.0.2.3", 1, false)
	r.wantOpen(t, "192.0.2.4", 1, true)
	testkit.Must(t, r.fence(t.Context(), ""))
	r.wantOpen(t, "192.0.2.3", 1, true)
	for name := range r.cluster.single {
		if strings.Contains(name, "/2") && !strings.HasSuffix(name, "/22") {
			t.Errorf("useless entry %s", name)
		}
	}
}

func TestOtherPrograms(t *testing.T) {
	r := newRig(t, 1)
	foreign := func(addr string, ranged bool, expire string) {
		r.cluster.mu.Lock()
		defer r.cluster.mu.Unlock()
		testkit.Must(t, r.cluster.change(ranged, "add", addr, expire))
	}
	foreign("192.0.2.1", false, "3600.0")
	foreign("192.0.2.9:0/5", false, "3600.0")
	foreign("203.0.113.0/24", true, "3600.0")
	foreign("192.0.2.0/24", true, "157680000.0")
	r.wantHeld(t, "")
	testkit.Must(t, r.fence(t.Context(), ""), r.fence(t.Context(), "192.0.2.0/24"))
	r.wantHeld(t, "192.0.2.0/24")
	testkit.Must(t, r.fence(t.Context(), "192.0.2.1/32"), r.fence(t.Context(), ""))
	r.wantHeld(t, "")
	m := testkit.Value(r.readMap(t.Context()))(t)
	now := time.Now()
	for e, rest := range map[entry]time.Duration{
		single("192.0.2.1", 0): time.Hour, single("192.0.2.9", 5): time.Hour, ranged("203.0.113.0/24"): time.Hour, ranged("192.0.2.0/24"): expiry,
	} {
		if got := m.until[e].Sub(now); got > rest || got < rest-10*time.Minute {
			t.Errorf("the entry %s expires in %s, want %s", e, got, rest)
		}
	}
}

// What another program removes is no longer held, and Apply repairs it.
func TestRemovedByAnotherProgram(t *testing.T) {
	r := newRig(t, 2)
	for _, removed := range []string{"192.0.2.1", "198.51.100.1", "192.0.2.1:0/11"} {
		testkit.Must(t, r.fence(t.Context(), "192.0.2.1/32"))
		r.wantHeld(t, "192.0.2.1/32")
		r.cluster.mu.Lock()
		testkit.Must(t, r.cluster.change(false, "rm", removed, ""))
		r.cluster.mu.Unlock()
		r.wantHeld(t, "")
	}
	// So is an entry that is about to expire.
	testkit.Must(t, r.fence(t.Context(), "192.0.2.1/32"))
	r.cluster.mu.Lock()
	testkit.Must(t, r.cluster.change(false, "add", "192.0.2.1", "3600.0"))
	r.cluster.mu.Unlock()
	r.wantHeld(t, "")
	testkit.Must(t, r.fence(t.Context(), "192.0.2.1/32"))
	r.wantHeld(t, "192.0.2.1/32")
}

func TestUnprovedFence(t *testing.T) {
	for name, c := range map[string]struct {
		change func(f *fakeCluster)
		words  string // empty: success
	}{
		"an OSD is down":                     {func(f *fakeCluster) { f.osds[1].down = true }, ""},
		"it goes down":                       {func(f *fakeCluster) { f.osds[1].lag = 3; f.fault = failOnce("osd.1", func() { f.osds[1].down = true }) }, ""},
		"an OSD has an old map":              {func(f *fakeCluster) { f.osds[1].lag = 1 << 30 }, "osd.1 has map 10"},
		"an OSD does not answer":             {func(f *fakeCluster) { f.fault = failing("osd.0", errLost) }, "osd.0: no answer"},
		"a placement group has an old map":   {func(f *fakeCluster) { f.pgs[1].lag = 1 << 30 }, "placement group 2.1 uses map 10"},
		"a placement group does not answer":  {func(f *fakeCluster) { f.fault = failing("pg 2.0", errLost) }, "placement group 2.0: no answer"},
		"no capability for placement groups": {func(f *fakeCluster) { f.fault = failing("pg 2.0", errs.Errorf(errs.Denied, "access denied")) }, "osd 'allow *'"},
		"no capability for OSDs":             {func(f *fakeCluster) { f.osds[0].denied = true }, "osd 'allow *'"},
		"no capability for the blocklist":    {func(f *fakeCluster) { f.fault = failing("add 192.0.2.1", errs.Errorf(errs.Denied, "access denied")) }, `mon 'allow command "osd blocklist"'`},
		"no map":                             {func(f *fakeCluster) { f.fault = failing("dump", errLost) }, "read the OSD map"},
		"the map of this connection":         {func(f *fakeCluster) { f.fault = failing("wait", errLost) }, "no answer"},
		"one command of several":             {func(f *fakeCluster) { f.fault = failing("add 192.0.2.1:0/11", errLost) }, "192.0.2.1:0/11"},
		"the list of watchers":               {func(f *fakeCluster) { f.fault = failing("watchers va", errLost) }, "volume va"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, 2)
			c.change(r.cluster)
			ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
			defer cancel()
			if c.words == "" {
				ctx = t.Context()
			}
			err := r.fence(ctx, "192.0.2.1/32")
			if c.words == "" {
				testkit.Must(t, err)
				r.cluster.mu.Lock()
				r.cluster.osds = r.cluster.osds[:1]
				r.cluster.mu.Unlock()
				r.wantOpen(t, "192.0.2.1", 11, false)
				return
			}
			testkit.WantError(t, "Apply", err, errs.Unavailable, c.words)
			r.cluster.setFault(nil)
			r.cluster.mu.Lock()
			for _, o := range r.cluster.osds {
				o.lag, o.denied = 0, false
			}
			r.cluster.pgs = [2]fakePG{}
			r.cluster.mu.Unlock()
			r.restart(t)
			testkit.Must(t, r.fence(t.Context(), "192.0.2.1/32"))
			r.wantHeld(t, "192.0.2.1/32")
			r.wantOpen(t, "192.0.2.1", 11, false)
		})
	}
}

// While fences of one node fail, that of another can be lifted; what is removed
// never fences an address whose new entry is missing.
func TestUnfenceBesideFailedFences(t *testing.T) {
	r := newRig(t, 2)
	testkit.Must(t, r.fence(t.Context(), "192.0.2.2/32"))
	for name, fault := range map[string]func(string) (func() error, error){
		"the blocklist": failing("add 192.0.2.1", errs.Errorf(errs.Denied, "access denied")),
		"an OSD":        failing("osd.0", errs.Errorf(errs.Denied, "access denied")),
	} {
		r.cluster.setFault(fault)
		for _, blocks := range []string{"192.0.2.1/32 192.0.2.2/32", "192.0.2.1/32"} {
			part, ok := errors.AsType[*volume.NotEnforced](r.fence(t.Context(), blocks))
			if !ok || !slices.Equal(part.Blocks, prefixes(blocks)) {
				t.Errorf("%s: fence of %s: %+v", name, blocks, part)
			}
		}
		r.wantOpen(t, "192.0.2.2", 23, true)
		r.cluster.setFault(nil)
		testkit.Must(t, r.fence(t.Context(), "192.0.2.2/32"))
	}
	r.cluster.setFault(failing("add 192.0.2.0/30", errLost))
	testkit.WantError(t, "a wider fence", r.fence(t.Context(), "192.0.2.0/30"), errs.Unavailable, "192.0.2.0/30")
	r.wantOpen(t, "192.0.2.2", 23, false)
	r.cluster.setFault(nil)
}

func failing(call string, err error) func(string) (func() error, error) {
	return func(name string) (func() error, error) {
		if name == call {
			return nil, err
		}
		return nil, nil
	}
}

func failOnce(call string, then func()) func(string) (func() error, error) {
	done := false
	return func(name string) (func() error, error) {
		if name == call && !done {
			done = true
			return func() error { then(); return errLost }, nil
		}
		return nil, nil
	}
}

func TestCheck(t *testing.T) {
	r := newRig(t, 2)
	testkit.Must(t, r.Check(t.Context()))
	r.cluster.osds[0].denied = true
	testkit.WantError(t, "Check", r.Check(t.Context()), errs.Denied, "osd 'allow *'")
	r.cluster.osds[0].down, r.cluster.osds[1].down = true, true
	testkit.Must(t, r.Check(t.Context()))
}

// Package enforce fences, repairs and unfences with it.
func TestEnforcer(t *testing.T) {
	r := newRig(t, 2)
	operations := op.New(context.WithoutCancel(t.Context()), 20*time.Second)
	defer func() { testkit.Must(t, operations.Close(context.Background())) }()
	e := testkit.Value(enforce.New(enforce.Config{
		Ledger: r.ledger(), Operations: operations, Interval: 5 * time.Millisecond,
		Locals: []enforce.Local{{Name: "ceph", Fencer: r.Fencer}}, Logger: r.Logger,
	}))(t)
	testkit.Must(t, e.Restore(t.Context()))
	stop := testkit.Go(t, e.Guard)
	defer stop()
	request := func(blocks string) plan.Request {
		return plan.Request{Owner: volume.FenceOwner{Digest: "o"}, Blocks: prefixes(blocks)}
	}
	testkit.Must(t, e.Fence(t.Context(), request("192.0.2.0/31")), e.Fence(t.Context(), request("192.0.2.2/31 2001:db8::/64")))
	r.wantHeld(t, "192.0.2.0/30 2001:db8::/64")
	r.wantOpen(t, "192.0.2.2", 22, false)
	testkit.WantError(t, "Grant", testkit.Err(r.ledger().Grant(t.Context(), volume.Grant{Volume: "x", Client: clientOf("a", "")})), errs.Precondition, "192.0.2.0/31")

	r.cluster.mu.Lock()
	testkit.Must(t, r.cluster.change(true, "rm", "192.0.2.0/30", ""))
	r.cluster.mu.Unlock()
	testkit.Eventually(t, "a repaired fence", func() bool { return r.cluster.accepts("192.0.2.2", 1) == 0 })

	testkit.Must(t, e.Unfence(t.Context(), request("192.0.2.0/31 192.0.2.2/31 2001:db8::/64")))
	r.wantHeld(t, "")
	r.wantOpen(t, "192.0.2.2", 22, false)
	r.wantOpen(t, "192.0.2.2", 23, true)
	testkit.Value(r.ledger().Grant(t.Context(), volume.Grant{Volume: "x", Client: clientOf("a", "")}))(t)
	if list := fmt.Sprint(testkit.Value(r.owned(t.Context()))(t)); list != "[]" {
		t.Errorf("records are left: %s", list)
	}
}
