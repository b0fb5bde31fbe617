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

// onTheWire is how long a call of Allocate may take to arrive, and a refusal to
// get back.
const onTheWire = 900 * time.Millisecond

// world is a plugin with its effects and a kubelet, in memory: what one tells
// another waits in a queue, and the test says which queue moves. Whatever breaks
// a rule goes to broken.
type world struct {
	broken func(format string, args ...any)
	now    time.Time
	gate   *Gate
	rooms  map[string]*room
	queues map[string][]func()
	timers map[string]map[Timer]time.Time // by owner; "" is control
	known  bool                           // PodResources is there
	cfg    Config

	nodeState map[string][]Device // what a scan finds
	sessions  map[string]bool     // streams that stand, accepted or not
	answered  map[uint64]Disabled
	disables  int  // calls of Disable
	withdrawn bool // a Disable said OK, and nobody has enabled since
	exited    bool
	ids       uint64
}

// room is one resource and what the kubelet has of it.
type room struct {
	name     string
	machine  *Resource
	open     bool   // the last word of control that arrived
	epoch    uint64 // of the last Open that arrived
	stopped  bool
	belief   map[string]bool // the kubelet's devices; id: healthy
	stream   uint64          // alive at the kubelet; 0: none
	list     map[uint64]Send // not handed over yet, by stream
	calls    map[uint64]*kubeletCall
	lastEnd  time.Time
	downAt   time.Time // when the plugin saw its stream end; zero while one stands
	lists    []int     // lengths of the lists that the kubelet got
	registry int       // calls of Register
	fails    bool      // Serve and Register fail
}

// kubeletCall is an allocation in the kubelet, from its choice to the answer.
type kubeletCall struct {
	devices []string
	sent    time.Time
	arrived bool
	refused time.Time // before it was admitted
	running bool      // admitted
	epoch   uint64
}

func newWorld(cfg Config, known bool, broken func(string, ...any), names ...string) *world {
	w := &world{broken: broken, now: noon, gate: New(cfg), rooms: map[string]*room{}, queues: map[string][]func(){},
		timers: map[string]map[Timer]time.Time{"": {}}, known: known, cfg: cfg, nodeState: map[string][]Device{}, sessions: map[string]bool{}, answered: map[uint64]Disabled{}}
	for _, name := range names {
		w.rooms[name] = &room{name: name, machine: NewResource(), belief: map[string]bool{}, list: map[uint64]Send{}, calls: map[uint64]*kubeletCall{}}
		w.timers[name] = map[Timer]time.Time{}
	}
	w.tell(Configured{Hash: "h", Resources: names})
	return w
}

func (w *world) id() uint64 { w.ids++; return w.ids }

func (w *world) queue(name string, f func()) { w.queues[name] = append(w.queues[name], f) }

func (w *world) waiting() []string {
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

// tell steps control and does what it says.
func (w *world) tell(e Event) {
	for _, a := range w.gate.Step(w.now, e) {
		if w.exited {
			w.broken("%T after Exit", a)
		}
		switch a := a.(type) {
		case To:
			if _, opens := a.Event.(Open); opens && !w.gate.wanted() {
				w.broken("%s is opened and nobody answers for it", a.Resource)
			}
			w.queue("to "+a.Resource, func() { w.step(w.rooms[a.Resource], a.Event) })
		case Scan:
			w.queue("scan", func() {
				for name, r := range w.rooms {
					w.step(r, Snapshot{Devices: w.nodeState[name]})
				}
				w.tell(Scanned{Seq: a.Seq})
			})
		case End:
			delete(w.sessions, a.Session)
			w.queue("streams", func() { w.tell(Closed{Session: a.Session}) })
		case Disabled:
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
	if g.open && !g.wanted() {
		w.broken("open, and nobody answers for the devices")
	}
	if !w.cfg.Controlled && !g.quitting && g.scanned && !g.open {
		w.broken("closed though not controlled")
	}
}

// checkWithdrawn: what a Disable that said OK promises, until somebody enables.
func (w *world) checkWithdrawn() {
	for _, r := range w.rooms {
		if !w.withdrawn {
			return
		}
		for id, healthy := range r.belief {
			if healthy && r.stream != 0 {
				w.broken("%s %s is offered after a withdrawal that was confirmed", r.name, id)
			}
		}
		for _, k := range r.calls {
			if k.running && !r.stopped {
				w.broken("a call of %s runs after a withdrawal that was confirmed", r.name)
			}
		}
	}
}

// step steps a resource and does what it says.
func (w *world) step(r *room, e ResourceEvent) {
	switch e := e.(type) {
	case Open:
		r.open, r.epoch = true, e.Epoch
	case Close, Shutdown, Halt:
		r.open = false
	}
	for _, a := range r.machine.Step(w.now, e) {
		switch a.(type) {
		case Refuse, Notify:
		default:
			if r.stopped {
				w.broken("%T after Stop", a)
			}
		}
		w.act(r, a)
	}
	w.checkWithdrawn()
}

func (w *world) act(r *room, a Action) {
	switch a := a.(type) {
	case Serve:
		w.queue("kubelet "+r.name, func() { w.step(r, Served{Err: r.trouble()}) })
	case Register:
		if r.registry++; !r.downAt.IsZero() && w.now.Sub(r.downAt) < MinPause {
			w.broken("%s registers %s after its stream ended: the kubelet may stay at zero (trap B)", r.name, w.now.Sub(r.downAt))
		}
		w.queue("kubelet "+r.name, func() { w.register(r) })
	case Send:
		for _, d := range a.Devices {
			if d.Healthy && !r.open {
				w.broken("%s offers %s while closed", r.name, d.ID)
			}
		}
		w.checkEmpty(r, a)
		r.list[a.Stream] = a
		w.queue("list "+r.name, func() { w.hand(r, a.Stream) })
	case Admit:
		r.calls[a.Call].running, r.calls[a.Call].epoch = true, r.epoch
		w.queue("work "+r.name, func() { w.step(r, AllocateCheck(a)) })
	case Approve:
		if k := r.calls[a.Call]; !r.open || k != nil && k.epoch != r.epoch {
			w.broken("%s approves a call while closed, or from before it was closed", r.name)
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
			for _, healthy := range r.belief {
				if healthy && r.stream != 0 {
					offered++
				}
			}
			w.step(r, Confirmed{Epoch: a.Epoch, Known: w.known, Offered: offered, InUse: []Held{{ID: "x"}}})
		})
	case Notify:
		w.queue("told "+r.name, func() { w.tell(Reported{Resource: r.name, Report: a.Report}) })
	case Set:
		w.timers[r.name][a.Timer] = a.At
	case Stop:
		r.stopped = true
		w.drop(r)
	}
}

func (r *room) trouble() error {
	if r.fails {
		return errors.New("the kubelet is not there")
	}
	return nil
}

func (w *world) register(r *room) {
	if err := r.trouble(); err != nil {
		w.step(r, Registered{Err: err})
		return
	}
	if r.stopped {
		return
	}
	w.drop(r)
	stream := w.id()
	r.stream = stream
	w.queue("streams "+r.name, func() {
		r.downAt = time.Time{}
		w.step(r, StreamUp{Stream: stream})
	})
	w.queue("kubelet "+r.name, func() { w.step(r, Registered{}) })
}

// drop ends the kubelet's stream: every device is unhealthy to it.
func (w *world) drop(r *room) {
	if r.stream == 0 {
		return
	}
	stream := r.stream
	r.stream = 0
	for id := range r.belief {
		r.belief[id] = false
	}
	w.queue("streams "+r.name, func() {
		r.downAt = w.now // the plugin sees it only now
		w.step(r, StreamDown{Stream: stream})
	})
}

// hand gives the kubelet the last list of a stream.
func (w *world) hand(r *room, stream uint64) {
	list, there := r.list[stream]
	delete(r.list, stream)
	if !there || r.stream != stream {
		return
	}
	belief := map[string]bool{}
	for _, d := range list.Devices {
		belief[d.ID] = d.Healthy
	}
	for id := range r.belief {
		if _, stays := belief[id]; stays {
			continue
		}
		for _, k := range r.calls {
			if slices.Contains(k.devices, id) {
				w.broken("%s loses %s while it is allocated: the kubelet panics (trap A)", r.name, id)
			}
		}
	}
	r.belief = belief
	r.lists = append(r.lists, len(belief))
	w.step(r, Sent{Stream: stream, Seq: list.Seq})
	w.checkWithdrawn()
}

// checkEmpty is called where a list is issued: none is empty while the plugin
// works on a call or has just answered one.
func (w *world) checkEmpty(r *room, s Send) {
	if len(s.Devices) > 0 {
		return
	}
	for _, k := range r.calls {
		if k.running {
			w.broken("%s sends an empty list while a call runs", r.name)
		}
	}
	if !r.lastEnd.IsZero() && w.now.Sub(r.lastEnd) < Quiet {
		w.broken("%s sends an empty list %s after a call", r.name, w.now.Sub(r.lastEnd))
	}
}

// allocate lets the kubelet choose a device that it has as healthy.
func (w *world) allocate(r *room) {
	for _, id := range slices.Sorted(maps.Keys(r.belief)) {
		if !r.belief[id] || r.stream == 0 {
			continue
		}
		call := w.id()
		r.calls[call] = &kubeletCall{devices: []string{id}, sent: w.now}
		w.queue("wire "+r.name, func() { w.arrive(r, call) })
		return
	}
}

func (w *world) arrive(r *room, call uint64) {
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

// answer is what the kubelet reads. The end of a call that was admitted is that
// of its handler; one that was refused ended before it was read.
func (w *world) answer(r *room, call uint64) {
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

// advance lets time pass; what is on the wire arrives in its time.
func (w *world) advance(d time.Duration) {
	until := w.now.Add(d)
	for _, name := range slices.Sorted(maps.Keys(w.rooms)) {
		r := w.rooms[name]
		for _, call := range slices.Sorted(maps.Keys(r.calls)) {
			if k := r.calls[call]; !k.arrived && k.sent.Add(onTheWire).Before(until) {
				w.now = latest(w.now, k.sent.Add(onTheWire))
				w.arrive(r, call)
			}
			if k := r.calls[call]; k != nil && !k.refused.IsZero() && k.refused.Add(onTheWire).Before(until) {
				w.answer(r, call)
			}
		}
	}
	w.now = latest(w.now, until)
}

// next is the timer that ends first.
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
		w.tell(Expired{Timer: name})
		return
	}
	w.step(w.rooms[owner], Expired{Timer: name})
}

// settle lets everything happen that can, in some fair order, until nothing is
// left to happen or done says so.
func (w *world) settle(done func() bool) {
	for range 10000 {
		if done() {
			return
		}
		if names := w.waiting(); len(names) > 0 {
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
	w.broken("it never comes to rest: %v waits, timers %v", w.waiting(), w.timers)
}

func (w *world) rest() { w.settle(func() bool { return false }) }

func (w *world) enable(claim Claim) string {
	session := fmt.Sprintf("s%d", w.id())
	w.sessions[session] = true
	w.tell(Enable{Session: session, Claim: claim})
	if w.sessions[session] { // accepted
		w.withdrawn = false
	}
	return session
}

func (w *world) disable(session string) uint64 {
	call := w.id()
	w.disables++
	w.tell(Disable{Call: call, Session: session})
	return call
}
