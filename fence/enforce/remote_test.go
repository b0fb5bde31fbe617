package enforce

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/fence/plan"
	"github.com/cleatproject/cleat/fence/request"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/volume"
)

type double struct {
	name  string
	mu    sync.Mutex
	held  map[string][]netip.Prefix
	fault error
	calls int
}

func newDouble(name string) *double { return &double{name: name, held: map[string][]netip.Prefix{}} }

func (d *double) Name() string { return d.name }

func (d *double) fail(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.fault = err
}

func (d *double) Fence(_ context.Context, req plan.Request) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.calls++
	if d.fault == nil {
		all := append(slices.Clone(d.held[req.Owner.Digest]), req.Blocks...)
		slices.SortFunc(all, netip.Prefix.Compare)
		d.held[req.Owner.Digest] = slices.Compact(all)
	}
	return d.fault
}

func (d *double) Unfence(_ context.Context, req plan.Request) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.calls++
	if d.fault == nil {
		d.held[req.Owner.Digest] = slices.DeleteFunc(slices.Clone(d.held[req.Owner.Digest]), func(b netip.Prefix) bool {
			return slices.Contains(req.Blocks, b)
		})
	}
	return d.fault
}

func (d *double) List(_ context.Context, owner volume.FenceOwner) ([]netip.Prefix, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.held[owner.Digest], d.fault
}

func (d *double) Coverage(context.Context, []netip.Prefix) ([]volume.Coverage, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return []volume.Coverage{{Enforcer: "host", Problems: []string{"nothing there"}}}, d.fault
}

func (d *double) blocks(owner string) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	var all []string
	for _, b := range d.held[owner] {
		all = append(all, b.String())
	}
	return strings.Join(all, " ")
}

func TestFenceNeedsAllPeers(t *testing.T) {
	east, west := newDouble("east"), newDouble("west")
	r := newRig(t, func(r *rig) { r.peers = []Peer{east, west} })
	a := req("a", "10.0.0.1/32")
	down := errs.Errorf(errs.Unavailable, "connection refused")
	west.fail(down)
	if err := r.Fence(t.Context(), a); !errors.Is(err, errs.Unavailable) || !strings.Contains(err.Error(), "west") {
		t.Errorf("one peer is down: %v", err)
	}
	if east.blocks("a") != "10.0.0.1/32" || r.held() != "10.0.0.1/32" {
		t.Error("the others were not fenced")
	}
	west.fail(nil)
	if err := r.Fence(t.Context(), a); err != nil || west.blocks("a") != "10.0.0.1/32" {
		t.Errorf("the retry: %v", err)
	}
	west.fail(down)
	if err := r.Unfence(t.Context(), a); !errors.Is(err, errs.Unavailable) || r.phases() != "10.0.0.1/32 a lifting" {
		t.Errorf("unfence with one away: %v, %s", err, r.phases())
	}
	if _, err := r.List(t.Context(), nil); err != nil {
		t.Errorf("without a confirmed fence: %v", err)
	}
	west.fail(nil)
	if err := r.Unfence(t.Context(), a); err != nil || west.blocks("a")+east.blocks("a")+r.phases() != "" {
		t.Errorf("unfence: %v, %s", err, r.phases())
	}
}

func TestRefusingPeer(t *testing.T) {
	east, west := newDouble("east"), newDouble("west")
	r := newRig(t, func(r *rig) { r.peers = []Peer{east, west} })
	testkit.Must(t, r.Fence(t.Context(), req("a", "10.0.0.1/32")))
	west.fail(errs.Errorf(errs.Invalid, "10.0.0.0/24 covers 10.0.0.9, an address of this server"))
	err := r.Fence(t.Context(), req("a", "10.0.0.0/24", "10.0.0.1/32"))
	if errs.KindOf(err) != errs.Invalid || !strings.Contains(err.Error(), "west") || !strings.Contains(err.Error(), "10.0.0.9") {
		t.Errorf("got %v", err)
	}
	// The refusing peer might have the fence, so the rollback continues.
	west.fail(nil)
	r.resumeNow(t)
	if r.phases() != "10.0.0.0/24 a lifted, 10.0.0.1/32 a fenced" || r.held() != "10.0.0.1/32" || east.blocks("a") != "10.0.0.1/32" {
		t.Errorf("after a refusal: %s, held %s, east %s", r.phases(), r.held(), east.blocks("a"))
	}
}

// It is not retried for ever.
func TestRefusalRollsBackUnconfirmedFence(t *testing.T) {
	west := newDouble("west")
	r := newRig(t, func(r *rig) { r.peers = []Peer{west} })
	a := req("a", "10.0.0.0/24")
	_, _, err := r.ledger.ChangeFences(t.Context(), func(now []volume.Fence) ([]volume.Fence, error) {
		return plan.Fence(now, a, time.Now()), nil
	})
	testkit.Must(t, err)
	r.restart()
	refuses := &refusing{west}
	r.Enforcer.peers = []*peer{{Peer: refuses}}
	if err := r.Fence(t.Context(), a); errs.KindOf(err) != errs.Invalid {
		t.Errorf("got %v", err)
	}
	if r.phases()+r.held() != "" {
		t.Errorf("recorded %s, held %s", r.phases(), r.held())
	}
}

type refusing struct{ *double }

func (refusing) Fence(context.Context, plan.Request) error {
	return errs.Errorf(errs.Invalid, "it covers an address of this server")
}

func (r *rig) resumeNow(t *testing.T) {
	t.Helper()
	_, _, err := r.ledger.ChangeFences(t.Context(), func(now []volume.Fence) ([]volume.Fence, error) {
		for i := range now {
			now[i].Since = now[i].Since.Add(-2 * resumeAfter)
		}
		return now, nil
	})
	testkit.Must(t, err)
	r.resume(t.Context())
}

func TestLostFencesOfPeerAreRestored(t *testing.T) {
	east := newDouble("east")
	r := newRig(t, func(r *rig) { r.peers = []Peer{east} })
	testkit.Must(t, r.Fence(t.Context(), req("a", "10.0.0.1/32")))
	east.mu.Lock()
	clear(east.held)
	east.mu.Unlock()
	if _, err := r.List(t.Context(), nil); !errors.Is(err, errs.Unavailable) {
		t.Errorf("listed though the peer lost it: %v", err)
	}
	defer r.guard()()
	testkit.Eventually(t, "the peer holds it again", func() bool { return east.blocks("a") == "10.0.0.1/32" })
}

// Mutual peers must not forward for ever.
func TestForwardedFencesAreNotForwardedAgain(t *testing.T) {
	east := newDouble("east")
	r := newRig(t, func(r *rig) { r.peers = []Peer{east} })
	a := req("a", "10.0.0.1/32")
	a.Owner.Keys = []string{request.OwnerParameter, request.ViaParameter}
	testkit.Must(t, r.Fence(t.Context(), a))
	r.check(t.Context())
	if list, err := r.List(t.Context(), nil); err != nil || len(list) != 1 || east.calls != 0 {
		t.Errorf("list %v, %v; the peer was called %d times", list, err, east.calls)
	}
	if err := r.Unfence(t.Context(), a); err != nil || east.calls != 0 {
		t.Errorf("%v; the peer was called %d times", err, east.calls)
	}
}

func TestSlowPeerIsBounded(t *testing.T) {
	r := newRig(t, func(r *rig) {
		r.peers = []Peer{silent{newDouble("east")}}
		r.bounds.Peer = 20 * time.Millisecond
	})
	if err := r.Fence(t.Context(), req("a", "10.0.0.1/32")); !errors.Is(err, errs.Unavailable) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
}

// A peer that does not answer keeps no local fence from being repaired.
func TestSilentPeerDelaysNoRepair(t *testing.T) {
	east := &silentList{double: newDouble("east"), asked: make(chan struct{})}
	r := newRig(t, func(r *rig) {
		r.peers = []Peer{east}
		r.bounds.Verify = time.Hour
	})
	testkit.Must(t, r.Fence(t.Context(), req("a", "10.0.0.1/32")))
	defer r.guard()()
	<-east.asked
	for range 2 { // the first can come before the check that the peer belongs to
		r.network.Tamper()
		testkit.Eventually(t, "it is repaired", func() bool { return r.held() == "10.0.0.1/32" })
	}
}

type silentList struct {
	*double
	asked chan struct{}
	once  sync.Once
}

func (s *silentList) List(ctx context.Context, _ volume.FenceOwner) ([]netip.Prefix, error) {
	s.once.Do(func() { close(s.asked) })
	<-ctx.Done()
	return nil, ctx.Err()
}

type silent struct{ *double }

func (silent) Fence(ctx context.Context, _ plan.Request) error { <-ctx.Done(); return ctx.Err() }
