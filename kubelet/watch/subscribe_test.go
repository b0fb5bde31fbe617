package watch

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/cleatproject/cleat/test/testkit"
)

func serials(events []Event) (all []uint64) {
	for _, e := range events {
		all = append(all, e.Serial)
	}
	return all
}

func TestSlowSubscriber(t *testing.T) {
	var h hub
	slow, quick := h.subscribe(), h.subscribe()
	ctx := testkit.Context(t)
	var taken []uint64
	for range 2*maxWaiting + 10 {
		h.publish(time.Now(), Status{})
		taken = append(taken, serials(quick.take(ctx))...)
	}
	if len(taken) != 2*maxWaiting+10 {
		t.Errorf("%d events were taken by a quick subscriber", len(taken))
	}
	got := slow.take(ctx)
	if len(got) > maxWaiting || !got[0].Lost || got[1].Lost || got[len(got)-1].Serial != 2*maxWaiting+10 || got[0].Serial != 2*maxWaiting+10-uint64(len(got))+1 {
		t.Errorf("%d events, the first %+v, the last %d", len(got), got[0], got[len(got)-1].Serial)
	}
	h.publish(time.Now(), Status{})
	if got := slow.take(ctx); len(got) != 1 || got[0].Lost || got[0].Serial != 2*maxWaiting+11 {
		t.Errorf("then %+v", got)
	}
}

func TestSubscriptionEnds(t *testing.T) {
	for name, end := range map[string]func(r *rig, cancel context.CancelFunc){
		"context": func(_ *rig, cancel context.CancelFunc) { cancel() },
		"close":   func(r *rig, _ context.CancelFunc) { testkit.Must(t, r.Close(t.Context(), false)) },
	} {
		t.Run(name, func(t *testing.T) {
			r := startRig(t, nil)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			events := r.Subscribe(ctx)
			go end(r, cancel)
			for e := range events {
				t.Errorf("event %+v", e)
			}
			r.hub.mu.Lock()
			defer r.hub.mu.Unlock()
			if len(r.hub.all) != 0 {
				t.Errorf("%d subscribers are left", len(r.hub.all))
			}
		})
	}
}

// Events from before the end are still delivered, also if the loop starts
// later; a subscription after the end is empty.
func TestSubscriptionAfterClose(t *testing.T) {
	r := startRig(t, nil)
	events := r.Subscribe(t.Context())
	newPlugin(t, r.path("a.sock"), "T", "n", nil)
	r.phase("a.sock", Registered)
	testkit.Must(t, r.Close(t.Context(), true))
	var last Phase
	for e := range events {
		last = e.Status.Phase
	}
	if last != Gone {
		t.Errorf("the last event is %s", last)
	}
	for e := range r.Subscribe(t.Context()) {
		t.Errorf("event %+v", e)
	}
}

func TestSubscriptionLeft(t *testing.T) {
	r := startRig(t, nil)
	events := r.Subscribe(t.Context())
	for i := range 3 {
		newPlugin(t, r.path(fmt.Sprintf("%d.sock", i)), "T", "n", nil)
	}
	for range events {
		break
	}
	r.hub.mu.Lock()
	defer r.hub.mu.Unlock()
	if len(r.hub.all) != 0 {
		t.Errorf("%d subscribers are left", len(r.hub.all))
	}
}
