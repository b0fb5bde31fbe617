package gate

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
)

var noon = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

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
	timers    map[string]map[Timer]time.Time
	known     bool
	cfg       Config

	nodeState map[string][]Device
	sessions  map[string]bool // accepted or not
	answered  map[uint64]DisableReply
	disables  int
	withdrawn bool   // a Disable returned OK, and no Enable followed
	shut      Closed // acknowledged, and part of the claim since
	exited    bool
	ids       uint64
}

// fakeResource has the kubelet's view too.
type fakeResource struct {
	name        string
	machine     *Resource
	open        bool   // by the last event that arrived
	closed      Closed // by the last event that arrived
	epoch       uint64 // of the last Open that arrived
	stopped     bool
	kubeletView map[string]bool // healthy
	stream      uint64          // 0: none
	list        map[uint64]Send // not delivered yet
	calls       map[uint64]*kubeletCall
	lastEnd     time.Time
	downAt      time.Time // when the plugin saw its stream end
	lists       []int
	registry    int
	fails       bool
}

type kubeletCall struct {
	devices []string
	sent    time.Time
	arrived bool
	refused time.Time
	running bool
	epoch   uint64
	revoked bool // a device was closed since the call was admitted
}

// testDevice is a device on one of two PFs.
func testDevice(resource string, index int, healthy bool) Device {
	id := fmt.Sprintf("%s%d", resource, index)
	return Device{ID: id, Healthy: healthy, Function: id, PF: fmt.Sprintf("pf%d", index%2)}
}

func newWorld(cfg Config, known bool, violation func(string, ...any), names ...string) *world {
	w := &world{violation: violation, now: noon, gate: New(cfg), resources: map[string]*fakeResource{}, queues: map[string][]func(){},
		timers: map[string]map[Timer]time.Time{"": {}}, known: known, cfg: cfg, nodeState: map[string][]Device{}, sessions: map[string]bool{}, answered: map[uint64]DisableReply{}}
	for _, name := range names {
		w.resources[name] = &fakeResource{name: name, machine: NewResource(), kubeletView: map[string]bool{}, list: map[uint64]Send{}, calls: map[uint64]*kubeletCall{}}
		w.timers[name] = map[Timer]time.Time{}
	}
	w.stepGate(Configured{Hash: "h", Resources: names})
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

func (w *world) stepGate(e Event) {
	for _, a := range w.gate.Step(w.now, e) {
		if w.exited {
			w.violation("%T after Exit", a)
		}
		switch a := a.(type) {
		case Forward:
			if _, opens := a.Event.(Open); opens && !w.gate.shouldOffer() {
				w.violation("%s is opened without a holder", a.Resource)
			}
			w.queue("to "+a.Resource, func() { w.step(w.resources[a.Resource], a.Event) })
		case Scan:
			w.queue("scan", func() {
				for name, r := range w.resources {
					w.step(r, Snapshot{Devices: w.nodeState[name]})
				}
				w.stepGate(Scanned{Seq: a.Seq})
			})
		case EndStream:
			delete(w.sessions, a.Session)
			w.queue("streams", func() { w.stepGate(StreamClosed{Session: a.Session}) })
		case Publish:
			if a.Status.Withdrawn {
				w.shut = a.Status.Closed
				w.checkWithdrawn()
			}
		case DisableReply:
			w.answered[a.Call] = a
			if a.Code == codes.OK {
				w.withdrawn = true
				w.checkWithdrawn()
			}
		case Set:
			w.timers[""][a.Timer] = a.At
		case Exit:
			w.exited = true
		}
	}
	g := w.gate
	if g.open && !g.shouldOffer() {
		w.violation("open without a holder")
	}
	if !w.cfg.Controlled && !g.quitting && g.scanned && !g.open {
		w.violation("closed though not controlled")
	}
}

// Devices stay withdrawn until the next Enable.
func (w *world) checkWithdrawn() {
	for _, r := range w.resources {
		w.checkShut(r)
		if !w.withdrawn {
			continue
		}
		for id, healthy := range r.kubeletView {
			if healthy && r.stream != 0 {
				w.violation("%s %s is offered after an acknowledged withdrawal", r.name, id)
			}
		}
		for _, k := range r.calls {
			if k.running && !r.stopped {
				w.violation("a call of %s runs after an acknowledged withdrawal", r.name)
			}
		}
	}
}

// Acknowledged functions are neither offered nor allocated.
func (w *world) checkShut(r *fakeResource) {
	for id, d := range r.machine.snapshot {
		if w.shut.Reason(d) == "" {
			continue
		}
		if r.kubeletView[id] && r.stream != 0 {
			w.violation("%s %s is offered though acknowledged as withdrawn", r.name, id)
		}
		for _, k := range r.calls {
			if k.running && !r.stopped && slices.Contains(k.devices, id) {
				w.violation("a call for %s runs though acknowledged as withdrawn", id)
			}
		}
	}
}

func (w *world) step(r *fakeResource, e ResourceEvent) {
	switch e := e.(type) {
	case Restrict:
		r.closed = e.Closed
	case Open:
		r.open, r.epoch = true, e.Epoch
	case Close, Shutdown, Halt:
		r.open = false
	}
	defer w.checkWithdrawn()
	actions := r.machine.Step(w.now, e)
	for id, d := range r.machine.snapshot {
		for _, k := range r.calls {
			k.revoked = k.revoked || k.running && r.closed.Reason(d) != "" && slices.Contains(k.devices, id)
		}
	}
	for _, a := range actions {
		switch a.(type) {
		case Refuse, Notify:
		default:
			if r.stopped {
				w.violation("%T after Stop", a)
			}
		}
		w.act(r, a)
	}
}

func (w *world) act(r *fakeResource, a Action) {
	switch a := a.(type) {
	case Serve:
		w.queue("kubelet "+r.name, func() { w.step(r, Served{Err: r.injectedError()}) })
	case Register:
		if r.registry++; !r.downAt.IsZero() && w.now.Sub(r.downAt) < MinRegisterDelay {
			w.violation("%s registers %s after its stream ended: the kubelet might stay at zero", r.name, w.now.Sub(r.downAt))
		}
		w.queue("kubelet "+r.name, func() { w.register(r) })
	case Send:
		for _, d := range a.Devices {
			if d.Healthy && !r.open {
				w.violation("%s offers %s while closed", r.name, d.ID)
			}
		}
		for id, d := range r.machine.snapshot {
			offered := slices.Contains(a.Devices, Device{ID: id, Healthy: true})
			if want := r.open && d.Healthy && r.closed.Reason(d) == ""; offered != want {
				w.violation("%s offers %s: %v, want %v", r.name, id, offered, want)
			}
		}
		w.checkEmpty(r, a)
		r.list[a.Stream] = a
		w.queue("list "+r.name, func() { w.deliverList(r, a.Stream) })
	case Admit:
		r.calls[a.Call].running, r.calls[a.Call].epoch = true, r.epoch
		w.queue("work "+r.name, func() { w.step(r, AllocateCheck(a)) })
	case Approve:
		if k := r.calls[a.Call]; !r.open || k != nil && (k.epoch != r.epoch || k.revoked) {
			w.violation("%s approves a call while closed, or from before it was closed", r.name)
		}
		w.queue("work "+r.name, func() { w.answer(r, a.Call) })
	case Refuse:
		if k := r.calls[a.Call]; k != nil && !k.running {
			k.refused, r.lastEnd = w.now, w.now
		}
		w.queue("work "+r.name, func() { w.answer(r, a.Call) })
	case Confirm:
		w.queue("ask "+r.name, func() {
			offered := 0
			for id, healthy := range r.kubeletView {
				if healthy && r.stream != 0 && (a.Restriction == 0 || slices.Contains(a.Devices, id)) {
					offered++
				}
			}
			w.step(r, Confirmed{Epoch: a.Epoch, Restriction: a.Restriction, Known: w.known, Offered: offered, InUse: []Held{{ID: "x"}}})
		})
	case Notify:
		w.queue("report "+r.name, func() { w.stepGate(Reported{Resource: r.name, Report: a.Report}) })
	case Set:
		w.timers[r.name][a.Timer] = a.At
	case Stop:
		r.stopped = true
		w.endStream(r)
	}
}

func (r *fakeResource) injectedError() error {
	if r.fails {
		return errors.New("the kubelet does not run")
	}
	return nil
}

func (w *world) register(r *fakeResource) {
	if err := r.injectedError(); err != nil {
		w.step(r, Registered{Err: err})
		return
	}
	if r.stopped {
		return
	}
	w.endStream(r)
	stream := w.id()
	r.stream = stream
	w.queue("streams "+r.name, func() {
		r.downAt = time.Time{}
		w.step(r, StreamUp{Stream: stream})
	})
	w.queue("kubelet "+r.name, func() { w.step(r, Registered{}) })
}

// All devices are then unhealthy to the kubelet.
func (w *world) endStream(r *fakeResource) {
	if r.stream == 0 {
		return
	}
	stream := r.stream
	r.stream = 0
	for id := range r.kubeletView {
		r.kubeletView[id] = false
	}
	w.queue("streams "+r.name, func() {
		r.downAt = w.now // the plugin sees it only now
		w.step(r, StreamDown{Stream: stream})
	})
}

func (w *world) deliverList(r *fakeResource, stream uint64) {
	list, there := r.list[stream]
	delete(r.list, stream)
	if !there || r.stream != stream {
		return
	}
	view := map[string]bool{}
	for _, d := range list.Devices {
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
	w.step(r, Sent{Stream: stream, Seq: list.Seq})
	w.checkWithdrawn()
}

// No empty list is issued while a call is in flight or was just answered.
func (w *world) checkEmpty(r *fakeResource, s Send) {
	if len(s.Devices) > 0 {
		return
	}
	for _, k := range r.calls {
		if k.running {
			w.violation("%s sends an empty list while a call runs", r.name)
		}
	}
	if !r.lastEnd.IsZero() && w.now.Sub(r.lastEnd) < QuietPeriod {
		w.violation("%s sends an empty list %s after a call", r.name, w.now.Sub(r.lastEnd))
	}
}

func (w *world) allocate(r *fakeResource) {
	for _, id := range slices.Sorted(maps.Keys(r.kubeletView)) {
		if !r.kubeletView[id] || r.stream == 0 {
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
	w.step(r, AllocateBegin{Call: call, Devices: k.devices})
}

func (w *world) answer(r *fakeResource, call uint64) {
	k := r.calls[call]
	if k == nil {
		return
	}
	delete(r.calls, call)
	if k.running {
		r.lastEnd = w.now
	}
	w.step(r, AllocateEnd{Call: call})
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

func (w *world) next() (owner string, name Timer, at time.Time, found bool) {
	for _, o := range slices.Sorted(maps.Keys(w.timers)) {
		for _, n := range slices.Sorted(maps.Keys(w.timers[o])) {
			if t := w.timers[o][n]; !found || t.Before(at) {
				owner, name, at, found = o, n, t, true
			}
		}
	}
	return
}

func (w *world) fire(owner string, name Timer) {
	delete(w.timers[owner], name)
	if owner == "" {
		w.stepGate(Expired{Timer: name})
		return
	}
	w.step(w.resources[owner], Expired{Timer: name})
}

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
		owner, name, at, found := w.next()
		if !found {
			return
		}
		if at.After(w.now) {
			w.advance(at.Sub(w.now))
		}
		w.fire(owner, name)
	}
	w.violation("events never end: queues %v, timers %v", w.nonEmptyQueues(), w.timers)
}

func (w *world) runUntilIdle() { w.runUntil(func() bool { return false }) }

func (w *world) enable(claim Claim) string {
	session := fmt.Sprintf("s%d", w.id())
	w.sessions[session] = true
	if code, _ := w.gate.refusal(claim); code == codes.OK {
		w.shut = maps.Clone(w.shut)
		maps.DeleteFunc(w.shut, func(address, _ string) bool { _, closed := claim.Closed[address]; return !closed })
	}
	w.stepGate(Enable{Session: session, Claim: claim})
	if w.sessions[session] {
		w.withdrawn = false
	}
	return session
}

func (w *world) disable(session string) uint64 {
	call := w.id()
	w.disables++
	w.stepGate(Disable{Call: call, Session: session})
	return call
}
