package enforce

import (
	"context"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/fence/plan"
	"github.com/cleatproject/cleat/fence/request"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/volume"
)

// covered is a packet filter that finds these servers and sessions.
type covered struct {
	volume.Fencer
	found *atomic.Pointer[volume.Coverage]
}

func (c covered) Coverage(context.Context, []netip.Prefix) (volume.Coverage, error) {
	return *c.found.Load(), nil
}

func TestFenceCoversNoServer(t *testing.T) {
	var found atomic.Pointer[volume.Coverage]
	nothing := &volume.Coverage{}
	server := []volume.Listener{{Address: netip.MustParseAddrPort("[::]:4420"), Holder: "nvmf_tgt (process 7)"}}
	behind := &volume.Coverage{Servers: server}
	past := &volume.Coverage{Servers: server, Unprotected: []volume.Session{{Server: netip.MustParseAddrPort("10.0.0.9:10809"), Holder: "nbd-server (process 8)"}}}
	found.Store(nothing)
	r := newRig(t)
	r.locals[0].Fencer = covered{r.network, &found}
	a := req("a", "10.0.0.1/32")
	for _, c := range []struct {
		coverage *volume.Coverage
		message  string
	}{{nothing, "no storage server listens"}, {past, "nbd-server (process 8)"}} {
		found.Store(c.coverage)
		err := r.Fence(t.Context(), a)
		if errs.KindOf(err) != errs.Precondition || !strings.Contains(err.Error(), c.message) {
			t.Errorf("got %v, want Precondition with %q", err, c.message)
		}
		if got := r.phases() + "; " + r.held(); got != "10.0.0.1/32 a fencing; 10.0.0.1/32" {
			t.Errorf("recorded and held: %s", got)
		}
	}
	found.Store(behind)
	testkit.Must(t, r.Fence(t.Context(), a))
	if got := r.phases(); got != "10.0.0.1/32 a fenced" {
		t.Errorf("repeated beside a server: %s", got)
	}
	// A server that forwards the fence rolls it back after Precondition.
	found.Store(nothing)
	forwarded := req("b", "10.0.0.2/32")
	forwarded.Owner.Keys = []string{request.ViaParameter}
	if err := r.Fence(t.Context(), forwarded); errs.KindOf(err) != errs.Unavailable {
		t.Errorf("forwarded: %v, want Unavailable", err)
	}
	r.locals[0].Standby = true
	testkit.Must(t, r.Fence(t.Context(), forwarded))
}

// The server starts after the fence was requested, and the call is not repeated.
func TestGuardCompletesAFenceWhenItsServerStarts(t *testing.T) {
	var found atomic.Pointer[volume.Coverage]
	found.Store(&volume.Coverage{})
	r := newRig(t)
	r.locals[0].Fencer = covered{r.network, &found}
	long := time.Now().Add(-2 * resumeAfter)
	_, _, err := r.ledger.ChangeFences(t.Context(), func(now []volume.Fence) ([]volume.Fence, error) {
		return plan.Fence(now, req("a", "10.0.0.1/32"), long), nil
	})
	testkit.Must(t, err, r.Restore(t.Context()))
	testkit.WantError(t, "before the first check", r.CheckCoverage(t.Context()), errs.Precondition, "have not been read yet")
	stop := sync.OnceFunc(r.guard())
	defer stop()
	testkit.Eventually(t, "the missing server is counted", func() bool { return r.locals[0].servers.Load() != nil })
	testkit.WantError(t, "without a server", r.CheckCoverage(t.Context()), errs.Precondition, "no storage server listens")
	if n := testkit.Metric(t, r.registry, "cleat_fence_blocks", "phase=fenced"); n != 0 {
		t.Errorf("%v fences are confirmed without a server", n)
	}
	found.Store(&volume.Coverage{Servers: []volume.Listener{{}}})
	testkit.Eventually(t, "the fence is confirmed", func() bool { return r.phases() == "10.0.0.1/32 a fenced" })
	testkit.Must(t, r.CheckCoverage(t.Context()))
	found.Store(&volume.Coverage{Servers: []volume.Listener{{}}, Uncovered: []volume.Listener{{Holder: "nvmet over RDMA"}}})
	testkit.Eventually(t, "the server over RDMA is reported", func() bool { return errs.KindOf(r.CheckCoverage(t.Context())) == errs.Precondition })
	found.Store(&volume.Coverage{})
	testkit.Eventually(t, "the missing server is counted again", func() bool { return len(r.locals[0].servers.Load().Servers) == 0 })
	stop()
	r.locals[0].Standby = true
	testkit.Must(t, r.CheckCoverage(t.Context()))
}

// Coverage answers before there is a fence what Fence would answer.
func TestCoverageWithoutAFence(t *testing.T) {
	var found atomic.Pointer[volume.Coverage]
	east := newDouble("east")
	r := newRig(t, func(r *rig) { r.peers, r.own = []Peer{east}, []netip.Addr{netip.MustParseAddr("10.0.0.9")} })
	r.locals[0].Fencer = covered{r.network, &found}
	blocks := []netip.Prefix{netip.MustParsePrefix("10.0.0.1/32")}
	session := []volume.Session{{Holder: "someone"}}
	for message, c := range map[string]volume.Coverage{
		"":                           {Servers: []volume.Listener{{}}, Sessions: session, Others: session, Unfenced: []volume.Listener{{}}},
		"no storage server listens":  {},
		"are forwarded out of":       {Servers: []volume.Listener{{}}, Forwarded: session},
		"ports that are not fenced":  {Servers: []volume.Listener{{}}, Unprotected: session},
		"end cannot be observed":     {Servers: []volume.Listener{{}}, Sessions: session, Unobserved: session},
		"one is nvmet over RDMA: en": {Servers: []volume.Listener{{}}, Uncovered: []volume.Listener{{Holder: "nvmet over RDMA"}}},
	} {
		found.Store(&c)
		all := testkit.Value(r.Coverage(t.Context(), blocks, true))(t)
		if got := strings.Join(all[0].Problems, "; "); len(all) != 1 || all[0].Enforcer != "host" || !strings.Contains(got, message) || (got == "") != (message == "") {
			t.Errorf("%+v; want the problem %q", all, message)
		}
		err := r.Fence(t.Context(), req("a", "10.0.0.1/32"))
		if (err == nil) != (message == "") || err != nil && !strings.Contains(err.Error(), message) {
			t.Errorf("fence: %v, want %q", err, message)
		}
		testkit.Must(t, r.Unfence(t.Context(), req("a", "10.0.0.1/32")))
	}
	all := testkit.Value(r.Coverage(t.Context(), blocks, false))(t)
	if len(all) != 2 || all[1].Enforcer != "east/host" || all[1].Problems[0] != "nothing there" {
		t.Errorf("with a peer: %+v", all)
	}
	east.fail(errs.Errorf(errs.Unsupported, "unknown service"))
	all = testkit.Value(r.Coverage(t.Context(), blocks, false))(t)
	if len(all) != 2 || all[1].Enforcer != "east" || !strings.Contains(all[1].Problems[0], "not known: unknown service") {
		t.Errorf("with a peer that does not report it: %+v", all)
	}
	east.fail(nil)
	_, err := r.Coverage(t.Context(), []netip.Prefix{netip.MustParsePrefix("10.0.0.0/24")}, true)
	testkit.WantError(t, "a block with this server", err, errs.Invalid, "10.0.0.9")
	if got := r.phases() + r.held(); got != "" {
		t.Errorf("fenced: %s", got)
	}
}
