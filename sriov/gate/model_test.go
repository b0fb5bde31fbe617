package gate

import (
	"fmt"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"pgregory.net/rapid"
)

// Whatever happens in whatever order, the world breaks no rule (world_test.go
// says which); and when things happen fairly again, the kubelet has what it
// should, a withdrawal ends within its bound, and the plugin ends.
func TestModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cfg := Config{Controlled: rapid.IntRange(0, 4).Draw(t, "controlled") > 0}
		w := newWorld(cfg, rapid.Bool().Draw(t, "pod resources"), t.Fatalf, "a", "b")
		if rapid.IntRange(0, 4).Draw(t, "warm") > 0 {
			warm(w)
		}
		for range rapid.IntRange(1, 120).Draw(t, "steps") {
			happen(t, w)
		}
		for _, r := range w.rooms {
			r.fails = false
		}
		w.rest()
		checkRest(t, w)
		checkWithdrawal(t, w)
		w.tell(Quit{})
		from := w.now
		w.settle(func() bool { return w.exited })
		if !w.exited || w.now.Sub(from) > w.gate.cfg.Bound {
			t.Fatalf("the plugin ended: %v, after %s", w.exited, w.now.Sub(from))
		}
		if len(w.sessions) > 0 {
			t.Fatalf("streams stay open after the end: %v", w.sessions)
		}
		for _, r := range w.rooms {
			if len(r.lists) > 0 && r.stream == 0 && r.lists[len(r.lists)-1] != 0 && r.machine.step == streaming {
				t.Fatalf("%s stopped with %d devices of capacity", r.name, r.lists[len(r.lists)-1])
			}
		}
	})
}

// warm brings the world to where most can go wrong: everything is offered.
func warm(w *world) {
	for name, r := range w.rooms {
		w.nodeState[name] = []Device{{name + "0", true}, {name + "1", true}}
		w.step(r, Snapshot{Devices: w.nodeState[name]})
	}
	w.enable(Claim{UID: "u", Generation: 2})
	w.rest()
}

// happen is one thing that happens.
func happen(t *rapid.T, w *world) {
	r := w.rooms[rapid.SampledFrom([]string{"a", "b"}).Draw(t, "resource")]
	switch rapid.SampledFrom([]string{"move", "move", "move", "move", "move", "move", "advance", "advance", "fire", "early",
		"enable", "break", "disable", "gone", "beat", "allocate", "allocate", "scan", "lose", "restart", "fail", "config"}).Draw(t, "what") {
	case "move":
		if names := w.waiting(); len(names) > 0 {
			w.move(rapid.SampledFrom(names).Draw(t, "queue"))
		}
	case "advance":
		w.advance(time.Duration(rapid.SampledFrom([]int{1, 50, 400, 999, 1000, 2500, 20000}).Draw(t, "ms")) * time.Millisecond)
	case "fire":
		if owner, name, at, found := w.next(); found {
			if at.After(w.now) {
				w.advance(at.Sub(w.now))
			}
			w.fire(owner, name)
		}
	case "early":
		if owner, name, _, found := w.next(); found {
			w.fire(owner, name)
		}
	case "enable":
		w.enable(Claim{UID: rapid.SampledFrom([]string{"", "u", "v"}).Draw(t, "uid"), Generation: rapid.Int64Range(0, 4).Draw(t, "generation"),
			Hash:  rapid.SampledFrom([]string{"", "", "h", "other"}).Draw(t, "hash"),
			Lease: time.Duration(rapid.SampledFrom([]int{0, 0, 3}).Draw(t, "lease")) * time.Second,
			Hold:  time.Duration(rapid.SampledFrom([]int{0, 0, 2}).Draw(t, "hold")) * time.Second})
	case "break":
		if h := w.gate.live(); h != nil {
			delete(w.sessions, h.session)
			w.tell(Closed{Session: h.session})
		}
	case "disable":
		w.disable(rapid.SampledFrom([]string{"", "", "s1", "s2"}).Draw(t, "session"))
	case "gone":
		if len(w.gate.pending) > 0 {
			call := w.gate.pending[0]
			w.answered[call] = Disabled{Call: call, Code: codes.Canceled}
			w.tell(DisableGone{Call: call})
		}
	case "beat":
		if h := w.gate.live(); h != nil {
			w.tell(Heartbeat{Call: w.id(), Session: h.session})
		}
	case "allocate":
		w.allocate(r)
	case "scan":
		var devices []Device
		for i := range rapid.IntRange(0, 3).Draw(t, "devices") {
			devices = append(devices, Device{ID: fmt.Sprintf("%s%d", r.name, i), Healthy: rapid.IntRange(0, 3).Draw(t, "healthy") > 0})
		}
		w.nodeState[r.name] = devices
		w.step(r, Snapshot{Devices: devices})
	case "lose":
		w.drop(r)
	case "restart":
		w.drop(r)
		r.belief = map[string]bool{}
		w.queue("kubelet "+r.name, func() { w.step(r, KubeletStarted{}) })
	case "fail":
		r.fails = !r.fails
	case "config":
		w.tell(Configured{Hash: rapid.SampledFrom([]string{"h", "h2"}).Draw(t, "hash"), Resources: []string{"a", "b"}})
	}
}

// checkRest: nothing is left to happen, so everything is as it should be.
func checkRest(t *rapid.T, w *world) {
	c := w.gate
	if c.open != c.wanted() {
		t.Fatalf("open is %v, and somebody answers for it: %v", c.open, c.wanted())
	}
	for s := range w.sessions {
		if h := c.live(); h == nil || h.session != s {
			t.Fatalf("stream %s stays open and does not hold the devices", s)
		}
	}
	if len(w.answered) != w.disables || len(c.pending) > 0 || len(c.leaving) > 0 {
		t.Fatalf("somebody waits for a withdrawal for ever: %v %v", c.pending, c.leaving)
	}
	for name, r := range w.rooms {
		want := map[string]bool{}
		if c.wanted() {
			for _, d := range w.nodeState[name] {
				want[d.ID] = d.Healthy
			}
		}
		if fmt.Sprint(want) != fmt.Sprint(r.belief) {
			t.Fatalf("%s: the kubelet has %v, want %v", name, r.belief, want)
		}
		if r.registry > 0 && r.stream == 0 {
			t.Fatalf("%s was registered and has no stream", name)
		}
		if !c.cfg.Controlled && len(w.nodeState[name]) > 0 && r.registry == 0 {
			t.Fatalf("%s is not registered though not controlled", name)
		}
	}
	if s := c.Status(); c.wanted() && s.State != Serving || !c.wanted() && s.State != Initializing {
		t.Fatalf("state %s at rest, somebody answers: %v (%+v)", s.State, c.wanted(), s)
	}
}

// checkWithdrawal: Disable is answered OK within the bound, however many calls run.
func checkWithdrawal(t *rapid.T, w *world) {
	for _, r := range w.rooms {
		for range rapid.IntRange(0, 3).Draw(t, "calls") {
			w.allocate(r)
		}
	}
	call, from := w.disable(""), w.now
	w.settle(func() bool { _, done := w.answered[call]; return done })
	got, done := w.answered[call]
	want := codes.OK
	if !w.cfg.Controlled {
		want = codes.FailedPrecondition
	}
	if !done || got.Code != want || w.now.Sub(from) > w.gate.cfg.Bound {
		t.Fatalf("Disable: %+v after %s, want %v", got, w.now.Sub(from), want)
	}
	w.rest()
	checkRest(t, w)
}
