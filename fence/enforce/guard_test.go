package enforce

import (
	"context"
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/fence/plan"
	"github.com/cleatproject/cleat/internal/cidr"
	"github.com/cleatproject/cleat/internal/ledger"
	"github.com/cleatproject/cleat/internal/store"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/volume"
)

func TestRestartPutsFencesInForceFirst(t *testing.T) {
	r := newRig(t)
	testkit.Must(t, r.Fence(t.Context(), req("a", "10.0.0.1/32")))
	r.stop()
	r.network.Tamper() // reboot
	between := r.connect("10.0.0.1")
	r.start()
	if r.held() != "10.0.0.1/32" {
		t.Errorf("held after Restore: %q", r.held())
	}
	defer r.guard()()
	testkit.Eventually(t, "the session that began in between is ended", func() bool {
		live, err := r.network.Sessions(t.Context(), []netip.Prefix{netip.MustParsePrefix("10.0.0.1/32")})
		return err == nil && len(live) == 0
	})
	if between.Write() == nil {
		t.Error("the fenced client writes")
	}
	if drift := testkit.Metric(t, r.registry, "cleat_fence_drift_total", "enforcer=host"); drift != 0 {
		t.Errorf("a start counts as drift: %v", drift)
	}
}

func TestStartFailsUnlessFencesAreInForce(t *testing.T) {
	r := newRig(t)
	testkit.Must(t, r.Fence(t.Context(), req("a", "10.0.0.1/32")))
	for _, method := range []string{"Apply", "Held"} {
		broken := errors.New("no nftables")
		r.network.Fail(method, broken)
		if err := r.Restore(t.Context()); !errors.Is(err, broken) {
			t.Errorf("%s: got %v", method, err)
		}
		r.network.Fail(method, nil)
	}
}

func TestDriftIsRepaired(t *testing.T) {
	r := newRig(t)
	testkit.Must(t, r.Fence(t.Context(), req("a", "10.0.0.1/32")))
	defer r.guard()()
	testkit.Eventually(t, "the first check", func() bool { return r.Check(t.Context()) == nil })
	for i, held := range [][]netip.Prefix{nil, {netip.MustParsePrefix("10.0.0.0/24")}} {
		r.network.Tamper(held...)
		testkit.Eventually(t, "it is repaired and counted", func() bool {
			return r.held() == "10.0.0.1/32" && testkit.Metric(t, r.registry, "cleat_fence_drift_total", "enforcer=host") == float64(i+1)
		})
	}
	broken := errors.New("no nftables")
	r.network.Fail("Held", broken)
	testkit.Eventually(t, "Check reports it", func() bool { return errors.Is(r.Check(t.Context()), broken) })
	testkit.Eventually(t, "the metrics report it", func() bool { // after Check
		return testkit.Metric(t, r.registry, "cleat_fence_check_failures_total", "enforcer=host") > 0 && testkit.Metric(t, r.registry, "cleat_fence_enforced", "enforcer=host") == 0
	})
	r.network.Fail("Held", nil)
	testkit.Eventually(t, "it is well again", func() bool { return r.Check(t.Context()) == nil })
}

// unreadable are records that cannot be read.
type unreadable struct{ store.Database }

func (unreadable) View(context.Context, func(*store.Tx) error) error {
	return errors.New("no answer of the record")
}

// Records that cannot be read are not an empty list.
func TestUnreadableRecordsAreNotZero(t *testing.T) {
	r := newRig(t)
	testkit.Must(t, r.Fence(t.Context(), req("a", "10.0.0.1/32")))
	r.check(t.Context())
	r.Enforcer.ledger = ledger.New(unreadable{r.store})
	r.check(t.Context())
	testkit.WantError(t, "the check", r.Check(t.Context()), nil, "no answer of the record")
	if n := testkit.Metric(t, r.registry, "cleat_fence_blocks", "phase=fenced"); n != 1 {
		t.Errorf("%v blocks are fenced, by the metrics", n)
	}
}

// hanging is a fencer that no timeout ends, as in the kernel.
type hanging struct {
	volume.Fencer
	until chan struct{} // nil: it answers
}

func (h *hanging) Held(ctx context.Context) ([]netip.Prefix, error) {
	if h.until != nil {
		<-h.until
	}
	return h.Fencer.Held(ctx)
}

// The result of the last check is not that of a check which does not return.
func TestCheckThatHangs(t *testing.T) {
	r := newRig(t, func(r *rig) {
		r.bounds = Bounds{Block: 50 * time.Millisecond, Verify: 50 * time.Millisecond, End: 50 * time.Millisecond}
	})
	h := &hanging{Fencer: r.network}
	r.locals[0].Fencer = h
	enforced := func() float64 { return testkit.Metric(t, r.registry, "cleat_fence_enforced", "enforcer=host") }
	r.check(t.Context())
	if err := r.Check(t.Context()); err != nil || enforced() != 1 {
		t.Errorf("checked: %v, metric %v", err, enforced())
	}
	h.until = make(chan struct{})
	stop := r.guard()
	testkit.Eventually(t, "it is not known", func() bool { return errs.KindOf(r.Check(t.Context())) == errs.Unavailable })
	if status := testkit.Value(r.Status(t.Context()))(t); enforced() != 0 || status.Enforcers[0].Holds || status.Problem == "" {
		t.Errorf("metric %v, status %+v", enforced(), status)
	}
	close(h.until)
	testkit.Eventually(t, "it is known again", func() bool { return r.Check(t.Context()) == nil && enforced() == 1 })
	stop()
}

// partly is a fencer that cannot reach a part of the storage.
type partly struct {
	volume.Fencer
	silent []netip.Prefix
}

func (p *partly) Apply(ctx context.Context, desired volume.FenceSet) error {
	err := p.Fencer.Apply(ctx, desired)
	if err == nil && len(p.silent) > 0 {
		err = &volume.NotEnforced{Blocks: p.silent, Err: errors.New("no answer")}
	}
	return err
}

func (p *partly) Held(ctx context.Context) ([]netip.Prefix, error) {
	held, err := p.Fencer.Held(ctx)
	if err != nil {
		return nil, err
	}
	return cidr.Missing(p.silent, held)
}

// Storage that does not answer delays the fences of its clients only, and is no
// change by another program. One after it has answered is.
func TestFencesBesideSilentStorage(t *testing.T) {
	r := newRig(t)
	l := r.locals[0]
	p := &partly{Fencer: l.Fencer}
	l.Fencer = p
	ctx := t.Context()
	here, there := req("a", "10.0.0.1/32"), req("a", "10.0.0.2/32")
	testkit.Must(t, r.Fence(ctx, here), r.Fence(ctx, there))
	p.silent = there.Blocks
	for range 2 {
		if err := testkit.Err(r.repair(ctx, l)); errs.KindOf(err) != errs.Unavailable {
			t.Errorf("repair: %v", err)
		}
	}
	if err := r.Fence(ctx, there); errs.KindOf(err) != errs.Unavailable {
		t.Errorf("fence of a client of the silent storage: %v", err)
	}
	testkit.Must(t, r.Unfence(ctx, here), r.Fence(ctx, here))
	p.silent = nil
	testkit.Must(t, testkit.Err(r.repair(ctx, l)))
	r.network.Tamper()
	testkit.Must(t, testkit.Err(r.repair(ctx, l)))
	if n := testkit.Metric(t, r.registry, "cleat_fence_drift_total", "enforcer=host"); n != 1 {
		t.Errorf("%v changes by other programs, want 1", n)
	}
}

func TestGuardCompletesInterruptedCalls(t *testing.T) {
	r := newRig(t)
	long := time.Now().Add(-2 * resumeAfter)
	_, _, err := r.ledger.ChangeFences(t.Context(), func(now []volume.Fence) ([]volume.Fence, error) {
		now = plan.Fence(now, req("a", "10.0.0.1/32"), long)
		now = plan.Fence(now, req("b", "10.0.0.2/32", "10.0.0.3/32"), long)
		return plan.Unfence(now, req("b", "10.0.0.2/32"), long)
	})
	testkit.Must(t, err)
	testkit.Must(t, r.Restore(t.Context()))
	defer r.guard()()
	testkit.Eventually(t, "all is finished", func() bool { return r.phases() == "10.0.0.1/32 a fenced, 10.0.0.3/32 b fenced" })
}

func TestStatus(t *testing.T) {
	r := newRig(t, func(r *rig) { r.peers = []Peer{newDouble("east")} })
	testkit.Must(t, r.Fence(t.Context(), req("a", "10.0.0.1/32")))
	s, err := r.Status(t.Context())
	if err != nil || s.Problem == "" || len(s.Fences) != 1 {
		t.Errorf("before the first check: %+v, %v", s, err)
	}
	r.check(t.Context())
	r.checkPeers(t.Context())
	s, err = r.Status(context.Background())
	if err != nil || s.Problem != "" || len(s.Enforcers) != 2 || !s.Enforcers[0].Holds || !s.Enforcers[1].Holds {
		t.Errorf("after it: %+v, %v", s, err)
	}
	if n := testkit.Metric(t, r.registry, "cleat_fence_blocks", "phase=fenced"); n != 1 {
		t.Errorf("fenced blocks: %v", n)
	}
}
