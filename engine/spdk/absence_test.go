package spdk

import (
	"strings"
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

// A target that has restarted lists no session until its hosts have connected again.

// restarted restarts the target, whose exports are as recorded again, and no host has
// connected.
func (r *rig) restarted(e *Engine) {
	r.t.Helper()
	testkit.Must(r.t, r.targets[0].Restart())
	r.offer(0)
	testkit.Must(r.t, e.compare(testkit.Context(r.t), e.order[0]), e.compare(testkit.Context(r.t), e.order[0]))
}

// away compares until a host of a volume counts as gone.
func (r *rig) away(e *Engine, v volume.Volume, host string) {
	r.t.Helper()
	e.returnTime = time.Nanosecond
	testkit.Eventually(r.t, "the host is gone", func() bool {
		testkit.Must(r.t, e.compare(testkit.Context(r.t), e.order[0]))
		return e.order[0].gone(e.returnTime)[hostAt{nqnOf(r.uuid(v)), host}]
	})
}

// A publish or unpublish that comes before the hosts keeps none of them out.
func TestAdoptedHostAfterRestart(t *testing.T) {
	r := newRig(t, "one")
	e := r.engine()
	v := r.adopted(e, "v", oldHost, "192.0.2.9")
	r.mustConnect(v, oldHost, "192.0.2.9")
	r.restarted(e)
	publish(t, e, v.ID, node("n1", "192.0.2.1"))
	r.mustConnect(v, oldHost, "192.0.2.9")
	r.restarted(e)
	unpublish(t, e, v.ID, "n1")
	r.mustConnect(v, oldHost, "192.0.2.9")
}

// A volume is deleted when its hosts had the time to connect again, and have not.
func TestDeleteAfterRestart(t *testing.T) {
	r := newRig(t, "one")
	e := r.engine()
	ctx := testkit.Context(t)
	v := r.adopted(e, "v", oldHost, "192.0.2.9")
	r.mustConnect(v, oldHost, "192.0.2.9")
	r.restarted(e)
	wantKind(t, e.Delete(ctx, v.ID), "deletion before the host has connected again", errs.Unavailable)
	s := r.mustConnect(v, oldHost, "192.0.2.9")
	wantKind(t, e.Delete(ctx, v.ID), "deletion of a volume in use", errs.Precondition)
	e.returnTime = time.Nanosecond
	testkit.Must(t, e.compare(ctx, e.order[0]))
	s.Close()
	wantKind(t, e.Delete(ctx, v.ID), "deletion before a comparison has missed the host", errs.Unavailable)
	r.away(e, v, oldHost)
	testkit.Must(t, e.Delete(ctx, v.ID))
	r.left(0)
}

// Neither a target that did not answer nor an export that was missing count as time in
// which a host could have connected.
func TestAbsenceIsInterrupted(t *testing.T) {
	for name, interrupt := range map[string]func(r *rig, e *Engine){
		"no answer": func(r *rig, e *Engine) {
			r.disconnect()
			wantKind(r.t, e.compare(testkit.Context(r.t), e.order[0]), "comparison", errs.Unavailable)
			r.targets[0].Clear()
		},
		"no export": func(r *rig, e *Engine) {
			for _, x := range testkit.Value(r.client(0).Subsystems(testkit.Context(r.t)))(r.t.(*testing.T)) {
				if strings.HasPrefix(x.NQN, nqnPrefix) {
					testkit.Must(r.t, r.client(0).DeleteSubsystem(testkit.Context(r.t), x.NQN))
				}
			}
			testkit.Must(r.t, e.compare(testkit.Context(r.t), e.order[0]))
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, "one")
			e := r.engine()
			ctx := testkit.Context(t)
			v := r.adopted(e, "v", oldHost, "192.0.2.9")
			r.away(e, v, oldHost)
			interrupt(r, e)
			wantKind(t, e.Delete(ctx, v.ID), "deletion", errs.Unavailable)
			r.away(e, v, oldHost)
			testkit.Must(t, e.Delete(ctx, v.ID))
		})
	}
}

// A DPU that no comparison has seen connected can be in any block.
func TestFenceOfUnseenDPUAfterRestart(t *testing.T) {
	r := newRig(t, "one")
	e := r.engine()
	ctx := testkit.Context(t)
	v := create(t, e, "v", volume.Source{})
	testkit.Must(t, e.compare(ctx, e.order[0]))
	publish(t, e, v.ID, node("dpu-1"))
	r.mustConnect(v, access.HostNQN("dpu-1"), "192.0.2.9")
	r.restarted(e)
	f := enforcer(t, e)
	wantKind(t, f.Fence(ctx, block("192.0.2.9/32")), "fence before the DPU has connected again", errs.Unavailable)
	s := r.mustConnect(v, access.HostNQN("dpu-1"), "192.0.2.9")
	testkit.Must(t, f.Fence(ctx, block("192.0.2.9/32")))
	if s.Alive() {
		t.Error("the fence is confirmed, and the session of the DPU is alive")
	}
	r.refused(v, access.HostNQN("dpu-1"))
}

// SPDK 24.01 lists connections without their hosts and addresses.
func TestFenceAtEarlierRelease(t *testing.T) {
	r := &rig{t: t, network: spdktest.NewNetwork(nil), object: storetest.NewObject(store.ErrChanged), log: testkit.NewLog(t), flavour: spdktest.Fork}
	r.timing.RemoveHost = 500 * time.Millisecond
	r.start(0)
	e := r.engine()
	ctx := testkit.Context(t)
	v := create(t, e, "v", volume.Source{})
	testkit.Must(t, e.compare(ctx, e.order[0]))
	publish(t, e, v.ID, node("n1", "192.0.2.1"))
	s := r.mustConnect(v, access.HostNQN("n1"), "192.0.2.1")
	testkit.Must(t, r.client(0).RemoveHost(ctx, nqnOf(r.uuid(v)), access.HostNQN("n1"))) // half of an unpublish
	f := enforcer(t, e)
	testkit.Must(t, f.Fence(ctx, block("192.0.2.1/32")))
	if s.Alive() {
		t.Error("the fence is confirmed, and the session of the host is alive")
	}

	publish(t, e, v.ID, node("dpu-1"))
	s = r.mustConnect(v, access.HostNQN("dpu-1"), "192.0.2.9")
	e.returnTime = time.Nanosecond
	testkit.Must(t, e.compare(ctx, e.order[0]), e.compare(ctx, e.order[0]))
	wantKind(t, f.Fence(ctx, block("192.0.2.9/32")), "fence of a DPU whose address is not shown", errs.Unavailable)
	unpublish(t, e, v.ID, "dpu-1")
	testkit.Must(t, f.Fence(ctx, block("192.0.2.9/32")))
	if s.Alive() {
		t.Error("the fence is confirmed, and the session of the DPU is alive")
	}
}
