package spdk

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/fence/enforce"
	"github.com/cleatproject/cleat/fence/plan"
	"github.com/cleatproject/cleat/internal/op"
	"github.com/cleatproject/cleat/spdk/spdktest"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/volume"
	"github.com/cleatproject/cleat/volume/access"
)

func enforcer(t *testing.T, e *Engine, bounds ...enforce.Bounds) *enforce.Enforcer {
	operations := op.New(t.Context(), 0)
	t.Cleanup(func() { testkit.Must(t, operations.Close(testkit.Context(t))) })
	c := enforce.Config{Ledger: ledgerOf(e), Operations: operations, Locals: []enforce.Local{{Name: "spdk", Fencer: e, Deferred: true}}}
	for _, b := range bounds {
		c.Bounds = b
	}
	return testkit.Value(enforce.New(c))(t)
}

func block(text string) plan.Request {
	return plan.Request{Owner: volume.FenceOwner{Digest: "a"}, Blocks: []netip.Prefix{netip.MustParsePrefix(text)}}
}

// A fence by address ends the sessions of the client on all targets, and lasts
// over a restart of the target and of the controller; other clients go on.
func TestFence(t *testing.T) {
	r := newRig(t, "one", "two")
	e := r.engine()
	ctx := testkit.Context(t)
	var all []volume.Volume
	var fenced, others []session
	for i := range 4 {
		req := request("v"+string(rune('0'+i)), volume.Source{})
		req.Parameters = map[string]string{keyTarget: targetName(i % 2)}
		v := testkit.Value(e.Create(ctx, req))(t)
		all = append(all, v)
		publish(t, e, v.ID, node("n1", "192.0.2.1"))
		publish(t, e, v.ID, node("n2", "192.0.2.2"))
		fenced = append(fenced, r.mustConnect(v, access.HostNQN("n1"), "192.0.2.1"))
		others = append(others, r.mustConnect(v, access.HostNQN("n2"), "192.0.2.2"))
	}
	f := enforcer(t, e)
	testkit.Must(t, f.Fence(ctx, block("192.0.2.1/32")))
	wantAlive(t, "fenced", fenced, false)
	wantAlive(t, "other", others, true)
	for _, v := range all {
		r.refused(v, access.HostNQN("n1"))
	}
	testkit.Must(t, r.targets[0].Restart())
	r.offer(0)
	next := r.engine()
	testkit.Must(t, next.compare(ctx, next.order[0]))
	r.refused(all[0], access.HostNQN("n1"))
	r.mustConnect(all[0], access.HostNQN("n2"), "192.0.2.2")
	if held := testkit.Value(next.Held(ctx))(t); !slices.Equal(held, block("192.0.2.1/32").Blocks) {
		t.Errorf("held: %v", held)
	}
	testkit.Must(t, f.Unfence(ctx, block("192.0.2.1/32")))
	for _, v := range all {
		testkit.Must(t, e.Enforce(ctx, v.ID))
		r.mustConnect(v, access.HostNQN("n1"), "192.0.2.1")
	}
}

func wantAlive(t *testing.T, whose string, sessions []session, want bool) {
	t.Helper()
	for i, s := range sessions {
		if s.Alive() != want {
			t.Errorf("%s session %d: alive %t, want %t", whose, i, s.Alive(), want)
		}
	}
}

// A DPU has no address in its node id. Its address is learnt while it is
// connected, so that a fence finds it after it has died.
func TestFenceOfDPU(t *testing.T) {
	r := newRig(t, "one")
	e := r.engine()
	ctx := testkit.Context(t)
	v := create(t, e, "v", volume.Source{})
	publish(t, e, v.ID, node("dpu-1"))
	s := r.mustConnect(v, access.HostNQN("dpu-1"), "192.0.2.9")
	testkit.Must(t, e.compare(ctx, e.order[0]))
	s.Close() // it has died; it is never unpublished
	f := enforcer(t, e)
	testkit.Must(t, f.Fence(ctx, block("192.0.2.9/32")))
	r.refused(v, access.HostNQN("dpu-1"))
}

// A client that is connected from another address than the recorded one.
func TestFenceByLiveConnection(t *testing.T) {
	r := newRig(t, "one")
	e := r.engine()
	ctx := testkit.Context(t)
	v := create(t, e, "v", volume.Source{})
	publish(t, e, v.ID, node("n1", "192.0.2.1"))
	s := r.mustConnect(v, access.HostNQN("n1"), "203.0.113.1")
	testkit.Must(t, enforcer(t, e).Fence(ctx, block("203.0.113.0/24")))
	if s.Alive() {
		t.Error("the session from a fenced address is alive")
	}
	r.refused(v, access.HostNQN("n1"))
}

// While a target with a volume of the client does not answer, the fence is not
// confirmed; a target without one does not matter.
func TestFenceWithoutTarget(t *testing.T) {
	r := newRig(t, "one", "two")
	e := r.engine()
	ctx := testkit.Context(t)
	req := request("v", volume.Source{})
	req.Parameters = map[string]string{keyTarget: targetName(0)}
	v := testkit.Value(e.Create(ctx, req))(t)
	publish(t, e, v.ID, node("n1", "192.0.2.1"))
	f := enforcer(t, e)
	// A target whose exports were never compared with the records can have any client.
	r.targets[1].Kill()
	wantKind(t, f.Fence(ctx, block("192.0.2.1/32")), "fence without a target that was never seen", errs.Unavailable)
	testkit.Must(t, f.Unfence(ctx, block("192.0.2.1/32")), r.targets[1].Start())
	r.offer(1)
	testkit.Must(t, e.compare(ctx, e.order[1]))
	r.targets[1].Kill()
	testkit.Must(t, f.Fence(ctx, block("192.0.2.1/32")), f.Unfence(ctx, block("192.0.2.1/32")))
	r.targets[0].Kill()
	wantKind(t, f.Fence(ctx, block("192.0.2.1/32")), "fence without the target", errs.Unavailable)
	testkit.Must(t, r.targets[0].Start())
	r.offer(0)
	testkit.Must(t, f.Fence(ctx, block("192.0.2.1/32")))
	r.refused(v, access.HostNQN("n1"))
}

// Fences that wait for their targets delay no fence of a client without a volume
// there, also of the next address, and not the end of such a fence.
func TestFenceBesideFencesThatWait(t *testing.T) {
	for name, fail := range map[string]func(*spdktest.Process){
		"down":   func(p *spdktest.Process) { p.Kill() },
		"silent": func(p *spdktest.Process) { p.Inject(spdktest.Fault{Instead: spdktest.Silence}) },
		"no answer to a removal": func(p *spdktest.Process) {
			p.Inject(spdktest.Fault{Method: "nvmf_subsystem_remove_host", Instead: spdktest.Silence})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, "one", "two", "three", "four")
			e := r.engine()
			e.answerTime = 3 * time.Second
			ctx := testkit.Context(t)
			var sessions []session
			there := plan.Request{Owner: volume.FenceOwner{Digest: "a"}}
			for i := range r.targets {
				req := request(fmt.Sprint("v", i), volume.Source{})
				req.Parameters = map[string]string{keyTarget: targetName(i)}
				v := testkit.Value(e.Create(ctx, req))(t)
				client, addr := fmt.Sprint("n", i), fmt.Sprint("192.0.2.", 8+i)
				publish(t, e, v.ID, node(client, addr))
				sessions = append(sessions, r.mustConnect(v, access.HostNQN(client), addr))
				testkit.Must(t, e.compare(ctx, e.order[i]))
				there.Blocks = append(there.Blocks, block(addr+"/32").Blocks...)
			}
			here := block("192.0.2.8/32")
			there.Blocks = there.Blocks[1:]
			for _, p := range r.targets[1:] {
				fail(p)
				defer p.Clear()
			}
			// Less time than the targets need one after the other.
			f := enforcer(t, e, enforce.Bounds{Block: 16 * time.Second, End: 16 * time.Second, Verify: 8 * time.Second})
			wantKind(t, f.Fence(ctx, there), "fence without the targets", errs.Unavailable)
			// On a busy machine this target can take longer than answerTime.
			testkit.EventuallyNil(t, "the fence", func() error { return f.Fence(testkit.Context(t), here) })
			wantAlive(t, "fenced", sessions[:1], false)
			testkit.EventuallyNil(t, "the fence is held", func() error {
				if held := testkit.Value(e.Held(testkit.Context(t)))(t); !slices.Equal(held, here.Blocks) {
					return fmt.Errorf("held: %v", held)
				}
				return nil
			})
			testkit.EventuallyNil(t, "the end of the fence", func() error { return f.Unfence(testkit.Context(t), here) })
		})
	}
}

// A call that ends while the host lists are read does not say that no fence is in
// force: that would count as a change by another program.
func TestHeldIsCanceled(t *testing.T) {
	r := newRig(t, "one")
	e := r.engine()
	publish(t, e, create(t, e, "v", volume.Source{}).ID, node("n1", "192.0.2.1"))
	testkit.Must(t, enforcer(t, e).Fence(testkit.Context(t), block("192.0.2.1/32")))
	p := r.targets[0]
	p.Forget()
	p.Inject(spdktest.Fault{Method: "nvmf_get_subsystems", Instead: spdktest.Silence})
	defer p.Clear()
	ctx, cancel := context.WithCancel(testkit.Context(t))
	defer cancel()
	failed := make(chan error, 1)
	go func() { failed <- testkit.Err(e.Held(ctx)) }()
	testkit.Eventually(t, "the host lists are read", func() bool { return p.Counts()["nvmf_get_subsystems"] > 0 })
	cancel()
	wantKind(t, <-failed, "Held", errs.Unavailable)
}

// A fence reads the connections of several volumes at once, and removes hosts
// from several, but not from all.
func TestFenceAtOnce(t *testing.T) {
	const volumes = 3 * parallelRequests
	r := newRig(t, "one")
	e := r.engine()
	var ids []volume.ID
	for i := range volumes {
		v := create(t, e, fmt.Sprint("v", i), volume.Source{})
		publish(t, e, v.ID, node("n1", "192.0.2.1"))
		r.mustConnect(v, access.HostNQN("n1"), "192.0.2.1")
		ids = append(ids, v.ID)
	}
	blocks := block("192.0.2.1/32").Blocks
	if all := testkit.Value(e.Sessions(testkit.Context(t), blocks))(t); len(all) != volumes {
		t.Errorf("%d sessions, want %d", len(all), volumes)
	}
	r.atOnce("nvmf_subsystem_get_qpairs", func(ctx context.Context) error { return testkit.Err(e.Sessions(ctx, blocks)) })
	for _, id := range ids {
		testkit.Must(t, ledgerOf(e).Revoke(testkit.Context(t), id, "n1", nil))
	}
	r.atOnce("nvmf_subsystem_remove_host", func(ctx context.Context) error { return e.compare(ctx, e.order[0]) })
	testkit.Must(t, e.compare(testkit.Context(t), e.order[0]))
	if all := testkit.Value(e.Sessions(testkit.Context(t), blocks))(t); len(all) != 0 {
		t.Errorf("%d sessions after the revocation", len(all))
	}
}

// atOnce fails the test if a call has not as many requests in flight as allowed.
func (r *rig) atOnce(method string, call func(context.Context) error) {
	r.t.Helper()
	p := r.targets[0]
	p.Forget()
	p.Inject(spdktest.Fault{Method: method, Instead: spdktest.Silence})
	defer p.Clear()
	ctx, cancel := context.WithCancel(testkit.Context(r.t))
	defer cancel()
	failed := make(chan error, 1)
	go func() { failed <- call(ctx) }()
	testkit.Eventually(r.t, "requests are in flight", func() bool { return p.Counts()[method] >= parallelRequests })
	cancel()
	if err := <-failed; err == nil {
		r.t.Errorf("%s is not answered, and the call succeeds", method)
	}
	if n := p.Counts()[method]; n != parallelRequests {
		r.t.Errorf("%d requests %s at once, want %d", n, method, parallelRequests)
	}
}

// A fence by address, or by the address that a client is connected from, ends
// the sessions of these clients only.
func testFenceAddress(t *testing.T, r *rig) {
	e := r.engine()
	ctx := testkit.Context(t)
	v := create(t, e, "v", volume.Source{})
	hosts := map[string]string{"n1": "127.0.1.1", "n2": "127.0.1.2", "n3": "127.0.1.33"} // n3 has another address in its record
	sessions := map[string]session{}
	for name, source := range hosts {
		publish(t, e, v.ID, node(name, "127.0.1."+name[1:]))
		sessions[name] = r.mustConnect(v, access.HostNQN(name), source)
	}
	f := enforcer(t, e)
	for _, fenced := range []string{"n1", "n3"} {
		request := block(hosts[fenced] + "/32")
		request.Force = true // loopback is this server's own
		found := testkit.Value(e.Sessions(ctx, request.Blocks))(t)
		if len(found) != 1 || found[0].Client.Addr().String() != hosts[fenced] {
			t.Errorf("sessions of %s: %v", fenced, found)
		}
		testkit.Must(t, f.Fence(ctx, request))
		wantAlive(t, fenced, []session{sessions[fenced]}, false)
		wantAlive(t, "n2", []session{sessions["n2"]}, true)
		r.refused(v, access.HostNQN(fenced))
		if held := testkit.Value(e.Held(ctx))(t); !slices.Equal(held, request.Blocks) {
			t.Errorf("held: %v", held)
		}
		if found := testkit.Value(e.Sessions(ctx, request.Blocks))(t); len(found) > 0 {
			t.Errorf("sessions of the fenced %s: %v", fenced, found)
		}
		testkit.Must(t, f.Unfence(ctx, request), e.Enforce(ctx, v.ID))
		sessions[fenced] = r.mustConnect(v, access.HostNQN(fenced), hosts[fenced])
	}
	for name, s := range sessions {
		s.Close()
		unpublish(t, e, v.ID, name)
	}
	testkit.Must(t, e.Delete(ctx, v.ID))
	r.left(0)
}

// A fence of a client of many volumes, whose exports are corrected several at a
// time, and its end.
func testFenceOfManyVolumes(t *testing.T, r *rig) {
	e := r.engine()
	ctx := testkit.Context(t)
	var all []volume.Volume
	var fenced, others []session
	for i := range 3 * parallelRequests {
		v := create(t, e, fmt.Sprint("v", i), volume.Source{})
		publish(t, e, v.ID, node("n1", "127.0.1.1"))
		publish(t, e, v.ID, node("n2", "127.0.1.2"))
		fenced = append(fenced, r.mustConnect(v, access.HostNQN("n1"), "127.0.1.1"))
		others = append(others, r.mustConnect(v, access.HostNQN("n2"), "127.0.1.2"))
		all = append(all, v)
	}
	request := block("127.0.1.1/32")
	request.Force = true // loopback is this server's own
	if found := testkit.Value(e.Sessions(ctx, request.Blocks))(t); len(found) != len(all) {
		t.Errorf("%d sessions, want %d", len(found), len(all))
	}
	f := enforcer(t, e)
	testkit.Must(t, f.Fence(ctx, request))
	wantAlive(t, "fenced", fenced, false)
	wantAlive(t, "other", others, true)
	if held := testkit.Value(e.Held(ctx))(t); !slices.Equal(held, request.Blocks) {
		t.Errorf("held: %v", held)
	}
	for _, v := range all {
		r.refused(v, access.HostNQN("n1"))
	}
	testkit.Must(t, f.Unfence(ctx, request), e.compare(ctx, e.order[0]))
	for i, v := range all {
		r.mustConnect(v, access.HostNQN("n1"), "127.0.1.1").Close()
		others[i].Close()
		fenced[i].Close()
		unpublish(t, e, v.ID, "n1")
		unpublish(t, e, v.ID, "n2")
		testkit.Must(t, e.Delete(ctx, v.ID))
	}
	r.left(0)
}
