package actor_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/cleatproject/cleat/internal/actor"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// recorder is a state machine that records its events. An event "set N" sets
// timer N to N seconds from now, "clear N" clears it, "stop" stops.
type recorder struct {
	*actor.Actor[string, string]
	start time.Time
	got   []string
	ctx   context.Context
	stop  context.CancelCauseFunc
}

var errStopped = errors.New("stop")

func newRecorder(t *testing.T) *recorder {
	r := &recorder{Actor: actor.New[string, string](), start: time.Now()}
	r.ctx, r.stop = context.WithCancelCause(t.Context())
	return r
}

func (r *recorder) step(now time.Time, event string) []string {
	r.got = append(r.got, fmt.Sprintf("%s at %s", event, now.Sub(r.start)))
	return []string{event}
}

func (r *recorder) do(action string) {
	var seconds int
	switch {
	case action == "stop":
		r.stop(errStopped)
	case scan(action, "set %d", &seconds):
		r.Set(fmt.Sprint(seconds), time.Now().Add(time.Duration(seconds)*time.Second), fmt.Sprintf("timer %d", seconds))
	case scan(action, "clear %d", &seconds):
		r.Clear(fmt.Sprint(seconds))
	}
}

func scan(text, format string, number *int) bool {
	_, err := fmt.Sscanf(text, format, number)
	return err == nil
}

func TestEventsAndTimersArriveInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRecorder(t)
		for _, e := range []string{"a", "set 3", "set 1", "set 2", "clear 2", "set 0", "b"} {
			r.Send(e)
		}
		time.AfterFunc(2*time.Second, func() { r.Send("set 1") })
		time.AfterFunc(5*time.Second, func() { r.Send("stop"); r.Send("never") })
		if err := r.Run(r.ctx, r.step, r.do); !errors.Is(err, errStopped) {
			t.Error(err)
		}
		want := []string{
			"a at 0s", "set 3 at 0s", "set 1 at 0s", "set 2 at 0s", "clear 2 at 0s", "set 0 at 0s", "timer 0 at 0s", "b at 0s",
			"timer 1 at 1s", "set 1 at 2s", "timer 1 at 3s", "timer 3 at 3s", "stop at 5s",
		}
		if diff := cmp.Diff(want, r.got); diff != "" {
			t.Errorf("events (-want +got):\n%s", diff)
		}
	})
}

func TestSetMovesATimer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRecorder(t)
		r.Set("x", time.Now().Add(time.Second), "early")
		r.Set("x", time.Now().Add(2*time.Second), "stop")
		if err := r.Run(r.ctx, r.step, r.do); !errors.Is(err, errStopped) {
			t.Error(err)
		}
		if diff := cmp.Diff([]string{"stop at 2s"}, r.got); diff != "" {
			t.Error(diff)
		}
	})
}

func TestRunEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cause := errors.New("the cause")
		ctx, cancel := context.WithCancelCause(t.Context())
		r := newRecorder(t)
		time.AfterFunc(time.Second, func() { cancel(cause) })
		if err := r.Run(ctx, r.step, r.do); !errors.Is(err, cause) {
			t.Errorf("got %v", err)
		}
		if r.Send("late") {
			t.Error("an event was accepted after Run has returned")
		}
	})
}

func TestSendersNeverBlockAndNothingIsLost(t *testing.T) {
	r := newRecorder(t)
	const senders, each = 8, 1000
	var all sync.WaitGroup
	for s := range senders {
		all.Go(func() {
			for i := range each {
				r.Send(fmt.Sprintf("%d %d", s, i))
			}
		})
	}
	go func() { all.Wait(); r.Send("stop") }()
	next := make([]int, senders)
	err := r.Run(r.ctx, func(_ time.Time, event string) []string {
		var s, i int
		if scanned, _ := fmt.Sscanf(event, "%d %d", &s, &i); scanned == 2 {
			if i != next[s] {
				t.Errorf("sender %d: event %d arrived, want %d", s, i, next[s])
			}
			next[s] = i + 1
		}
		return []string{event}
	}, r.do)
	if !errors.Is(err, errStopped) {
		t.Error(err)
	}
	for s, n := range next {
		if n != each {
			t.Errorf("sender %d: %d of %d events arrived", s, n, each)
		}
	}
}
