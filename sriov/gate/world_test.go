package gate

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"
)

// callLatency is the maximum for an Allocate call to arrive, and for a refusal
// to return.
const callLatency = 900 * time.Millisecond

// world is an in-memory plugin and kubelet. Messages wait in queues, which the
// test moves; violated rules go to violation.
type world struct {
	violation func(format string, args ...any)
	now       time.Time
	gate      *Gate
	resources map[string]*fakeResource
	queues    map[string][]func()
	known     bool
	cfg       Config

	nodeState map[string][]Device
	sessions  []*Session   // accepted, and not ended
	disables  []*Disabling // not answered
	status    *Status
	withdrawn bool   // a Disable returned OK, and no Enable followed
	shut      Closed // acknowledged, and part of the claim since
	exited    bool
	ids       uint64
}

// fakeResource has the kubelet's view too.
type fakeResource struct {
	name        string
	stopped     bool
	kubeletView map[string]bool // healthy
	connected   bool            // the kubelet's end of stream
	stream      *Stream         // nil: the plugin does not know it yet
	seq         uint64          // newest list of stream
	calls       map[uint64]*kubeletCall
	lastEnd     time.Time
	downAt      time.Time // when the plugin saw its stream end
	lists       []int
	registry    int
	fails       bool
}

type kubeletCall struct {
	devices  []string
	sent     time.Time
	arrived  bool
	refused  time.Time
	admitted *Call
	openings int
	revoked  bool // a device was closed since the call was admitted
}

func (k *kubeletCall) running() bool { return k.admitted != nil }

// testDevice is a device on one of two PFs.
func testDevice(resource string, index int, healthy bool) Device {
	id := fmt.Sprintf("%s%d", resource, index)
	return Device{ID: id, Healthy: healthy, Function: id, PF: fmt.Sprintf("pf%d", index%2)}
}

func newWorld(cfg Config, known bool, violation func(string, ...any), names ...string) *world {
	w := &world{violation: violation, now: noon, resources: map[string]*fakeResource{}, queues: map[string][]func(){},
		known: known, cfg: cfg, nodeState: map[string][]Device{}}
	w.gate = New(cfg, w)
	for _, name := range names {
		w.resources[name] = &fakeResource{name: name, kubeletView: map[string]bool{}, calls: map[uint64]*kubeletCall{}}
	}
	w.step(func() { w.gate.Configure(w.now, "h", names) })
	return w
}

func (w *world) id() uint64 { w.ids++; return w.ids }

func (w *world) queue(name string, f func()) { w.queues[name] = append(w.queues[name], f) }

func (w *world) nonEmptyQueues() []string {
	var names []string
	for name, q := range w.queues {
		if len(q) > 0 {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

func (w *world) move(name string) {
	f := w.queues[name][0]
	w.queues[name] = w.queues[name][1:]
	f()
}

// step runs an event of the gate, and takes what it has for others.
func (w *world) step(event func()) {
	event()
	g := w.gate
	for _, name := range g.names() {
		w.takeList(w.resources[name])
	}
	w.sessions = slices.DeleteFunc(w.sessions, func(s *Session) bool {
		if s.End != nil {
			w.queue("streams", func() { w.step(func() { g.Disconnect(w.now, s) }) })
		}
		return s.End != nil
	})
	w.disables = slices.DeleteFunc(w.disables, func(d *Disabling) bool {
		w.withdrawn = w.withdrawn || d.Done && d.Err == nil
		return d.Done
	})
	if s := g.Status(); s != w.status {
		if w.status = s; s.Withdrawn {
			w.shut = s.Closed
		}
	}
	w.checkWithdrawn()
	if g.open && !g.shouldOffer() {
		w.violation("open without a holder")
	}
	if !w.cfg.Controlled && !g.quitting && g.scanned && !g.open {
		w.violation("closed though not controlled")
	}
	w.exited = g.Exited()
}

// takeList checks a new list, and sends it to the kubelet.
func (w *world) takeList(r *fakeResource) {
	machine := w.gate.resources[r.name]
	for _, k := range r.calls {
		for _, id := range k.devices {
			d, exists := machine.snapshot[id]
			k.revoked = k.revoked || k.running() && exists && w.gate.closed.Reason(d) != ""
		}
	}
	if r.stream == nil || r.stream.Seq == r.seq {
		return
	}
	r.seq = r.stream.Seq
	if r.stopped {
		w.violation("a list of %s after Stop", r.name)
	}
	list := r.stream.List
	for _, d := range list {
		if d.Healthy && !w.gate.open {
			w.violation("%s offers %s while closed", r.name, d.ID)
		}
	}
	for id, d := range machine.snapshot {
		closed := w.gate.closed.Reason(d) != "" || w.gate.holder != nil && w.gate.holder.Closed.Reason(d) != ""
		offered := slices.Contains(list, Device{ID: id, Healthy: true})
		if want := w.gate.open && d.Healthy && !closed; offered != want {
			w.violation("%s offers %s: %v, want %v", r.name, id, offered, want)
		}
	}
	w.checkEmpty(r, list)
	stream := r.stream
	w.queue("list "+r.name, func() { w.deliverList(r, stream) })
}

// Devices stay withdrawn until the next Enable.
func (w *world) checkWithdrawn() {
	for _, r := range w.resources {
		w.checkShut(r)
		if !w.withdrawn {
			continue
		}
		for id, healthy := range r.kubeletView {
			if healthy && r.connected {
				w.violation("%s %s is offered after an acknowledged withdrawal", r.name, id)
			}
		}
		for _, k := range r.calls {
			if k.running() && !r.stopped {
				w.violation("a call of %s runs after an acknowledged withdrawal", r.name)
			}
		}
	}
}

// Acknowledged functions are neither offered nor allocated.
func (w *world) checkShut(r *fakeResource) {
	for id, d := range w.gate.resources[r.name].snapshot {
		if w.shut.Reason(d) == "" {
			continue
		}
		if r.kubeletView[id] && r.connected {
			w.violation("%s %s is offered though acknowledged as withdrawn", r.name, id)
		}
		for _, k := range r.calls {
			if k.running() && !r.stopped && slices.Contains(k.devices, id) {
				w.violation("a call for %s runs though acknowledged as withdrawn", id)
			}
		}
	}
}

// Scan implements Driver.
func (w *world) Scan(seq uint64) {
	w.queue("scan", func() { w.step(func() { w.gate.Scanned(w.now, seq, w.nodeState, nil) }) })
}

func (w *world) working(name string) *fakeResource {
	r := w.resources[name]
	if r.stopped {
		w.violation("%s gets work after Stop", name)
	}
	return r
}

func (w *world) Register(name string) {
	r := w.working(name)
	if r.registry++; !r.downAt.IsZero() && w.now.Sub(r.downAt) < MinRegisterDelay {
		w.violation("%s registers %s after its stream ended: the kubelet might stay at zero", name, w.now.Sub(r.downAt))
	}
	w.queue("kubelet "+name, func() { w.register(r) })
}

func (w *world) Confirm(name string, query uint64, devices []string) {
	r := w.working(name)
	w.queue("ask "+name, func() {
		a := Answer{Known: w.known, InUse: []Held{{ID: "x"}}}
		if err := r.injectedError(); err != nil {
			a = Answer{Err: err}
		}
		for id, healthy := range r.kubeletView {
			if healthy && r.connected && (devices == nil || slices.Contains(devices, id)) {
				a.Offered++
			}
		}
		w.step(func() { w.gate.Confirmed(w.now, name, query, a) })
	})
}

func (w *world) Stop(name string) {
	r := w.working(name)
	r.stopped = true
	w.endStream(r)
	w.queue("release "+name, func() { w.step(func() { w.gate.Released(w.now, name) }) })
}

func (r *fakeResource) injectedError() error {
	if r.fails {
		return errors.New("the kubelet does not run")
	}
	return nil
}

func (w *world) register(r *fakeResource) {
	if err := r.injectedError(); err != nil {
		w.step(func() { w.gate.Registered(w.now, r.name, err) })
		return
	}
	if r.stopped {
		return
	}
	w.endStream(r)
	r.connected = true
	w.queue("streams "+r.name, func() {
		r.downAt = time.Time{}
		w.step(func() { r.stream, r.seq = w.gate.Listen(w.now, r.name), 0 })
	})
	w.queue("kubelet "+r.name, func() { w.step(func() { w.gate.Registered(w.now, r.name, nil) }) })
}

// All devices are then unhealthy to the kubelet.
func (w *world) endStream(r *fakeResource) {
	if !r.connected {
		return
	}
	r.connected = false
	for id := range r.kubeletView {
		r.kubeletView[id] = false
	}
	w.queue("streams "+r.name, func() {
		r.downAt = w.now // the plugin sees it only now
		if s := r.stream; s != nil {
			r.stream = nil
			w.step(func() { w.gate.Hangup(w.now, r.name, s) })
		}
	})
}

// A newer list replaces one that was not delivered.
func (w *world) deliverList(r *fakeResource, stream *Stream) {
	if r.stream != stream || !r.connected {
		return
	}
	view := map[string]bool{}
	for _, d := range stream.List {
		view[d.ID] = d.Healthy
	}
	for id := range r.kubeletView {
		if _, stays := view[id]; stays {
			continue
		}
		for _, k := range r.calls {
			if slices.Contains(k.devices, id) {
				w.violation("%s loses %s while it is allocated: the kubelet panics", r.name, id)
			}
		}
	}
	r.kubeletView = view
	r.lists = append(r.lists, len(view))
	w.step(func() { w.gate.Sent(w.now, r.name, stream, stream.Seq) })
}

// No empty list is issued while a call is in flight or was just answered.
func (w *world) checkEmpty(r *fakeResource, list []Device) {
	if len(list) > 0 {
		return
	}
	for _, k := range r.calls {
		if k.running() {
			w.violation("%s sends an empty list while a call runs", r.name)
		}
	}
	if !r.lastEnd.IsZero() && w.now.Sub(r.lastEnd) < QuietPeriod {
		w.violation("%s sends an empty list %s after a call", r.name, w.now.Sub(r.lastEnd))
	}
}

func (w *world) allocate(r *fakeResource) {
	for _, id := range slices.Sorted(maps.Keys(r.kubeletView)) {
		if !r.kubeletView[id] || !r.connected {
			continue
		}
		call := w.id()
		r.calls[call] = &kubeletCall{devices: []string{id}, sent: w.now}
		w.queue("wire "+r.name, func() { w.arrive(r, call) })
		return
	}
}

func (w *world) arrive(r *fakeResource, call uint64) {
	k := r.calls[call]
	if k == nil || k.arrived {
		return
	}
	if r.stopped {
		delete(r.calls, call)
		return
	}
	k.arrived = true
	w.step(func() {
		c, err := w.gate.Begin(w.now, r.name, k.devices)
		if err != nil {
			k.refused, r.lastEnd = w.now, w.now
			w.queue("work "+r.name, func() { w.answer(r, call) })
			return
		}
		k.admitted, k.openings = c, w.gate.resources[r.name].openings
		w.queue("work "+r.name, func() { w.check(r, call) })
	})
}

func (w *world) check(r *fakeResource, call uint64) {
	w.step(func() {
		k := r.calls[call]
		if err := w.gate.Check(w.now, r.name, k.admitted); err == nil && (!w.gate.open || k.openings != w.gate.resources[r.name].openings || k.revoked) {
			w.violation("%s approves a call while closed, or from before it was closed", r.name)
		}
		w.queue("work "+r.name, func() { w.answer(r, call) })
	})
}

func (w *world) answer(r *fakeResource, call uint64) {
	k := r.calls[call]
	if k == nil {
		return
	}
	delete(r.calls, call)
	if k.running() {
		r.lastEnd = w.now
		w.step(func() { w.gate.End(w.now, r.name, k.admitted) })
	}
}

func (w *world) advance(d time.Duration) {
	until := w.now.Add(d)
	for _, name := range slices.Sorted(maps.Keys(w.resources)) {
		r := w.resources[name]
		for _, call := range slices.Sorted(maps.Keys(r.calls)) {
			if k := r.calls[call]; !k.arrived && k.sent.Add(callLatency).Before(until) {
				w.now = latest(w.now, k.sent.Add(callLatency))
				w.arrive(r, call)
			}
			if k := r.calls[call]; k != nil && !k.refused.IsZero() && k.refused.Add(callLatency).Before(until) {
				w.answer(r, call)
			}
		}
	}
	w.now = latest(w.now, until)
}

func (w *world) tick() { w.step(func() { w.gate.Tick(w.now) }) }

// Events and timers are processed in a fair order.
func (w *world) runUntil(done func() bool) {
	for range 10000 {
		if done() {
			return
		}
		if names := w.nonEmptyQueues(); len(names) > 0 {
			for _, name := range names {
				w.move(name)
			}
			continue
		}
		at := w.gate.Next()
		if at.IsZero() {
			return
		}
		w.advance(at.Sub(w.now))
		w.tick()
	}
	w.violation("events never end: queues %v, next %s", w.nonEmptyQueues(), w.gate.Next())
}

func (w *world) runUntilIdle() { w.runUntil(func() bool { return false }) }

func (w *world) enable(claim Claim) {
	if w.gate.refusal(claim) == nil {
		w.shut = maps.Clone(w.shut)
		maps.DeleteFunc(w.shut, func(address, _ string) bool { _, closed := claim.Closed[address]; return !closed })
	}
	w.step(func() {
		if s, err := w.gate.Enable(w.now, fmt.Sprintf("s%d", w.id()), claim); err == nil {
			w.sessions = append(w.sessions, s)
			w.withdrawn = false
		}
	})
}

func (w *world) disable(session string) (d *Disabling) {
	w.step(func() {
		d = w.gate.Disable(w.now, session)
		w.disables = append(w.disables, d)
	})
	return d
}
