package gate

import (
	"fmt"
	"reflect"
	"slices"
	"time"
)

// Pauses of a Resource. The first two are what a real kubelet needs: below
// them it loses devices, or its life.
const (
	// Quiet is how long an id stays in the list after the last call of Allocate
	// and after the kubelet was told that it is unhealthy. A kubelet from 1.34 on
	// that loses an id while it allocates it panics.
	Quiet = time.Second
	// MinPause is the least time between the loss of a stream and a new
	// registration. A kubelet that is registered at sooner may stay at zero.
	MinPause = time.Second
	// LostPause is how long a stream may be away before the resource registers
	// again by itself; it doubles up to MaxPause.
	LostPause = 2 * time.Second
	MaxPause  = 30 * time.Second
	// Steady is how long a stream must live for the pauses to start over.
	Steady = 10 * time.Second
	// DrainWait is how long calls of Allocate may run on before the devices go
	// unhealthy. That does the kubelet no harm meanwhile.
	DrainWait = 500 * time.Millisecond
	// ConfirmPause lies between two questions to PodResources.
	ConfirmPause = 50 * time.Millisecond
	// Linger lets the kubelet read the last list before the server stops.
	Linger = 100 * time.Millisecond
)

// Resource is the state machine of one resource. It is not safe for concurrent
// use: one goroutine owns it.
type Resource struct {
	now    time.Time
	timers timers
	out    []ResourceAction

	phase    Phase
	epoch    uint64
	snapshot map[string]bool // id: healthy
	stopping bool

	calls    map[uint64]call // admitted, and running
	lastCall time.Time       // end of the last one, or when it was refused
	backAt   time.Time       // when the last withdrawal was done

	listing
	registration
	confirmation

	told Report
}

type call struct {
	epoch   uint64
	devices []string
}

// confirmation is what the kubelet says of a withdrawal.
type confirmation struct {
	asked     bool // and not answered
	confirmed bool
	inUse     []Held
	remaining int // that the kubelet offered when it was asked last
}

// NewResource returns the machine of a resource that is closed and unknown to
// the kubelet.
func NewResource() *Resource {
	return &Resource{phase: Idle, timers: timers{}, snapshot: map[string]bool{}, calls: map[uint64]call{},
		listing: listing{entries: map[string]entry{}}, registration: registration{step: unregistered, pause: LostPause}}
}

// Report tells how the resource is.
func (r *Resource) Report() Report {
	s := Report{Phase: r.phase, Epoch: r.epoch, Devices: len(r.snapshot), Allocating: len(r.calls),
		Streaming: r.served(), Confirmed: r.confirmed, InUse: r.inUse, Error: r.trouble()}
	if r.phase == Offered && r.served() {
		for _, healthy := range r.snapshot {
			if healthy {
				s.Offered++
			}
		}
	}
	return s
}

// Step tells the machine what happened at a moment, and returns what is to be
// done, in that order. A moment before the last one counts as the last one.
func (r *Resource) Step(at time.Time, event ResourceEvent) []ResourceAction {
	if at.After(r.now) {
		r.now = at
	}
	if r.phase == Stopped {
		r.out = nil
		if c, called := event.(AllocateBegin); called {
			r.refuse(c.Call, "the plugin stops")
		}
		if c, called := event.(AllocateCheck); called {
			r.refuse(c.Call, "the plugin stops")
		}
		return r.out
	}
	r.out = nil
	r.take(event)
	r.settle()
	return r.out
}

func (r *Resource) take(event ResourceEvent) {
	switch e := event.(type) {
	case Open:
		if !r.stopping {
			r.phase, r.epoch, r.confirmation = Offered, e.Epoch, confirmation{}
			delete(r.timers, TimerDrain)
			delete(r.timers, TimerConfirm)
		}
	case Close:
		r.withdraw(e.Epoch)
	case Shutdown:
		r.withdraw(e.Epoch)
		r.stopping = true
	case Halt:
		r.stop()
	case Snapshot:
		r.snapshot = make(map[string]bool, len(e.Devices))
		for _, d := range e.Devices {
			r.snapshot[d.ID] = d.Healthy
		}
	case AllocateBegin:
		r.begin(e)
	case AllocateCheck:
		r.check(e.Call)
	case AllocateEnd:
		if _, running := r.calls[e.Call]; running {
			delete(r.calls, e.Call)
			r.lastCall = r.now
		}
	case Confirmed:
		r.confirm(e)
	case Sent:
		r.sent(e)
	case Fired:
		r.fired(e.Timer)
	default:
		r.registrationEvent(event)
	}
}

// settle does what the state asks for, however it came to be.
func (r *Resource) settle() {
	if r.phase == Stopped {
		r.tell()
		return
	}
	r.registerFirst()
	r.list()
	if r.progress(); r.phase == Withdrawn {
		r.list() // what had to wait for that may leave
	}
	r.end()
	r.tell()
}

func (r *Resource) withdraw(epoch uint64) {
	if r.stopping {
		return
	}
	changed := r.epoch != epoch
	r.epoch = epoch
	if r.phase == Withdrawing && changed {
		r.confirmation = confirmation{} // the answer to come is about the epoch before
	}
	if r.phase != Offered {
		return
	}
	r.phase, r.confirmation = Withdrawing, confirmation{}
	if len(r.calls) > 0 {
		r.arm(TimerDrain, r.now.Add(DrainWait))
	}
}

// progress takes a withdrawal on: the calls have ended, the kubelet has the
// list without a healthy device, and says that it offers none.
func (r *Resource) progress() {
	if r.phase != Withdrawing || len(r.calls) > 0 || !r.toldNone() {
		return
	}
	if r.step == unregistered { // the kubelet never heard of it
		r.withdrawn()
		return
	}
	if _, later := r.timers[TimerConfirm]; !later && !r.asked {
		r.asked = true
		r.do(Confirm{Epoch: r.epoch})
	}
}

func (r *Resource) confirm(e Confirmed) {
	if r.phase != Withdrawing || !r.asked || e.Epoch != r.epoch {
		return
	}
	r.asked = false
	switch {
	case !e.Known:
		r.withdrawn()
	case e.Offered == 0:
		r.withdrawn()
		r.confirmed, r.inUse, r.remaining = true, slices.Clone(e.InUse), 0
	default:
		r.remaining = e.Offered
		r.arm(TimerConfirm, r.now.Add(ConfirmPause))
	}
}

func (r *Resource) withdrawn() { r.phase, r.backAt = Withdrawn, r.now }

// end stops the server when the kubelet has an empty list, after a moment to
// read it.
func (r *Resource) end() {
	if !r.stopping || (r.phase != Withdrawn && r.phase != Idle) || len(r.calls) > 0 {
		return
	}
	if r.phase == Idle || r.stream == 0 {
		r.stop()
		return
	}
	if len(r.entries) == 0 && r.delivered() && !r.lingering {
		r.lingering = true
		r.arm(TimerLinger, r.now.Add(Linger))
	}
}

func (r *Resource) stop() {
	r.phase = Stopped
	clear(r.timers)
	r.do(Stop{})
}

func (r *Resource) fired(name Timer) {
	if at, armed := r.timers[name]; armed && r.now.Before(at) {
		r.arm(name, at) // it came early
		return
	}
	if !r.timers.due(name, r.now) {
		return
	}
	switch name {
	case TimerRegister:
		r.registerAgain()
	case TimerLinger:
		r.stop()
	}
	// The others only let settle look again.
}

func (r *Resource) trouble() string {
	switch {
	case r.phase == Withdrawing && len(r.calls) > 0:
		return fmt.Sprintf("%d calls of Allocate still run", len(r.calls))
	case r.phase == Withdrawing && r.remaining > 0:
		return fmt.Sprintf("the kubelet still offers %d devices", r.remaining)
	case r.phase == Withdrawing && !r.toldNone():
		return "the kubelet has not taken the list yet that withdraws the devices"
	case r.failure != nil:
		return r.failure.Error()
	}
	return ""
}

func (r *Resource) do(a ResourceAction) { r.out = append(r.out, a) }

func (r *Resource) arm(name Timer, at time.Time) {
	r.timers[name] = at
	r.do(Arm{Timer: name, At: at})
}

func (r *Resource) tell() {
	if s := r.Report(); !reflect.DeepEqual(s, r.told) {
		r.told = s
		r.do(Tell{Report: s})
	}
}
