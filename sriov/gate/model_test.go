package gate

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"pgregory.net/rapid"
)

// Random events must not violate a rule of world. Afterwards the kubelet has
// the expected devices, a withdrawal completes in time, and the plugin exits.
func TestModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cfg := Config{Controlled: rapid.IntRange(0, 4).Draw(t, "controlled") > 0}
		w := newWorld(cfg, rapid.Bool().Draw(t, "pod resources"), t.Fatalf, "a", "b")
		if rapid.IntRange(0, 4).Draw(t, "warm") > 0 {
			offerAll(w)
		}
		for range rapid.IntRange(1, 120).Draw(t, "steps") {
			randomEvent(t, w)
		}
		for _, r := range w.resources {
			r.fails = false
		}
		w.runUntilIdle()
		checkRest(t, w)
		checkWithdrawal(t, w)
		w.step(func() { w.gate.Quit(w.now) })
		from := w.now
		w.runUntil(func() bool { return w.exited })
		if !w.exited || w.now.Sub(from) > w.gate.cfg.WithdrawTimeout {
			t.Fatalf("the plugin ended: %v, after %s", w.exited, w.now.Sub(from))
		}
		if len(w.sessions) > 0 {
			t.Fatalf("streams stay open after the end: %v", w.sessions)
		}
		for _, r := range w.resources {
			if len(r.lists) > 0 && !r.connected && r.lists[len(r.lists)-1] != 0 && w.gate.resources[r.name].step == streaming {
				t.Fatalf("%s stopped with %d devices of capacity", r.name, r.lists[len(r.lists)-1])
			}
		}
	})
}

func offerAll(w *world) {
	for name := range w.resources {
		w.nodeState[name] = []Device{testDevice(name, 0, true), testDevice(name, 1, true)}
	}
	w.enable(Claim{UID: "u", Generation: 2})
	w.runUntilIdle()
}

func randomEvent(t *rapid.T, w *world) {
	r := w.resources[rapid.SampledFrom([]string{"a", "b"}).Draw(t, "resource")]
	switch rapid.SampledFrom([]string{"move", "move", "move", "move", "move", "move", "advance", "advance", "fire", "early",
		"enable", "break", "disable", "gone", "beat", "allocate", "allocate", "scan", "lose", "restart", "fail", "config"}).Draw(t, "what") {
	case "move":
		if names := w.nonEmptyQueues(); len(names) > 0 {
			w.move(rapid.SampledFrom(names).Draw(t, "queue"))
		}
	case "advance":
		w.advance(time.Duration(rapid.SampledFrom([]int{1, 50, 400, 999, 1000, 2500, 20000}).Draw(t, "ms")) * time.Millisecond)
	case "fire":
		if at := w.gate.Next(); !at.IsZero() {
			w.advance(at.Sub(w.now))
			w.tick()
		}
	case "early":
		w.tick()
	case "enable":
		w.enable(Claim{UID: rapid.SampledFrom([]string{"", "u", "v"}).Draw(t, "uid"), Generation: rapid.Int64Range(0, 4).Draw(t, "generation"),
			Hash:   rapid.SampledFrom([]string{"", "", "h", "other"}).Draw(t, "hash"),
			Lease:  time.Duration(rapid.SampledFrom([]int{0, 0, 3}).Draw(t, "lease")) * time.Second,
			Hold:   time.Duration(rapid.SampledFrom([]int{0, 0, 2}).Draw(t, "hold")) * time.Second,
			Closed: rapid.SampledFrom([]Closed{nil, nil, {"pf0": "drift"}, {"pf1": "drift"}, {"a0": "drift", "b1": ""}, {"pf0": "other", "a1": "drift"}}).Draw(t, "closed")})
	case "break":
		if h := w.gate.live(); h != nil {
			w.sessions = slices.DeleteFunc(w.sessions, func(s *Session) bool { return s == h })
			w.step(func() { w.gate.Disconnect(w.now, h) })
		}
	case "disable":
		w.disable(rapid.SampledFrom([]string{"", "", "s1", "s2"}).Draw(t, "session"))
	case "gone":
		if len(w.disables) > 0 {
			d := w.disables[0]
			w.disables = w.disables[1:]
			w.step(func() { w.gate.Cancel(w.now, d) })
		}
	case "beat":
		if h := w.gate.live(); h != nil {
			w.step(func() { _, _ = w.gate.Heartbeat(w.now, h.ID) })
		}
	case "allocate":
		w.allocate(r)
	case "scan":
		var devices []Device
		for i := range rapid.IntRange(0, 3).Draw(t, "devices") {
			devices = append(devices, testDevice(r.name, i, rapid.IntRange(0, 3).Draw(t, "healthy") > 0))
		}
		w.nodeState[r.name] = devices
		w.step(func() { w.gate.Scanned(w.now, 0, w.nodeState, nil) })
	case "lose":
		w.endStream(r)
	case "restart":
		w.endStream(r)
		r.kubeletView = map[string]bool{}
		w.queue("kubelet "+r.name, func() { w.step(func() { w.gate.KubeletStarted(w.now) }) })
	case "fail":
		r.fails = !r.fails
	case "config":
		hash := rapid.SampledFrom([]string{"h", "h2"}).Draw(t, "hash")
		w.step(func() { w.gate.Configure(w.now, hash, []string{"a", "b"}) })
	}
}

func checkRest(t *rapid.T, w *world) {
	c := w.gate
	if c.open != c.shouldOffer() {
		t.Fatalf("open is %v, should offer: %v", c.open, c.shouldOffer())
	}
	for _, s := range w.sessions {
		if h := c.live(); h != s {
			t.Fatalf("stream %s stays open and does not hold the devices", s.ID)
		}
	}
	if len(w.disables) > 0 || len(c.disabling) > 0 || len(c.ending) > 0 {
		t.Fatalf("callers wait for a withdrawal for ever: %v %v", c.disabling, c.ending)
	}
	for name, r := range w.resources {
		want := map[string]bool{}
		if c.shouldOffer() {
			for _, d := range w.nodeState[name] {
				want[d.ID] = d.Healthy && (c.holder == nil || c.holder.Closed.Reason(d) == "")
			}
		}
		if fmt.Sprint(want) != fmt.Sprint(r.kubeletView) {
			t.Fatalf("%s: the kubelet has %v, want %v", name, r.kubeletView, want)
		}
		if r.registry > 0 && !r.connected {
			t.Fatalf("%s was registered and has no stream", name)
		}
		if !c.cfg.Controlled && len(w.nodeState[name]) > 0 && r.registry == 0 {
			t.Fatalf("%s is not registered though not controlled", name)
		}
	}
	if s := c.Status(); s.Withdrawn != (len(s.Closed) > 0) {
		t.Fatalf("at rest the closed functions %v are acknowledged: %v", s.Closed, s.Withdrawn)
	}
	if s := c.Status(); c.shouldOffer() && s.State != Serving || !c.shouldOffer() && s.State != Initializing {
		t.Fatalf("state %s at rest, should offer: %v (%+v)", s.State, c.shouldOffer(), s)
	}
}

// checkWithdrawal: Disable succeeds in time, with any number of calls in
// flight.
func checkWithdrawal(t *rapid.T, w *world) {
	for _, r := range w.resources {
		for range rapid.IntRange(0, 3).Draw(t, "calls") {
			w.allocate(r)
		}
	}
	d, from := w.disable(""), w.now
	w.runUntil(func() bool { return d.Done })
	want := codes.OK
	if !w.cfg.Controlled {
		want = codes.FailedPrecondition
	}
	if !d.Done || codeOf(d.Err) != want || w.now.Sub(from) > w.gate.cfg.WithdrawTimeout {
		t.Fatalf("Disable: %+v after %s, want %v", d, w.now.Sub(from), want)
	}
	w.runUntilIdle()
	checkRest(t, w)
}
