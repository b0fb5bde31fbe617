package watch

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cleatproject/cleat/test/testkit"
)

func TestCloseLeavesPluginsAlone(t *testing.T) {
	r := startRig(t, nil)
	for i := range 5 {
		newPlugin(t, r.path(fmt.Sprintf("%d.sock", i)), "T", "n", nil)
		r.phase(fmt.Sprintf("%d.sock", i), Registered)
	}
	testkit.Must(t, r.Close(t.Context(), false), r.Close(t.Context(), true)) // only the first call has an effect
	if got := r.made(); strings.Contains(got, "DeRegister") {
		t.Errorf("calls: %s", got)
	}
	if got := r.List(); len(got) != 5 || got[0].Phase != Registered {
		t.Errorf("known: %+v", got)
	}
	if err := r.Handle("U", newRecorder()); !errors.Is(err, ErrClosed) {
		t.Errorf("Handle: %v", err)
	}
	if err := r.Start(t.Context()); err == nil {
		t.Error("started again")
	}
}

func TestCloseDeregisters(t *testing.T) {
	r := startRig(t, nil)
	for i := range 5 {
		newPlugin(t, r.path(fmt.Sprintf("%d.sock", i)), "T", fmt.Sprint(i), nil)
		r.phase(fmt.Sprintf("%d.sock", i), Registered)
	}
	accepting(t, r.path("silent"), "", false)
	r.phase("silent", Asking)
	testkit.Must(t, r.Close(t.Context(), true))
	if got := r.made(); strings.Count(got, "DeRegister") != 5 || len(r.List()) != 0 {
		t.Errorf("calls: %s, left: %+v", got, r.List())
	}
}

func TestCloseReportsFailedDeregistrations(t *testing.T) {
	r := newRig(t, nil)
	r.deRegister = func(context.Context, Plugin) error { return errors.New("stuck") }
	r.start()
	newPlugin(t, r.path("a.sock"), "T", "n", nil)
	r.phase("a.sock", Registered)
	err := r.Close(t.Context(), true)
	if err == nil || !strings.Contains(err.Error(), `not deregistered: ["T n: stuck"]`) || r.Close(t.Context(), true) != err {
		t.Errorf("got %v", err)
	}
	r.Host = newRig(t, nil).Host // the cleanup of the rig must not close this one
}

// In-flight calls end first, and the plugin is notified.
func TestCloseWaitsForCalls(t *testing.T) {
	r := newRig(t, nil)
	begun, release := make(chan struct{}), make(chan struct{})
	r.register = func(context.Context, Plugin) error { close(begun); <-release; return nil }
	r.start()
	p := newPlugin(t, r.path("a.sock"), "T", "n", nil)
	<-begun
	closed := make(chan error)
	go func() { closed <- r.Close(t.Context(), false) }()
	select {
	case <-closed:
		t.Error("did not wait")
	case <-time.After(50 * time.Millisecond):
	}
	close(release)
	testkit.Must(t, <-closed)
	if got := p.notifications(); len(got) != 1 || got[0] != "true " {
		t.Errorf("notified of %q", got)
	}
	if got := r.List(); got[0].Phase != Registered {
		t.Errorf("%+v", got)
	}
}

func TestCloseCancelsCalls(t *testing.T) {
	r := newRig(t, nil)
	begun := make(chan struct{})
	r.register = func(ctx context.Context, _ Plugin) error { close(begun); <-ctx.Done(); return ctx.Err() }
	r.start()
	newPlugin(t, r.path("a.sock"), "T", "n", nil)
	<-begun
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := r.Close(ctx, false); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "were cancelled") {
		t.Errorf("got %v", err)
	}
	if got := r.made(); got != "Validate n, Register n, DeRegister n" {
		t.Errorf("calls: %s", got)
	}
}

func TestCloseReportsCallsInFlight(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	begun, release := make(chan struct{}), make(chan struct{})
	r.register = func(context.Context, Plugin) error { close(begun); <-release; return nil }
	testkit.Must(t, r.Start(t.Context()))
	newPlugin(t, r.path("a.sock"), "T", "n", nil)
	<-begun
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := r.Close(ctx, false); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "T n") {
		t.Errorf("got %v", err)
	}
	close(release)
	r.work.Wait()
}

func TestCloseWithoutStart(t *testing.T) {
	r := newRig(t, nil)
	testkit.Must(t, r.Close(t.Context(), true))
	if err := r.Start(t.Context()); err == nil {
		t.Error("started after Close")
	}
	if _, err := r.Wait(t.Context(), "", "n"); !errors.Is(err, ErrClosed) {
		t.Errorf("Wait: %v", err)
	}
}
