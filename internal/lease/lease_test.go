package lease

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"k8s.io/client-go/dynamic"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/kubeconfig"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/test/testkit/kubeapi"
)

func candidate(t *testing.T, api *kubeapi.Server, identity string, duration time.Duration) *Lease {
	t.Helper()
	access := testkit.Value(kubeconfig.Load(api.Kubeconfig(t), ""))(t)
	access.QPS = -1
	return New(Config{
		Client: testkit.Value(dynamic.NewForConfig(access))(t), Namespace: "cleat-system", Name: "controller", Identity: identity,
		Duration: duration, Logger: slog.New(slog.DiscardHandler),
	})
}

// A Lease that was given back is acquired at once, and by a larger term. One that was not
// is waited for.
func TestRelease(t *testing.T) {
	api := kubeapi.New(t, kubeapi.Leases())
	ctx := testkit.Context(t)
	first, second := candidate(t, api, "first", time.Hour), candidate(t, api, "second", time.Hour)
	testkit.WantError(t, "Check", first.Check(ctx), errs.Unavailable)
	testkit.Must(t, first.Acquire(ctx), first.Check(ctx))
	if held, err := second.acquire(ctx); held || err != nil {
		t.Fatalf("held by two: %t, %v", held, err)
	}
	testkit.Must(t, second.Release(ctx)) // it is not the second one's
	if held, err := second.acquire(ctx); held || err != nil {
		t.Fatalf("held by two: %t, %v", held, err)
	}
	testkit.Must(t, first.Release(ctx), second.Acquire(ctx))
	if first.Term() != 1 || second.Term() != 2 {
		t.Errorf("terms %d, %d", first.Term(), second.Term())
	}
	ended, cancel := context.WithCancel(ctx)
	cancel()
	testkit.WantError(t, "Acquire", first.Acquire(ended), context.Canceled)
}

// A Lease that was deleted and created again continues after terms that were written.
func TestExceed(t *testing.T) {
	api := kubeapi.New(t, kubeapi.Leases())
	ctx := testkit.Context(t)
	l := candidate(t, api, "first", time.Hour)
	testkit.Must(t, l.Acquire(ctx))
	l.Exceed(7)
	testkit.Must(t, l.Acquire(ctx))
	if l.Term() != 8 {
		t.Errorf("term %d, want 8", l.Term())
	}
	api.Delete("controller")
	if held, err := l.acquire(ctx); !held || err != nil || l.Term() != 8 {
		t.Errorf("renewed after its deletion: %t, %v, term %d, want 8", held, err, l.Term())
	}
	testkit.Must(t, l.Release(ctx), l.Acquire(ctx))
	if l.Term() != 9 {
		t.Errorf("term %d, want 9", l.Term())
	}
}

// A holder ends when it can no longer renew, before another one can take over, and when
// another one has.
func TestLost(t *testing.T) {
	api := kubeapi.New(t, kubeapi.Leases())
	ctx := testkit.Context(t)
	const duration = 2 * time.Second
	first := candidate(t, api, "first", duration)
	testkit.Must(t, first.Acquire(ctx))
	begun := time.Now()
	api.Refuse(500)
	testkit.WantError(t, "Keep", first.Keep(ctx), nil, "was not renewed in time")
	if took := time.Since(begun); took > duration {
		t.Logf("ended after %s: the machine is slow", took)
	}
	api.Refuse(0)
	second := candidate(t, api, "second", duration)
	testkit.Must(t, second.Acquire(ctx))
	testkit.WantError(t, "Keep", first.Keep(ctx), nil, "Lease cleat-system/controller")
	ended, cancel := context.WithCancelCause(ctx)
	stop := errors.New("stop")
	cancel(stop)
	testkit.WantError(t, "Keep", second.Keep(ended), stop)
}

// A candidate that cannot read the Lease any more is not one.
func TestCheck(t *testing.T) {
	api := kubeapi.New(t, kubeapi.Leases())
	ctx := testkit.Context(t)
	l := candidate(t, api, "first", time.Hour)
	testkit.Must(t, l.Acquire(ctx), l.Check(ctx))
	longAgo := time.Now().Add(-2 * time.Hour)
	l.read.Store(&longAgo)
	api.Refuse(500)
	held, err := l.acquire(ctx)
	if held || err == nil {
		t.Errorf("renewed by a server that refuses: %t, %v", held, err)
	}
	testkit.WantError(t, "Check", l.Check(ctx), errs.Unavailable, "was last read 2h0m")
	api.Refuse(0)
	testkit.Must(t, l.Acquire(ctx), l.Check(ctx))
}

func TestCheckDuration(t *testing.T) {
	testkit.Must(t, CheckDuration(15*time.Second))
	for _, d := range []time.Duration{0, -time.Second, 1500 * time.Millisecond} {
		testkit.WantError(t, d.String(), CheckDuration(d), nil, "positive number of seconds")
	}
}
