package enforce

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/fence/plan"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/volume"
)

func TestFenceAndUnfence(t *testing.T) {
	r := newRig(t)
	client, neighbour := r.connect("10.0.0.1"), r.connect("10.0.0.2")
	a := req("a", "10.0.0.1/32")
	for range 2 { // repeated
		testkit.Must(t, r.Fence(t.Context(), a))
		if got := r.phases(); got != "10.0.0.1/32 a fenced" {
			t.Errorf("recorded: %s", got)
		}
	}
	if client.Write() == nil {
		t.Error("the fenced client still writes")
	}
	if _, err := r.network.Connect(netip.MustParseAddr("10.0.0.1")); err == nil {
		t.Error("the fenced client started a session")
	}
	if err := neighbour.Write(); err != nil {
		t.Errorf("the neighbour: %v", err)
	}
	if list, err := r.List(t.Context(), nil); err != nil || len(list) != 1 {
		t.Errorf("list: %v, %v", list, err)
	}
	for range 2 {
		testkit.Must(t, r.Unfence(t.Context(), a))
	}
	if got := r.phases() + r.held(); got != "" {
		t.Errorf("left: %s", got)
	}
	if client.Write() == nil {
		t.Error("the ended session writes again")
	}
	if err := r.connect("10.0.0.1").Write(); err != nil {
		t.Errorf("a new session after unfencing: %v", err)
	}
}

// stillHeld is the network's text for a stuck session.
const stillHeld = "is still held by the server"

// The session blocks the fence even after a restart, when it is no longer
// listed.
func TestFenceWaitsForServerToCloseSession(t *testing.T) {
	r := newRig(t)
	client := r.connect("10.0.0.1")
	client.Stick()
	a := req("a", "10.0.0.0/24")
	for range 3 {
		if err := r.timesOut(stillHeld, r.Fence, a); !errors.Is(err, errs.Unavailable) {
			t.Fatalf("got %v", err)
		}
		if got := r.phases(); got != "10.0.0.0/24 a fencing" {
			t.Errorf("recorded: %s", got)
		}
		if list, err := r.List(t.Context(), nil); err != nil || len(list) != 0 {
			t.Errorf("listed before it is confirmed: %v, %v", list, err)
		}
		r.restart()
	}
	if err := r.timesOut(stillHeld, r.Unfence, a); !errors.Is(err, errs.Unavailable) || r.held() != "10.0.0.0/24" {
		t.Errorf("unfenced before the session has ended: %v, held %s", err, r.held())
	}
	waiting := func(want float64) {
		t.Helper()
		ending, err := r.ledger.Ending(t.Context())
		r.observeRecords(nil, ending)
		if got := testkit.Metric(t, r.registry, "cleat_fence_sessions_ending", "enforcer=host"); got != want || err != nil {
			t.Errorf("%v sessions are waited for, %v; want %v", got, err, want)
		}
	}
	waiting(1)
	client.Release()
	if err := r.Fence(t.Context(), a); err != nil {
		t.Error(err)
	}
	waiting(0)
	if left, err := r.ledger.Ending(t.Context()); err != nil || len(left) != 0 {
		t.Errorf("still recorded: %v, %v", left, err)
	}
}

func TestFenceFailsUnlessReadBack(t *testing.T) {
	broken := errors.New("the kernel says no")
	for _, method := range []string{"Apply", "Held", "Sessions", "End"} {
		r := newRig(t)
		client := r.connect("10.0.0.1")
		a := req("a", "10.0.0.1/32")
		r.network.Fail(method, broken)
		err := r.Fence(t.Context(), a)
		if !errors.Is(err, errs.Unavailable) || !errors.Is(err, broken) || !strings.Contains(err.Error(), "repeat the call") {
			t.Errorf("%s fails: got %v", method, err)
		}
		if _, err := r.ledger.Enter(t.Context(), volume.Client{Node: "n", Addrs: []netip.Addr{netip.MustParseAddr("10.0.0.1")}}); !errors.Is(err, errs.Precondition) {
			t.Errorf("%s fails: got a grant: %v", method, err)
		}
		r.network.Fail(method, nil)
		if err := r.Fence(t.Context(), a); err != nil || client.Write() == nil {
			t.Errorf("%s works again: %v", method, err)
		}
		if method == "Apply" || method == "Held" {
			r.network.Fail(method, broken)
			if err := r.Unfence(t.Context(), a); !errors.Is(err, errs.Unavailable) || r.phases() != "10.0.0.1/32 a lifting" {
				t.Errorf("%s fails: unfence: %v, %s", method, err, r.phases())
			}
			r.network.Fail(method, nil)
		}
		if err := r.Unfence(t.Context(), a); err != nil || r.held() != "" {
			t.Errorf("%s works again: unfence: %v, held %s", method, err, r.held())
		}
	}
}

// List answers what is in force now, once for each block.
func TestListIsReadBack(t *testing.T) {
	r := newRig(t)
	for _, owner := range []string{"a", "b"} {
		testkit.Must(t, r.Fence(t.Context(), req(owner, "10.0.0.1/32")))
	}
	if got, err := r.List(t.Context(), nil); err != nil || len(got) != 1 {
		t.Errorf("a block of two owners is listed as %v, %v", got, err)
	}
	broken := errors.New("the kernel says no")
	r.network.Fail("Held", broken)
	if got, err := r.List(t.Context(), nil); !errors.Is(err, errs.Unavailable) || !errors.Is(err, broken) {
		t.Errorf("what cannot be read back is listed as %v, %v", got, err)
	}
	r.network.Fail("Held", nil)
	r.network.Tamper()
	if got, err := r.List(t.Context(), nil); !errors.Is(err, errs.Unavailable) || !strings.Contains(err.Error(), "10.0.0.1/32] is not fenced") {
		t.Errorf("what is not in force any more is listed as %v, %v", got, err)
	}
}

func TestSeveralOwners(t *testing.T) {
	r := newRig(t)
	for _, a := range []string{"a", "b"} {
		testkit.Must(t, r.Fence(t.Context(), req(a, "10.0.0.0/24")))
	}
	testkit.Must(t, r.Fence(t.Context(), req("c", "10.0.0.7/32")))
	if err := r.Unfence(t.Context(), req("d", "10.0.0.0/24")); !errors.Is(err, errs.Precondition) {
		t.Errorf("unfence by another owner: %v", err)
	}
	for range 2 { // repeated: the response was lost
		if err := r.Unfence(t.Context(), req("a", "10.0.0.0/24")); err != nil || r.held() != "10.0.0.0/24" {
			t.Errorf("one of two: %v, held %s", err, r.held())
		}
	}
	if err := r.Unfence(t.Context(), req("b", "10.0.0.0/24")); err != nil || r.held() != "10.0.0.7/32" {
		t.Errorf("the second: %v, held %s", err, r.held())
	}
	if got := r.phases(); !strings.Contains(got, "10.0.0.7/32 c fenced") || strings.Contains(got, "lifting") {
		t.Errorf("recorded: %s", got)
	}
	if err := r.Unfence(t.Context(), req("c", "10.0.0.7/32")); err != nil || r.phases() != "" {
		t.Errorf("the last: %v, %s", err, r.phases())
	}
}

// For lost parameters, force unfences exactly that block.
func TestUnfenceByForce(t *testing.T) {
	r := newRig(t)
	for _, a := range []plan.Request{req("a", "10.0.0.0/24"), req("b", "10.0.0.0/24"), req("b", "10.0.0.7/32"), req("c", "10.0.0.0/16")} {
		testkit.Must(t, r.Fence(t.Context(), a))
	}
	forced := req("d", "10.0.0.0/24")
	forced.Force = true
	if err := r.Unfence(t.Context(), forced); !errors.Is(err, errs.Precondition) || !strings.Contains(err.Error(), "10.0.0.0/16") {
		t.Errorf("the error does not report the wider block: %v", err)
	}
	forced.Blocks = req("", "10.0.0.0/16").Blocks
	if err := r.Unfence(t.Context(), forced); !errors.Is(err, errs.Precondition) || r.held() != "10.0.0.7/32" {
		t.Errorf("the wider block: %v, held %s", err, r.held())
	}
	if err := r.Unfence(t.Context(), req("b", "10.0.0.7/32")); err != nil || r.phases() != "" {
		t.Errorf("the rest is its owner's as before: %v, %s", err, r.phases())
	}
}

func TestUnfenceByForceIgnoresStuckSession(t *testing.T) {
	r := newRig(t)
	client := r.connect("10.0.0.1")
	client.Stick()
	a := req("a", "10.0.0.1/32")
	if err := r.timesOut(stillHeld, r.Fence, a); err == nil {
		t.Error("fenced while the server holds a session")
	}
	if err := r.timesOut(stillHeld, r.Unfence, a); err == nil || r.held() == "" {
		t.Errorf("opened while it is in use: %v", err)
	}
	if waiting, err := r.Ending(t.Context()); err != nil || len(waiting) != 1 {
		t.Errorf("the fence waits for %v, %v; want the session", waiting, err)
	}
	a.Force = true
	r.config.Bounds.End = 50 * time.Millisecond // any timeout
	if err := r.Unfence(t.Context(), a); err != nil || r.held()+r.phases() != "" {
		t.Errorf("forced: %v, held %s, recorded %s", err, r.held(), r.phases())
	}
	if waiting, err := r.Ending(t.Context()); err != nil || len(waiting) != 0 {
		t.Errorf("no fence is left, and one waits for %v, %v", waiting, err)
	}
	if left, err := r.ledger.Ending(t.Context()); err != nil || len(left) != 1 {
		t.Errorf("the next fence of the client has to wait for %v, %v; want the session", left, err)
	}
}

func TestRefusalsChangeNothing(t *testing.T) {
	r := newRig(t, func(r *rig) { r.own = []netip.Addr{netip.MustParseAddr("192.0.2.1")} })
	for _, block := range []string{"192.0.2.0/24", "0.0.0.0/0", "::/0"} {
		if err := r.Fence(t.Context(), req("a", block)); !errors.Is(err, errs.Invalid) {
			t.Errorf("%s: got %v", block, err)
		}
	}
	if r.phases() != "" || r.network.Applied() != 1 { // from the start
		t.Errorf("something changed: %s, applied %d times", r.phases(), r.network.Applied())
	}
	forced := req("a", "192.0.2.0/24")
	forced.Force = true
	if err := r.Fence(t.Context(), forced); err != nil || r.held() != "192.0.2.0/24" {
		t.Errorf("forced: %v, %s", err, r.held())
	}
}

func TestFenceWaitsForGrantsInFlight(t *testing.T) {
	r := newRig(t)
	c := volume.Client{Node: "n", Addrs: []netip.Addr{netip.MustParseAddr("10.0.0.1")}}
	leave, err := r.ledger.Enter(t.Context(), c)
	testkit.Must(t, err)
	a := req("a", "10.0.0.1/32")
	if err := r.timesOut("for node n (since", r.Fence, a); !errors.Is(err, errs.Unavailable) {
		t.Errorf("got %v", err)
	}
	if r.held() != "10.0.0.1/32" {
		t.Error("the filter waited for the grant")
	}
	leave()
	if err := r.Fence(t.Context(), a); err != nil {
		t.Error(err)
	}
	_, err = r.ledger.Grant(t.Context(), volume.Grant{Volume: "v", Client: c, Mode: "w"})
	if !errors.Is(err, errs.Precondition) {
		t.Errorf("grant to a fenced client: %v", err)
	}
}

// Such as a driver of node-local volumes.
func TestFenceWithoutEnforcers(t *testing.T) {
	r := newRig(t, func(r *rig) { r.network = nil })
	if err := r.Fence(t.Context(), req("a", "10.0.0.1/32")); err != nil || r.phases() != "10.0.0.1/32 a fenced" {
		t.Errorf("%v, %s", err, r.phases())
	}
	if err := r.Unfence(t.Context(), req("a", "10.0.0.1/32")); err != nil || r.phases() != "" {
		t.Errorf("%v, %s", err, r.phases())
	}
}

// Only both calls together release the overlap; the last one ends its sessions.
func TestLastUnfenceEndsSessionsOfOverlap(t *testing.T) {
	for range 20 {
		r := newRig(t)
		now := time.Now()
		_, _, err := r.ledger.ChangeFences(t.Context(), func(all []volume.Fence) ([]volume.Fence, error) {
			return plan.Fence(plan.Fence(all, req("a", "10.0.0.0/24"), now), req("b", "10.0.0.0/25"), now), nil
		})
		testkit.Must(t, err)
		session := r.connect("10.0.0.1")
		var both sync.WaitGroup
		for _, a := range []plan.Request{req("a", "10.0.0.0/24"), req("b", "10.0.0.0/25")} {
			both.Go(func() {
				if err := r.Unfence(t.Context(), a); err != nil {
					t.Error(err)
				}
			})
		}
		both.Wait()
		if session.Write() == nil {
			t.Fatal("a session of an unfenced client was not ended")
		}
	}
}

// changing records a change when a set has been applied, as another call does.
type changing struct {
	volume.Fencer
	change func()
}

func (c *changing) Apply(ctx context.Context, set volume.FenceSet) error {
	err := c.Fencer.Apply(ctx, set)
	c.change()
	return err
}

// The other call has recorded that it lifts its block, and not applied it yet.
func TestUnfenceDuringAnotherUnfence(t *testing.T) {
	r := newRig(t)
	testkit.Must(t, r.Fence(t.Context(), req("a", "10.0.0.0/24")), r.Fence(t.Context(), req("b", "10.0.0.0/25")))
	r.locals[0].Fencer = &changing{r.locals[0].Fencer, sync.OnceFunc(func() {
		_, _, err := r.ledger.ChangeFences(t.Context(), func(now []volume.Fence) ([]volume.Fence, error) {
			return plan.Unfence(now, req("b", "10.0.0.0/25"), time.Now())
		})
		testkit.Must(t, err)
	})}
	testkit.Must(t, r.Unfence(t.Context(), req("a", "10.0.0.0/24")), r.Unfence(t.Context(), req("b", "10.0.0.0/25")))
	if r.phases() != "" || r.held() != "" {
		t.Errorf("phases %q, held %q", r.phases(), r.held())
	}
}

// The last call of each owner decides, and a completed fence stays in force.
func TestConcurrentCalls(t *testing.T) {
	r := newRig(t)
	testkit.Must(t, r.Fence(t.Context(), req("keep", "10.0.0.0/28")))
	var callers sync.WaitGroup
	for _, owner := range []string{"a", "b", "c", "d"} {
		callers.Go(func() {
			for _, block := range []string{"10.0.0.0/24", "10.0.0.1/32", "10.0.1.0/24"} {
				for _, call := range []func(context.Context, plan.Request) error{r.Fence, r.Unfence, r.Fence} {
					if err := call(t.Context(), req(owner, block)); err != nil {
						t.Errorf("%s %s: %v", owner, block, err)
					}
					if _, err := r.network.Connect(netip.MustParseAddr("10.0.0.1")); err == nil {
						t.Error("a confirmed fence is not in force")
					}
				}
			}
		})
	}
	callers.Wait()
	if r.held() != "10.0.0.0/23" || strings.Count(r.phases(), "fenced") != 13 {
		t.Errorf("held %s, recorded %s", r.held(), r.phases())
	}
}
