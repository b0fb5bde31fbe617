package gate

import (
	"fmt"
	"slices"
	"time"
)

// Timing of a resource. Kubelets lose devices or panic if QuietPeriod or
// MinRegisterDelay is shorter.
const (
	// QuietPeriod is how long an id stays listed after the last Allocate and
	// after the kubelet got it as unhealthy. A kubelet from 1.34 on panics when
	// it loses an id while allocating it.
	QuietPeriod = time.Second
	// MinRegisterDelay is between the loss of a stream and a new registration.
	// Otherwise the kubelet might stay at zero devices.
	MinRegisterDelay = time.Second
	// InitialBackoff is the first wait for a stream before another
	// registration; it doubles up to a maximum.
	InitialBackoff = 2 * time.Second
	MaxBackoff     = 30 * time.Second
	// BackoffReset is the life of a stream that resets the backoff.
	BackoffReset = 10 * time.Second
	// DrainTimeout is how long in-flight Allocate calls delay the unhealthy list.
	DrainTimeout = 500 * time.Millisecond
	// ConfirmInterval is between PodResources queries.
	ConfirmInterval = 50 * time.Millisecond
	// StopDelay lets the kubelet read the last list before the server stops.
	StopDelay = 100 * time.Millisecond
)

// resource is the part of a Gate for one resource. After each event, advance does
// what is due.
type resource struct {
	name   string
	driver Driver
	now    time.Time
	timers timers

	phase    Phase
	openings int
	snapshot map[string]Device
	closed   Closed // functions whose devices are withdrawn while it is open
	stopping bool
	released bool // after it has stopped

	calls       map[*Call]bool // admitted
	lastCall    time.Time      // ended or was refused
	withdrawnAt time.Time

	stream  *Stream // nil: none
	entries map[string]entry
	registration
	queries uint64 // of PodResources so far
	acknowledgement
}

// acknowledgement is that of the devices that must not be offered: all, or while
// the resource is open, those of closed functions.
type acknowledgement struct {
	acknowledged bool
	asked        uint64 // query in flight; 0: none
	confirmed    bool   // by PodResources, that no device of the resource is allocatable
	inUse        []Held
	remaining    int   // allocatable devices
	unanswered   error // the last query: nothing is known
}

func newResource(name string, driver Driver) *resource {
	return &resource{name: name, driver: driver, timers: timers{}, phase: Idle, snapshot: map[string]Device{}, calls: map[*Call]bool{},
		entries: map[string]entry{}, registration: registration{pause: InitialBackoff}}
}

func (r *resource) report() Report {
	s := Report{Phase: r.phase, Openings: r.openings, Devices: len(r.snapshot), Allocating: len(r.calls), Streaming: r.stream != nil && r.stream.sent > 0, Error: r.problem()}
	if r.phase == Offered && s.Streaming {
		for id := range r.snapshot {
			if r.isOffered(id) {
				s.Offered++
			}
		}
	}
	return s
}

// isOffered reports whether the kubelet gets a device as healthy while the
// resource is open.
func (r *resource) isOffered(id string) bool {
	d, exists := r.snapshot[id]
	return exists && d.Healthy && r.closed.Reason(d) == ""
}

func (r *resource) open() {
	if !r.stopping && r.phase != Offered {
		r.phase, r.openings = Offered, r.openings+1
		r.acknowledgement = acknowledgement{acknowledged: r.acknowledged}
		delete(r.timers, TimerDrain)
		delete(r.timers, TimerConfirm)
	}
}

func (r *resource) withdraw() {
	if r.phase != Offered {
		return
	}
	r.phase, r.acknowledgement = Withdrawing, acknowledgement{}
	delete(r.timers, TimerConfirm)
	for c := range r.calls {
		c.withdrawn = true
	}
	if len(r.calls) > 0 {
		r.timers[TimerDrain] = r.now.Add(DrainTimeout)
	}
}

// shutdown withdraws the devices, and then the resource stops.
func (r *resource) shutdown() {
	if r.phase != Stopped {
		r.withdraw()
		r.stopping = true
	}
}

// restrict withdraws the devices of closed functions and offers the others.
func (r *resource) restrict(closed Closed) {
	if !closed.within(r.closed) {
		r.askAgain(false)
	} else {
		r.askAgain(r.acknowledged) // a part of what is withdrawn
	}
	r.closed = closed
	r.withdrawCalls()
}

func (r *resource) setDevices(devices []Device) {
	before := r.snapshot
	r.snapshot = make(map[string]Device, len(devices))
	for _, d := range devices {
		r.snapshot[d.ID] = d
		if r.closed.Reason(d) != "" && r.closed.Reason(before[d.ID]) == "" {
			r.askAgain(false) // the device has moved to a closed function
		}
	}
	r.withdrawCalls()
}

// askAgain drops the answer about other devices. The withdrawal of all goes on.
func (r *resource) askAgain(acknowledged bool) {
	if r.phase == Offered {
		r.acknowledged, r.asked = acknowledged, 0
		delete(r.timers, TimerConfirm)
	}
}

// withdrawCalls refuses the in-flight calls for closed devices, even if those are
// offered again before they end.
func (r *resource) withdrawCalls() {
	for c := range r.calls {
		c.withdrawn = c.withdrawn || slices.ContainsFunc(c.devices, r.isClosed)
	}
}

func (r *resource) isClosed(id string) bool {
	d, exists := r.snapshot[id]
	return exists && r.closed.Reason(d) != ""
}

// advance does what is due; each part continues where it waits for nothing.
func (r *resource) advance() {
	if r.phase == Stopped {
		return
	}
	for _, name := range []Timer{TimerDrain, TimerRemove, TimerConfirm} {
		r.timers.due(name, r.now)
	}
	if r.timers.due(TimerStop, r.now) {
		r.stop()
		return
	}
	r.register()
	r.list()
	if r.acknowledge(); r.phase == Withdrawn {
		r.list() // waiting ids can leave
	}
	r.end()
}

// acknowledge completes a withdrawal when no call for its devices is in flight, the
// kubelet has a list without a healthy one, and PodResources lists none as
// allocatable.
func (r *resource) acknowledge() {
	all, closed := r.phase == Withdrawing, []string(nil)
	if !all {
		for id := range r.snapshot {
			if r.isClosed(id) {
				closed = append(closed, id)
			}
		}
	}
	concerns := func(id string) bool { return all || r.isClosed(id) }
	switch {
	case r.acknowledged:
		return
	case !all && (r.phase != Offered || len(closed) == 0):
		r.acknowledged = true
		return
	case all && len(r.calls) > 0, r.isAllocating(concerns), r.isListed(concerns):
		return
	case !r.streamed: // unknown to the kubelet, or another plugin's
		r.withdrawn()
		return
	}
	if _, later := r.timers[TimerConfirm]; !later && r.asked == 0 {
		r.queries++
		r.asked = r.queries
		slices.Sort(closed)
		r.driver.Confirm(r.name, r.asked, closed)
	}
}

func (r *resource) withdrawn() {
	r.acknowledged = true
	if r.phase == Withdrawing {
		r.phase, r.withdrawnAt = Withdrawn, r.now
	}
}

// Answer is that of PodResources. Unless Known, the kubelet does not serve it, or
// with Err, has not answered.
type Answer struct {
	Err     error
	Known   bool
	Offered int // allocatable devices that were asked for
	InUse   []Held
}

// Confirmed answers Confirm.
func (g *Gate) Confirmed(now time.Time, name string, query uint64, a Answer) {
	g.on(now, name, func(r *resource) { r.answered(query, a) })
}

func (r *resource) answered(query uint64, a Answer) {
	if query != r.asked {
		return // about other devices
	}
	r.asked, r.unanswered, r.remaining = 0, a.Err, 0
	if a.Known {
		r.remaining = a.Offered
	}
	if r.unanswered != nil || r.remaining > 0 {
		r.timers[TimerConfirm] = r.now.Add(ConfirmInterval)
		return
	}
	if r.phase == Withdrawing && a.Known {
		r.confirmed, r.inUse = true, slices.Clone(a.InUse)
	}
	r.withdrawn()
}

// The kubelet gets an empty list, and StopDelay to read it.
func (r *resource) end() {
	if !r.stopping || (r.phase != Withdrawn && r.phase != Idle) || len(r.calls) > 0 {
		return
	}
	if r.phase == Idle || r.stream == nil {
		r.stop()
		return
	}
	if _, isSet := r.timers[TimerStop]; !isSet && len(r.entries) == 0 && r.stream.hasLast() {
		r.timers[TimerStop] = r.now.Add(StopDelay)
	}
}

func (r *resource) stop() {
	r.phase = Stopped
	clear(r.timers)
	r.driver.Stop(r.name)
}

func (r *resource) problem() string {
	switch {
	case r.phase == Withdrawing && len(r.calls) > 0:
		return fmt.Sprintf("%d Allocate calls are still in flight", len(r.calls))
	case r.phase == Withdrawing && r.remaining > 0:
		return fmt.Sprintf("the kubelet still has %d allocatable devices", r.remaining)
	case r.phase == Withdrawing && r.unanswered != nil:
		return r.unanswered.Error()
	case r.phase == Withdrawing && r.isListed(func(string) bool { return true }):
		return "the kubelet has not read the list that withdraws the devices yet"
	case r.failure != nil:
		return r.failure.Error()
	}
	return ""
}
