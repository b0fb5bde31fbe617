package watch

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// world is the slow model of everything around a machine: it knows what runs,
// and holds every step to the rules.
type world struct {
	t   *rapid.T
	m   *machine
	now time.Time

	present map[string]bool
	kinds   map[string]string // what the plugin at a path says of itself
	names   map[string]string

	running map[uint64]action // one at a time for a socket
	checks  []uint64
	dials   map[uint64]bool   // open connections
	stage   map[uint64]verb   // how far the attempt has come
	holders map[instance]bool // what handlers have, or may have
	calls   map[name]uint64   // handler calls that run
	healthy bool              // from now on everything works
}

const worldLimit = 2

func newWorld(t *rapid.T) *world {
	w := &world{
		t: t, now: time.Unix(1000, 0), present: map[string]bool{}, kinds: map[string]string{}, names: map[string]string{},
		running: map[uint64]action{}, dials: map[uint64]bool{}, stage: map[uint64]verb{},
		holders: map[instance]bool{}, calls: map[name]uint64{},
	}
	w.m = newMachine(rules{
		Dial: time.Second, BackOff: BackOff{First: 100 * time.Millisecond, Most: 2 * time.Second, Jitter: 0.2}, Concurrency: worldLimit,
		Grace:  time.Duration(rapid.IntRange(0, 1).Draw(t, "grace")) * time.Second,
		random: func() float64 { return 0.5 },
	})
	w.do(func() { w.m.handle("T") })
	return w
}

func (w *world) do(f func()) {
	for _, a := range w.m.do(w.now, f).actions {
		w.begin(a)
	}
	w.check()
}

// begin holds an action to the rules.
func (w *world) begin(a action) {
	switch a.do {
	case cancel:
		w.must(w.running[a.token].do == ask, "%d: cancels what does not run", a.token)
		return
	case hangUp, keep:
		w.must(w.dials[a.token], "%d: hangs up without a connection", a.token)
		delete(w.dials, a.token)
		return
	case forgetAlive:
		return
	case checkAlive:
		w.checks = append(w.checks, a.token)
		return
	}
	_, busy := w.running[a.token]
	w.must(!busy, "%d: two things at a time", a.token)
	w.running[a.token] = a
	key, of := name{a.plugin.Type, a.plugin.Name}, a.plugin.instance()
	switch before := w.stage[a.token]; a.do {
	case ask:
		w.must(!w.holders[of] || w.m.orphans[of] != nil, "%d: a new attempt while the handler has the plugin", a.token)
		w.dials[a.token] = true
	case tell:
		w.must(w.dials[a.token], "%d: tells nobody", a.token)
		w.must((a.text == "") == w.holders[of] || w.m.sockets[a.token].held || w.m.orphans[of] != nil, "%d: told %q, and the handler has it: %t", a.token, a.text, w.holders[of])
	case validate:
		w.must(before == ask, "%d: validates after %s", a.token, verbs[before])
		w.call(key, a.token)
	case register:
		w.must(before == validate, "%d: registers after %s", a.token, verbs[before])
		w.call(key, a.token)
		w.holders[of] = true
	case deRegister:
		w.must(w.holders[of], "%d: deregisters what nobody has", a.token)
		w.call(key, a.token)
	}
	w.stage[a.token] = a.do
}

func (w *world) call(key name, token uint64) {
	_, busy := w.calls[key]
	w.must(!busy, "%v: two calls at a time", key)
	w.calls[key] = token
}

func (w *world) must(ok bool, format string, args ...any) {
	if !ok {
		w.t.Fatalf(format, args...)
	}
}

// check looks at everything after every step.
func (w *world) check() {
	talking := 0
	for _, a := range w.running {
		if a.do == ask || a.do == tell {
			talking++
		}
	}
	w.must(talking <= worldLimit*(1+2*slower), "%d conversations at a time", talking)
	w.must(w.m.running == len(w.running)+len(w.checks), "%d actions are counted, %d run", w.m.running, len(w.running)+len(w.checks))
	_, alarm := w.m.alarmAt()
	for token, s := range w.m.sockets {
		_, busy := w.running[token]
		switch s.doing {
		case queued, queuedToTell:
			w.must(talking > 0, "%d waits for a lane, and nobody talks", token)
		case awaitingTurn, awaitingLeave:
			_, taken := w.calls[s.name()]
			w.must(taken, "%d waits for a turn that nobody has", token)
		case nothing:
			w.must(!busy && (s.inUse() || s.alarm != 0 && alarm || w.m.closing), "%d waits for nothing: %+v", token, s.status)
		case redialling:
			w.must(s.alarm != 0, "%d will never connect again", token)
		default:
			w.must(busy, "%d does nothing though it should", token)
		}
	}
	for path, p := range w.m.places {
		w.must(p.now != nil && p.now.place == p && w.m.sockets[p.now.token] == p.now, "%s has no socket", path)
		if !w.m.closing {
			w.must((!p.now.gone || p.next) == w.present[path], "%s is there: %t", path, w.present[path])
		}
	}
}

// finish ends an action that runs.
func (w *world) finish(token uint64, how int) {
	a := w.running[token]
	delete(w.running, token)
	s, of := w.m.sockets[token], a.plugin.instance()
	var f *failure
	if how > 0 && !w.healthy {
		f = &failure{step: Asking, text: fmt.Sprint("failure ", how), refused: how == 1, hung: how == 2, cut: how == 3}
	}
	switch a.do {
	case ask:
		path := s.status.Socket
		if !w.present[path] || s.gone {
			f = &failure{step: Asking, text: "gone"}
		}
		w.do(func() { w.m.asked(token, said(w.kinds[path], w.names[path], ""), f) })
	case tell:
		w.do(func() { w.m.told(token, f) })
	case validate:
		delete(w.calls, name{of.kind, of.name})
		w.do(func() { w.m.validated(token, f) })
	case register:
		delete(w.calls, name{of.kind, of.name})
		if f != nil && !f.cut {
			delete(w.holders, of)
		}
		w.do(func() { w.m.registered(token, f) })
	case deRegister:
		delete(w.calls, name{of.kind, of.name})
		if f == nil {
			delete(w.holders, of)
		}
		w.do(func() { w.m.deregistered(token, f) })
	}
}

func (w *world) finishCheck(found liveness) {
	token := w.checks[0]
	w.checks = w.checks[1:]
	w.do(func() { w.m.checked(token, found, ending) })
}

func (w *world) step() {
	path := rapid.SampledFrom([]string{"a", "b", "c", "d", "e", "f"}).Draw(w.t, "path")
	switch rapid.SampledFrom([]string{"found", "found", "gone", "finish", "finish", "finish", "finish", "finish", "time", "hung up", "check", "type"}).Draw(w.t, "what") {
	case "found":
		w.present[path] = true
		w.kinds[path] = rapid.SampledFrom([]string{"T", "T", "T", "U", "V"}).Draw(w.t, "kind")
		w.names[path] = rapid.SampledFrom([]string{"n", "m"}).Draw(w.t, "name")
		w.do(func() { w.m.found(path) })
	case "gone":
		w.present[path] = false
		w.do(func() { w.m.gone(path) })
	case "finish":
		if len(w.running) > 0 {
			token := rapid.SampledFrom(slices.Sorted(maps.Keys(w.running))).Draw(w.t, "token")
			w.finish(token, rapid.IntRange(-3, 3).Draw(w.t, "how"))
		}
	case "time":
		w.now = w.now.Add(time.Duration(rapid.IntRange(1, 3000).Draw(w.t, "ms")) * time.Millisecond)
		w.do(w.m.tick)
	case "hung up":
		for token := range w.m.sockets {
			w.do(func() { w.m.hungUp(token) })
			break
		}
	case "check":
		if len(w.checks) > 0 {
			w.finishCheck(liveness(rapid.IntRange(0, 2).Draw(w.t, "found")))
		}
	case "type":
		w.do(func() { w.m.handle("U") })
	}
}

// rest lets everything that runs end well, and time pass.
func (w *world) rest() {
	w.healthy = true
	for range 100 {
		for len(w.running) > 0 {
			w.finish(slices.Sorted(maps.Keys(w.running))[0], 0)
		}
		for len(w.checks) > 0 {
			w.finishCheck(alive)
		}
		w.now = w.now.Add(10 * time.Second)
		w.do(w.m.tick)
	}
}

// Whatever happens, the rules hold at every step; and when nothing fails any
// more, exactly the plugins that are there are registered.
func TestAnyHistory(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := newWorld(rt)
		for range rapid.IntRange(1, 150).Draw(rt, "steps") {
			w.step()
		}
		w.rest()
		want := map[instance]bool{}
		for path, there := range w.present {
			if there && w.m.handled[w.kinds[path]] {
				p := said(w.kinds[path], w.names[path], path)
				p.Socket = path
				want[p.instance()] = true
			}
			w.must(there == (w.m.places[path] != nil), "%s is there: %t", path, there)
		}
		w.must(maps.Equal(want, w.holders), "there are %v, handlers have %v", want, w.holders)
		for path, p := range w.m.places {
			got := p.now.status
			w.must((got.Phase == Registered) == w.m.handled[w.kinds[path]] && !got.Dead, "%s: %+v", path, got)
		}
		w.must(len(w.m.sockets) == len(w.m.places) && len(w.m.orphans) == 0 && len(w.m.turns) == 0, "left: %d sockets, %v, %v", len(w.m.sockets), w.m.orphans, w.m.turns)
		w.must(w.m.lanes.fast+w.m.lanes.slow <= 0 || len(w.running) > 0, "lanes: %+v", w.m.lanes)
	})
}

// However it is ended, nothing begins any more, and nothing is left running.
func TestAnyEnd(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := newWorld(rt)
		for range rapid.IntRange(1, 100).Draw(rt, "steps") {
			w.step()
		}
		deregister := rapid.Bool().Draw(rt, "deregister")
		w.do(func() { w.m.stop(deregister) })
		asked := len(w.stage)
		for range rapid.IntRange(0, 20).Draw(rt, "steps while ending") {
			w.step()
		}
		w.healthy = true
		for !w.m.idle() {
			for _, token := range slices.Sorted(maps.Keys(w.running)) {
				w.finish(token, 0)
				break
			}
			if len(w.checks) > 0 {
				w.finishCheck(alive)
			}
		}
		w.must(len(w.stage) == asked, "attempts began after the end")
		w.must(len(w.dials) == 0, "connections are left: %v", w.dials)
		w.must(!deregister || len(w.holders) == len(w.m.left), "handlers still have %v, told are %v", w.holders, w.m.left)
	})
}
