package spdk

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/store"
	"github.com/cleatproject/cleat/internal/store/storetest"
	"github.com/cleatproject/cleat/spdk/spdktest"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/volume"
	"github.com/cleatproject/cleat/volume/access"
)

// Fences whose evidence is not in the grants: none is confirmed while a session
// of a fenced client is left.

const oldHost = "nqn.2014-08.org.example:old" // admitted before the adoption

// disconnect keeps controllers from a target, whose data path goes on.
func (r *rig) disconnect() { r.targets[0].Inject(spdktest.Fault{Instead: spdktest.Drop}) }

// unconfirmed fences a block while no controller reaches the target, and again
// when it answers.
func (r *rig) unconfirmed(e *Engine, text string, s session) {
	r.t.Helper()
	r.disconnect()
	f := enforcer(r.t.(*testing.T), e)
	wantKind(r.t, f.Fence(testkit.Context(r.t), block(text)), "fence without the target", errs.Unavailable)
	r.targets[0].Clear()
	testkit.Must(r.t, f.Fence(testkit.Context(r.t), block(text)))
	if s.Alive() {
		r.t.Error("the fence is confirmed, and a session of the client is alive")
	}
}

// An unpublish that has not reached the target.
func TestFenceAfterHalfOfUnpublish(t *testing.T) {
	r := newRig(t, "one")
	e := r.engine()
	v := create(t, e, "v", volume.Source{})
	publish(t, e, v.ID, node("n1", "192.0.2.1"))
	s := r.mustConnect(v, access.HostNQN("n1"), "192.0.2.1")
	testkit.Must(t, e.compare(testkit.Context(t), e.order[0]))
	r.disconnect()
	wantKind(t, revoke(testkit.Context(t), e, v.ID, "n1"), "unpublish", errs.Unavailable)
	r.unconfirmed(e, "192.0.2.1/32", s)
}

// The same, while another controller completes an earlier unpublish of the node.
func TestFenceAfterOverlappingUnpublishes(t *testing.T) {
	r := newRig(t, "one")
	a, b := r.engine(), r.engine()
	ctx := testkit.Context(t)
	v := create(t, a, "v", volume.Source{})
	publish(t, a, v.ID, node("n1", "192.0.2.1"))
	testkit.Must(t, a.compare(ctx, a.order[0]))
	var s session
	testkit.Must(t, ledgerOf(a).Revoke(ctx, v.ID, "n1", func(ctx context.Context) error {
		testkit.Must(t, a.Revoke(ctx, v.ID, "n1"))
		publish(t, b, v.ID, node("n1", "192.0.2.1"))
		s = r.mustConnect(v, access.HostNQN("n1"), "192.0.2.1")
		r.disconnect()
		wantKind(t, revoke(ctx, b, v.ID, "n1"), "half of an unpublish", errs.Unavailable)
		return nil
	}))
	r.unconfirmed(b, "192.0.2.1/32", s)
}

// A host admitted before the adoption, which has no grant: connected, and later not.
func TestFenceOfAdoptedHost(t *testing.T) {
	r := newRig(t, "one")
	e := r.engine()
	ctx := testkit.Context(t)
	v := r.adopted(e, "v", oldHost, "192.0.2.9")
	s := r.mustConnect(v, oldHost, "192.0.2.9")
	testkit.Must(t, e.compare(ctx, e.order[0]))
	r.unconfirmed(e, "192.0.2.9/32", s)
	r.refused(v, oldHost)

	v = r.adopted(e, "w", oldHost, "192.0.2.8")
	r.mustConnect(v, oldHost, "192.0.2.8").Close()
	testkit.Must(t, enforcer(t, e).Fence(ctx, block("192.0.2.8/32")))
	r.refused(v, oldHost)
}

// adopted returns a volume that a host had before its adoption, from an address.
func (r *rig) adopted(e *Engine, name, host, from string) volume.Volume {
	r.t.Helper()
	ctx := testkit.Context(r.t)
	v := create(r.t, e, name, volume.Source{})
	nqn := v.Locator.(access.NVMe).NQN
	testkit.Must(r.t, e.drop(ctx, testkit.Value(e.find(ctx, v.ID))(r.t)), r.client(0).AllowAnyHost(ctx, nqn, true))
	s := r.mustConnect(v, host, from)
	testkit.Must(r.t, testkit.Err(e.own(ctx, v.ID)), e.compare(ctx, e.order[0]))
	s.Close()
	return v
}

// The records are lost: a fence adopts the volume that a fenced address uses.
func TestFenceAfterLossOfRecords(t *testing.T) {
	r := newRig(t, "one")
	e := r.engine()
	v, other := create(t, e, "v", volume.Source{}), create(t, e, "other", volume.Source{})
	publish(t, e, v.ID, node("n1", "192.0.2.1"))
	publish(t, e, other.ID, node("n2", "192.0.2.2"))
	s := r.mustConnect(v, access.HostNQN("n1"), "192.0.2.1")
	goesOn := r.mustConnect(other, access.HostNQN("n2"), "192.0.2.2")
	r.object = storetest.NewObject(store.ErrChanged)
	e = r.engine()
	r.unconfirmed(e, "192.0.2.1/32", s)
	if !goesOn.Alive() {
		t.Error("the session of another client has ended")
	}
}

// The fenced client was away when the records were lost, and comes back.
func TestFenceOfAbsentClientAfterLossOfRecords(t *testing.T) {
	for name, adopted := range map[string]bool{"not adopted": false, "adopted": true} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, "one")
			old := r.engine()
			v := create(t, old, "v", volume.Source{})
			publish(t, old, v.ID, node("n1", "192.0.2.1"))
			r.object = storetest.NewObject(store.ErrChanged)
			e := r.engine()
			if adopted {
				testkit.Must(t, testkit.Err(e.own(testkit.Context(t), v.ID)))
			}
			testkit.Must(t, enforcer(t, e).Fence(testkit.Context(t), block("192.0.2.1/32")))
			r.refused(v, access.HostNQN("n1"))
		})
	}
}

// lost returns a controller without the record of a volume, and the session of a
// client of the volume.
func (r *rig) lost() (*Engine, session) {
	r.t.Helper()
	e := r.engine()
	ctx := testkit.Context(r.t)
	v := create(r.t, e, "v", volume.Source{})
	testkit.Must(r.t, e.compare(ctx, e.order[0]))
	publish(r.t, e, v.ID, node("n1", "192.0.2.1"))
	s := r.mustConnect(v, access.HostNQN("n1"), "192.0.2.1")
	testkit.Must(r.t, e.drop(ctx, testkit.Value(e.find(ctx, v.ID))(r.t)), ledgerOf(e).Revoke(ctx, v.ID, "", nil))
	return r.engine(), s
}

// A part of the records is lost, as those of an older backup lack later volumes.
func TestFenceAfterLossOfOneRecord(t *testing.T) {
	r := newRig(t, "one")
	e, s := r.lost()
	testkit.Must(t, e.compare(testkit.Context(t), e.order[0]))
	r.unconfirmed(e, "192.0.2.1/32", s)
}

// As above, but the target does not let the volume be adopted at first.
func TestFenceAfterFailedAdoption(t *testing.T) {
	r := newRig(t, "one")
	e, s := r.lost()
	for _, method := range []string{"bdev_get_bdevs", "bdev_lvol_get_lvols"} {
		r.targets[0].Inject(spdktest.Fault{Method: method, Instead: spdktest.Drop})
	}
	defer r.targets[0].Clear()
	wantKind(t, enforcer(t, e).Fence(testkit.Context(t), block("192.0.2.1/32")), "fence", errs.Unavailable)
	if !s.Alive() {
		t.Error("the session has ended, so that the test shows nothing")
	}
}

// A DPU that is connected, and was not seen by a comparison yet.
func TestFenceOfUnseenDPU(t *testing.T) {
	r := newRig(t, "one")
	e := r.engine()
	v := create(t, e, "v", volume.Source{})
	testkit.Must(t, e.compare(testkit.Context(t), e.order[0]))
	publish(t, e, v.ID, node("dpu-1"))
	s := r.mustConnect(v, access.HostNQN("dpu-1"), "192.0.2.9")
	r.unconfirmed(e, "192.0.2.9/32", s)
}

// A DPU has got the volume with an address that it and another node had since.
func TestFenceOfFormerAddress(t *testing.T) {
	r := newRig(t, "one")
	e := r.engine()
	ctx := testkit.Context(t)
	l := ledgerOf(e)
	v := create(t, e, "v", volume.Source{})
	testkit.Must(t, e.compare(ctx, e.order[0]), l.RecordClient(ctx, node("dpu-1", "192.0.2.1")))
	publish(t, e, v.ID, node("dpu-1"))
	s := r.mustConnect(v, access.HostNQN("dpu-1"), "192.0.2.1")
	for _, c := range []volume.Client{node("dpu-1", "192.0.2.2"), node("n9", "192.0.2.1"), node("n9", "192.0.2.19")} {
		testkit.Must(t, l.RecordClient(ctx, c))
	}
	r.disconnect()
	wantKind(t, enforcer(t, e).Fence(ctx, block("192.0.2.2/32")), "fence of the present address", errs.Unavailable)
	r.unconfirmed(e, "192.0.2.1/32", s)
}

// The target answers, but does not list the connections of one volume.
func TestFenceWithUnreadConnections(t *testing.T) {
	r := newRig(t, "one")
	e := r.engine()
	ctx := testkit.Context(t)
	v := create(t, e, "v", volume.Source{})
	publish(t, e, v.ID, node("n1", "192.0.2.1"))
	testkit.Must(t, e.compare(ctx, e.order[0]))
	s := r.mustConnect(v, access.HostNQN("n1"), "203.0.113.1")
	f := enforcer(t, e)
	r.targets[0].Inject(spdktest.Fault{Method: "nvmf_subsystem_get_qpairs", Error: &spdktest.Error{Code: -32603, Message: "Internal error"}})
	wantKind(t, f.Fence(ctx, block("203.0.113.0/24")), "fence", errs.Unavailable)
	r.targets[0].Clear()
	testkit.Must(t, f.Fence(ctx, block("203.0.113.0/24")))
	if s.Alive() {
		t.Error("the session from a fenced address is alive")
	}
}

// Another controller has found an export without a record, and adopted it.
func TestComparedByAnother(t *testing.T) {
	r := newRig(t, "one")
	a, b := r.engine(), r.engine()
	ctx := testkit.Context(t)
	target := a.order[0]
	testkit.Must(t, a.compare(ctx, target), b.noteCompared(ctx, b.order[0], false), a.compare(ctx, target))
	if s := testkit.Value(b.state(ctx))(t); !s.compared[target.Name] {
		t.Error("the target does not count as compared again")
	}
}

// A repair of another controller, with the hosts admitted before the adoption as they
// were, is slower than a fence.
func TestFenceDuringRepairOfAnotherController(t *testing.T) {
	r := newRig(t, "one")
	a, b := r.engine(), r.engine()
	ctx := testkit.Context(t)
	v := r.adopted(a, "v", oldHost, "192.0.2.9")
	testkit.Must(t, r.targets[0].Restart())
	r.offer(0)
	r.targets[0].Forget()
	r.targets[0].Inject(spdktest.Fault{Method: "nvmf_subsystem_add_ns", Times: 1, Wait: time.Second})
	repaired := testkit.Go(t, func(context.Context) error { return a.compare(ctx, a.order[0]) })
	testkit.Eventually(t, "an export in flight", func() bool { return r.targets[0].Counts()["nvmf_subsystem_add_ns"] > 0 })
	testkit.Must(t, enforcer(t, b).Fence(ctx, block("192.0.2.9/32")))
	repaired()
	r.refused(v, oldHost)
}

// Neither a volume that cannot be exported nor another target that is down keep
// a fence from being confirmed or lifted, or a controller from starting.
func TestFenceBesideFailures(t *testing.T) {
	r := newRig(t, "one", "two")
	e := r.engine()
	ctx := testkit.Context(t)
	var all []volume.Volume
	for i, target := range []int{0, 0, 1} {
		req := request(fmt.Sprint("v", i), volume.Source{})
		req.Parameters = map[string]string{keyTarget: targetName(target)}
		all = append(all, testkit.Value(e.Create(ctx, req))(t))
	}
	publish(t, e, all[0].ID, node("n1", "192.0.2.1"))
	publish(t, e, all[2].ID, node("n2", "192.0.2.2"))
	testkit.Must(t, e.compare(ctx, e.order[0]), e.compare(ctx, e.order[1]))
	s := r.mustConnect(all[0], access.HostNQN("n1"), "192.0.2.1")
	testkit.Must(t, r.client(0).DeleteLvol(ctx, r.uuid(all[1])))
	r.targets[1].Kill()
	f := enforcer(t, e)
	testkit.Must(t, f.Fence(ctx, block("192.0.2.1/32")))
	if s.Alive() {
		t.Error("the session of the fenced client is alive")
	}
	r.targets[0].Kill()
	testkit.Must(t, enforcer(t, r.engine()).Restore(ctx), r.targets[0].Start())
	r.offer(0)
	testkit.Must(t, f.Unfence(ctx, block("192.0.2.1/32")))
}

// After the loss of the records a node has its volume without a grant. When the
// node loses the volume, its session ends before another one gets it.
func TestUnpublishOfAdoptedNode(t *testing.T) {
	for name, nodes := range map[string]struct{ published, unpublished string }{
		"published again":       {"n1", "n1"},
		"not published again":   {"", "n1"},
		"from all nodes":        {"", ""},
		"all after a publish":   {"n1", ""},
		"another one publishes": {"n2", "n1"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, "one")
			v := create(t, r.engine(), "v", volume.Source{})
			old := r.engine()
			publish(t, old, v.ID, node("n1", "192.0.2.1"))
			s := r.mustConnect(v, access.HostNQN("n1"), "192.0.2.1")
			r.object = storetest.NewObject(store.ErrChanged)
			e := r.engine()
			if nodes.published != "" {
				publish(t, e, v.ID, node(nodes.published, "192.0.2.1"))
				if !s.Alive() {
					t.Error("the adoption has ended the session")
				}
			}
			unpublish(t, e, v.ID, nodes.unpublished)
			if s.Alive() {
				t.Error("the session is alive after the unpublish")
			}
			r.refused(v, access.HostNQN("n1"))
		})
	}
}

// A call on a volume of another client takes long, and a fence of many volumes
// reads the records as often as one of few.
func TestFenceReadsOnce(t *testing.T) {
	r := newRig(t, "one")
	e := r.engine()
	ctx := testkit.Context(t)
	reads := map[int]int{}
	published := 0
	for _, volumes := range []int{3, 30} {
		for ; published < volumes; published++ {
			publish(t, e, create(t, e, fmt.Sprint("v", published), volume.Source{}).ID, node("n1", "192.0.2.1"))
		}
		busy := create(t, e, fmt.Sprint("busy", volumes), volume.Source{})
		publish(t, e, busy.ID, node("n2", "192.0.2.2"))
		unlock := testkit.Value(e.lock(ctx, volumeKey(busy.Name)))(t)
		counted := &countedReads{Database: e.config.Database}
		e.config.Database = counted
		testkit.Must(t, enforcer(t, e).Fence(ctx, block("192.0.2.1/32")), enforcer(t, e).Unfence(ctx, block("192.0.2.1/32")))
		e.config.Database, reads[volumes] = counted.Database, counted.views
		unlock()
	}
	if reads[3] != reads[30] {
		t.Errorf("a fence reads the records %d times with 3 volumes, %d times with 30", reads[3], reads[30])
	}
}

// countedReads counts the reads of the engine, each of which can be a request.
type countedReads struct {
	store.Database
	views int
}

func (c *countedReads) View(ctx context.Context, fn func(*store.Tx) error) error {
	c.views++
	return c.Database.View(ctx, fn)
}

// A repair that has read the records before the fence admits the client after
// it: the fence is confirmed later.
func TestFenceDuringRepair(t *testing.T) {
	r := newRig(t, "one")
	e := r.engine()
	ctx := testkit.Context(t)
	v := create(t, e, "v", volume.Source{})
	testkit.Must(t, grant(t, e, v.ID, node("n1", "192.0.2.1"))) // a publish that was killed then
	r.targets[0].Forget()
	r.targets[0].Inject(spdktest.Fault{Method: "nvmf_subsystem_add_host", Times: 1, Wait: 500 * time.Millisecond})
	repaired := testkit.Go(t, func(context.Context) error { return e.compare(ctx, e.order[0]) })
	testkit.Eventually(t, "an admission in flight", func() bool { return r.targets[0].Counts()["nvmf_subsystem_add_host"] > 0 })
	testkit.Must(t, enforcer(t, e).Fence(ctx, block("192.0.2.1/32")))
	r.refused(v, access.HostNQN("n1"))
	repaired()
	r.refused(v, access.HostNQN("n1"))
}

// A client connects from a fenced address after the fence.
func TestSessionAfterFence(t *testing.T) {
	r := newRig(t, "one")
	e := r.engine()
	ctx := testkit.Context(t)
	v := create(t, e, "v", volume.Source{})
	publish(t, e, v.ID, node("n1", "192.0.2.1"))
	f := enforcer(t, e)
	testkit.Must(t, f.Fence(ctx, block("203.0.113.0/24")))
	s := r.mustConnect(v, access.HostNQN("n1"), "203.0.113.1")
	testkit.Go(t, f.Guard)
	testkit.Eventually(t, "the end of the session", func() bool { return !s.Alive() })
	r.refused(v, access.HostNQN("n1"))
}

// A DPU that has another address than when it was seen first.
func TestFenceOfMovedDPU(t *testing.T) {
	r := newRig(t, "one")
	e := r.engine()
	ctx := testkit.Context(t)
	v := create(t, e, "v", volume.Source{})
	publish(t, e, v.ID, node("dpu-1"))
	for _, from := range []string{"192.0.2.9", "192.0.2.10"} {
		s := r.mustConnect(v, access.HostNQN("dpu-1"), from)
		testkit.Must(t, e.compare(ctx, e.order[0]))
		s.Close()
	}
	testkit.Must(t, enforcer(t, e).Fence(ctx, block("192.0.2.10/32")))
	r.refused(v, access.HostNQN("dpu-1"))
}

// The number of a session that was being ended is another client's after a
// restart of the target.
func TestNumberOfEndedSession(t *testing.T) {
	r := newRig(t, "one")
	e := r.engine()
	ctx := testkit.Context(t)
	v := create(t, e, "v", volume.Source{})
	publish(t, e, v.ID, node("n1", "192.0.2.1"))
	publish(t, e, v.ID, node("n2", "192.0.2.2"))
	r.mustConnect(v, access.HostNQN("n1"), "192.0.2.1")
	ended := testkit.Value(e.Sessions(ctx, block("192.0.2.1/32").Blocks))(t)
	testkit.Must(t, r.targets[0].Restart())
	r.offer(0)
	unpublish(t, e, v.ID, "n1")
	s := r.mustConnect(v, access.HostNQN("n2"), "192.0.2.2")
	testkit.Must(t, e.End(ctx, ended))
	if !s.Alive() {
		t.Error("the session of the other client has ended")
	}
}
