package watch

import (
	"context"
	"errors"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/cleatproject/cleat/test/testkit"
)

// remove removes a socket, and waits until the host has noticed.
func (r *rig) remove(name string) {
	r.t.Helper()
	r.mustKnow(name, func() error { return os.Remove(r.path(name)) })
}

// mustKnow waits until the host has noticed that the socket is gone.
func (r *rig) mustKnow(name string, change func() error) {
	r.t.Helper()
	r.Host.mu.Lock()
	s := r.paths[r.path(name)].now
	r.Host.mu.Unlock()
	if err := change(); err != nil {
		r.t.Error(err)
	}
	<-s.ctx.Done()
}

// failing returns a function that fails a number of times.
func failing(times int32) func(context.Context, Plugin) error {
	var calls atomic.Int32
	return func(context.Context, Plugin) error {
		if calls.Add(1) <= times {
			return errors.New("stuck")
		}
		return nil
	}
}

// calls waits until the handler has received these calls.
func (r *rig) calls(want string) {
	r.t.Helper()
	testkit.EventuallyNil(r.t, "calls of the handler", func() error {
		if got := r.made(); got != want {
			return errors.New("calls: " + got + "\nwant:  " + want)
		}
		return nil
	})
}

// A socket goes during an attempt: the attempt ends if it has changed nothing
// yet; a Register completes and is undone.
func TestSocketGoneDuringAttempt(t *testing.T) {
	for step, c := range map[Phase]struct{ calls, notified string }{
		Asking:      {"", ""},
		Validating:  {"Validate n", ""},
		Registering: {"Validate n, Register n, DeRegister n", "true "},
		Notifying:   {"Validate n, Register n, DeRegister n", "true "},
	} {
		t.Run(string(step), func(t *testing.T) {
			r := newRig(t, nil)
			hook := func(context.Context, Plugin) error { r.remove("a.sock"); return nil }
			p := newPlugin(t, r.path(".a"), "T", "n", func(p *plugin) {
				switch step {
				case Asking:
					info := p.info
					p.info = func(ctx context.Context) (*registration.PluginInfo, error) { r.remove("a.sock"); return info(ctx) }
				case Notifying:
					p.notify = func(context.Context, *registration.RegistrationStatus) error { return hook(nil, Plugin{}) }
				}
			})
			switch step {
			case Validating:
				r.validate = hook
			case Registering:
				r.register = hook
			}
			testkit.Must(t, os.Rename(p.path, r.path("a.sock")))
			r.start()
			r.phase("a.sock", Gone)
			r.calls(c.calls)
			if got := strings.Join(p.notifications(), ", "); got != c.notified {
				t.Errorf("notified of %q, want %q", got, c.notified)
			}
		})
	}
}

// While the old plugin is deregistered, other sockets come and go at its path;
// only the last one is registered.
func TestReplacedTwice(t *testing.T) {
	r := newRig(t, nil)
	begun, release := make(chan struct{}), make(chan struct{})
	r.deRegister = func(context.Context, Plugin) error { close(begun); <-release; return nil }
	r.start()
	first := newPlugin(t, r.path("a.sock"), "T", "first", nil)
	r.phase("a.sock", Registered)
	testkit.Must(t, os.Remove(first.path))
	<-begun
	second := newPlugin(t, r.path("a.sock"), "T", "second", nil)
	testkit.Must(t, os.Remove(second.path))
	newPlugin(t, r.path("a.sock"), "T", "third", nil)
	newPlugin(t, r.path("zz.sock"), "T", "barrier", nil) // found after all of these
	r.phase("zz.sock", Registered)
	close(release)
	r.until("a.sock", func(s Status) bool { return s.Phase == Registered && s.Name == "third" })
	if got := r.made(); strings.Contains(got, "second") || !strings.HasPrefix(got, "Validate first, Register first, DeRegister first, ") {
		t.Errorf("calls: %s", got)
	}
}

// A socket that waits for a handler call for the same name has phase Waiting,
// and can go.
func TestWaitsForOtherSocketOfName(t *testing.T) {
	r := newRig(t, nil)
	begun, release := make(chan struct{}), make(chan struct{})
	r.register = func(context.Context, Plugin) error { close(begun); <-release; return nil }
	r.start()
	newPlugin(t, r.path("a.sock"), "T", "n", nil)
	<-begun
	newPlugin(t, r.path("b.sock"), "T", "n", nil)
	r.until("b.sock", func(s Status) bool { return s.Phase == Waiting && s.Name == "n" })
	r.remove("b.sock")
	r.phase("b.sock", Gone)
	close(release)
	r.phase("a.sock", Registered)
	if got := r.made(); got != "Validate n, Register n" {
		t.Errorf("calls: %s", got)
	}
}

func TestDeRegisterFails(t *testing.T) {
	r := newRig(t, func(o *Options) { o.BackOff = BackOff{First: 20 * time.Millisecond, Most: time.Second, Jitter: -1} })
	r.deRegister = failing(3)
	r.start()
	events := r.Subscribe(t.Context())
	newPlugin(t, r.path("a.sock"), "T", "n", nil)
	r.phase("a.sock", Registered)
	r.remove("a.sock")
	var pauses []time.Duration // from the begin of the attempt
	var last time.Time
	for e := range events {
		if e.Status.Phase == Failed {
			if e.Status.Step != DeRegistering || e.Status.Error != "stuck" {
				t.Errorf("status %+v", e.Status)
			}
			pauses = append(pauses, e.Status.NextTry.Sub(last))
		}
		if e.Status.Phase == Gone {
			break
		}
		last = e.Status.Since
	}
	if len(pauses) != 3 || pauses[0] < 20*time.Millisecond || pauses[1] < 40*time.Millisecond || pauses[2] < 80*time.Millisecond {
		t.Errorf("pauses of %v", pauses)
	}
	r.calls("Validate n, Register n" + strings.Repeat(", DeRegister n", 4))
}

// left counts the plugins that are still to be deregistered in the background.
func (r *rig) left() int {
	r.Host.mu.Lock()
	defer r.Host.mu.Unlock()
	return len(r.orphans)
}

// A failing DeRegister of the old plugin blocks the next one for one more
// attempt, and is then retried in the background.
func TestOrphan(t *testing.T) {
	stuck := func(t *testing.T, retry time.Duration) (*rig, *atomic.Bool) {
		r := newRig(t, func(o *Options) { o.BackOff = BackOff{First: retry, Most: retry} })
		var repaired atomic.Bool
		r.deRegister = func(_ context.Context, p Plugin) error {
			if p.Name == "n" && !repaired.Load() {
				return errors.New("stuck")
			}
			return nil
		}
		r.start()
		newPlugin(t, r.path("a.sock"), "T", "n", nil)
		r.phase("a.sock", Registered)
		r.remove("a.sock")
		r.phase("a.sock", Failed)
		return r, &repaired
	}
	t.Run("another instance", func(t *testing.T) {
		r, repaired := stuck(t, time.Second)
		newPlugin(t, r.path("a.sock"), "T", "other", nil)
		r.until("a.sock", func(s Status) bool { return s.Phase == Registered && s.Name == "other" })
		repaired.Store(true)
		testkit.Eventually(t, "the old plugin is deregistered", func() bool { return r.left() == 0 })
		// Retries in the background come at any time.
		calls := strings.ReplaceAll(r.made(), ", DeRegister n", "")
		testkit.Diff(t, "calls without DeRegister", "Validate n, Register n, Validate other, Register other", calls)
		if got := r.phase("a.sock", Registered); got.Name != "other" {
			t.Errorf("%+v", got)
		}
	})
	t.Run("same instance", func(t *testing.T) {
		r, _ := stuck(t, time.Hour)
		newPlugin(t, r.path("a.sock"), "T", "n", nil)
		r.phase("a.sock", Registered)
		if r.left() != 0 {
			t.Error("the orphan would remove the new registration")
		}
		// The new socket ends the wait for the next attempt, or comes before it.
		calls := strings.ReplaceAll(r.made(), "DeRegister n, DeRegister n", "DeRegister n")
		testkit.Diff(t, "calls", "Validate n, Register n, DeRegister n, Validate n, Register n", calls)
	})
	t.Run("at Close", func(t *testing.T) {
		r, _ := stuck(t, time.Hour)
		newPlugin(t, r.path("a.sock"), "T", "other", nil)
		r.until("a.sock", func(s Status) bool { return s.Phase == Registered && s.Name == "other" })
		if err := r.Close(t.Context(), false); err == nil || !strings.Contains(err.Error(), `["T n: stuck"]`) {
			t.Errorf("got %v", err)
		}
		r.Host = newRig(t, nil).Host // the cleanup of the rig must not close this one
	})
}

// A Register that was interrupted is deregistered before the next attempt.
func TestInterruptedRegisterIsDeregistered(t *testing.T) {
	r := newRig(t, func(o *Options) { o.BackOff = BackOff{First: 10 * time.Millisecond, Most: 10 * time.Millisecond} })
	var registers atomic.Int32
	r.register = func(context.Context, Plugin) error {
		if registers.Add(1) == 1 {
			panic("half done")
		}
		return nil
	}
	r.deRegister = failing(2)
	r.start()
	newPlugin(t, r.path("a.sock"), "T", "n", nil)
	r.phase("a.sock", Registered)
	r.calls("Validate n, Register n, DeRegister n, DeRegister n, DeRegister n, Validate n, Register n")
}

// After a failed notification the plugin is deregistered, however long that
// takes; the status then has the first error.
func TestNotifyFailsAndDeRegisterFails(t *testing.T) {
	r := newRig(t, func(o *Options) { o.BackOff = BackOff{First: 10 * time.Millisecond, Most: time.Minute, Jitter: -1} })
	r.deRegister = failing(2)
	r.start()
	events := r.Subscribe(t.Context())
	newPlugin(t, r.path("a.sock"), "T", "n", func(p *plugin) {
		p.notify = func(context.Context, *registration.RegistrationStatus) error {
			return status.Error(codes.Internal, "no")
		}
	})
	var failed []Phase
	for e := range events {
		if e.Status.Phase == Failed {
			failed = append(failed, e.Status.Step)
		}
		if e.Status.Phase == Failed && e.Status.Step == Notifying {
			if !strings.Contains(e.Status.Error, "no") {
				t.Errorf("status %+v", e.Status)
			}
			break
		}
	}
	testkit.Diff(t, "failed steps", []Phase{DeRegistering, DeRegistering, Notifying}, failed)
	if got := r.made(); !strings.HasPrefix(got, "Validate n, Register n, DeRegister n, DeRegister n, DeRegister n") {
		t.Errorf("calls: %s", got)
	}
}

func TestBackOff(t *testing.T) {
	b := BackOff{First: 500 * time.Millisecond, Most: 122 * time.Second}
	for i, want := range []float64{.5, 1, 2, 4, 8, 16, 32, 64, 122, 122} {
		if got := b.pause(i + 1); got != time.Duration(want*1e9) {
			t.Errorf("after %d failures %s, want %v s", i+1, got, want)
		}
	}
	if got := b.pause(1 << 40); got != b.Most {
		t.Errorf("after very many failures: %s", got)
	}
	b.Jitter = 0.2
	for range 1000 {
		if got := b.pause(3); got > 2*time.Second || got < 1600*time.Millisecond {
			t.Fatalf("with jitter %s", got)
		}
	}
}
