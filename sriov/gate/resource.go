package gate

import (
	"fmt"
	"reflect"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
)

// Timing of a Resource. Kubelets lose devices or panic if QuietPeriod or
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

// Resource is the state machine of one resource. It is not safe for concurrent
// use.
type Resource struct {
	machine

	phase    Phase
	epoch    uint64
	snapshot map[string]Device
	stopping bool

	calls       map[uint64]call // admitted
	lastCall    time.Time       // ended or was refused
	withdrawnAt time.Time

	listing
	registration
	confirmation
	restriction

	reported Report
}

type call struct {
	devices   []string
	withdrawn bool // since the call was admitted
}

type confirmation struct {
	confirming bool
	confirmed  bool
	inUse      []Held
	remaining  int // allocatable devices
}

// NewResource returns a closed Resource.
func NewResource() *Resource {
	return &Resource{machine: machine{timers: map[Timer]time.Time{}}, phase: Idle, snapshot: map[string]Device{}, calls: map[uint64]call{},
		listing: listing{entries: map[string]entry{}}, registration: registration{step: unregistered, pause: InitialBackoff}}
}

// Report returns the resource's status.
func (r *Resource) Report() Report {
	s := Report{Phase: r.phase, Epoch: r.epoch, Devices: len(r.snapshot), Allocating: len(r.calls),
		Streaming: r.anyDelivered, Confirmed: r.confirmed, InUse: r.inUse, Error: r.problem(), Restriction: r.acknowledged}
	if r.phase == Offered && r.anyDelivered {
		for id := range r.snapshot {
			if r.isOffered(id) {
				s.Offered++
			}
		}
	}
	return s
}

// Step handles an event and returns the actions to run, in order.
func (r *Resource) Step(at time.Time, event ResourceEvent) []Action {
	r.begin(at)
	if r.phase != Stopped {
		event.applyTo(r)
		r.advance()
		return r.out
	}
	switch e := event.(type) {
	case AllocateBegin:
		r.refuse(e.Call, shuttingDownReason)
	case AllocateCheck:
		r.refuse(e.Call, shuttingDownReason)
	}
	return r.out
}

func (e Open) applyTo(r *Resource) {
	if !r.stopping {
		r.phase, r.epoch, r.confirmation = Offered, e.Epoch, confirmation{}
		delete(r.timers, TimerDrain)
		delete(r.timers, TimerConfirm)
	}
}

func (e Close) applyTo(r *Resource) { r.withdraw(e.Epoch) }

func (e Shutdown) applyTo(r *Resource) {
	r.withdraw(e.Epoch)
	r.stopping = true
}

func (Halt) applyTo(r *Resource) { r.stop() }

func (e Snapshot) applyTo(r *Resource) {
	before := r.snapshot
	r.snapshot = make(map[string]Device, len(e.Devices))
	for _, d := range e.Devices {
		r.snapshot[d.ID] = d
		if r.closed.Reason(d) != "" && r.closed.Reason(before[d.ID]) == "" {
			r.acknowledged = 0 // the device has moved to a closed function
		}
	}
	r.withdrawCalls()
}

func (r *Resource) advance() {
	if r.phase != Stopped {
		r.registerIfNeeded()
		r.list()
		if r.continueWithdrawal(); r.phase == Withdrawn {
			r.list() // waiting ids can leave
		}
		r.continueRestriction()
		r.end()
	}
	if s := r.Report(); !reflect.DeepEqual(s, r.reported) {
		r.reported = s
		r.do(Notify{Report: s})
	}
}

func (r *Resource) withdraw(epoch uint64) {
	if r.stopping {
		return
	}
	changed := r.epoch != epoch
	r.epoch = epoch
	if r.phase == Withdrawing && changed {
		r.confirmation = confirmation{} // drop an answer for the previous epoch
	}
	if r.phase != Offered {
		return
	}
	r.phase, r.confirmation = Withdrawing, confirmation{}
	for id, c := range r.calls {
		c.withdrawn = true
		r.calls[id] = c
	}
	if len(r.calls) > 0 {
		r.set(TimerDrain, r.now.Add(DrainTimeout))
	}
}

// continueWithdrawal completes when calls have ended, the kubelet has no
// healthy device, and PodResources lists none as allocatable.
func (r *Resource) continueWithdrawal() {
	if r.phase != Withdrawing || len(r.calls) > 0 || !r.noneHealthy() {
		return
	}
	if r.step == unregistered { // unknown to the kubelet
		r.withdrawn()
		return
	}
	if _, later := r.timers[TimerConfirm]; !later && !r.confirming {
		r.confirming = true
		r.do(Confirm{Epoch: r.epoch})
	}
}

func (e Confirmed) applyTo(r *Resource) {
	if e.Restriction != 0 {
		r.restrictionConfirmed(e)
		return
	}
	if r.phase != Withdrawing || !r.confirming || e.Epoch != r.epoch {
		return
	}
	r.confirming = false
	switch {
	case !e.Known:
		r.withdrawn()
	case e.Offered == 0:
		r.withdrawn()
		r.confirmed, r.inUse, r.remaining = true, slices.Clone(e.InUse), 0
	default:
		r.remaining = e.Offered
		r.set(TimerConfirm, r.now.Add(ConfirmInterval))
	}
}

func (r *Resource) withdrawn() { r.phase, r.withdrawnAt = Withdrawn, r.now }

// The kubelet gets an empty list, and StopDelay to read it.
func (r *Resource) end() {
	if !r.stopping || (r.phase != Withdrawn && r.phase != Idle) || len(r.calls) > 0 {
		return
	}
	if r.phase == Idle || r.stream == 0 {
		r.stop()
		return
	}
	if len(r.entries) == 0 && r.delivered && !r.stopScheduled {
		r.stopScheduled = true
		r.set(TimerStop, r.now.Add(StopDelay))
	}
}

func (r *Resource) stop() {
	r.phase = Stopped
	clear(r.timers)
	r.do(Stop{})
}

// advance handles the other timers.
func (e Expired) applyTo(r *Resource) {
	if !r.expired(e.Timer) {
		return
	}
	switch e.Timer {
	case TimerRegister:
		r.reregister()
	case TimerStop:
		r.stop()
	}
}

func (r *Resource) problem() string {
	switch {
	case r.phase == Withdrawing && len(r.calls) > 0:
		return fmt.Sprintf("%d Allocate calls are still in flight", len(r.calls))
	case r.phase == Withdrawing && r.remaining > 0:
		return fmt.Sprintf("the kubelet still has %d allocatable devices", r.remaining)
	case r.phase == Withdrawing && !r.noneHealthy():
		return "the kubelet has not read the list that withdraws the devices yet"
	case r.failure != nil:
		return r.failure.Error()
	}
	return ""
}

func (e AllocateBegin) applyTo(r *Resource) {
	if reason := r.refusalReason(e.Devices); reason != "" {
		r.refuse(e.Call, reason)
		return
	}
	r.calls[e.Call] = call{devices: e.Devices}
	r.do(Admit{Call: e.Call})
}

// applyTo checks again: a device withdrawn since the admission might be
// configured differently, even if it is offered again.
func (e AllocateCheck) applyTo(r *Resource) {
	c, running := r.calls[e.Call]
	if !running {
		r.refuse(e.Call, "the call was not admitted")
		return
	}
	reason := r.refusalReason(c.devices)
	if reason == "" && c.withdrawn {
		reason = "the devices were withdrawn while the call was in flight; recreate the pod"
	}
	if reason != "" {
		r.do(Refuse{Call: e.Call, Code: codes.FailedPrecondition, Reason: reason})
		return
	}
	r.do(Approve(e))
}

func (e AllocateEnd) applyTo(r *Resource) {
	if _, running := r.calls[e.Call]; running {
		delete(r.calls, e.Call)
		r.lastCall = r.now
	}
}

func (r *Resource) refusalReason(devices []string) string {
	if r.phase != Offered {
		return fmt.Sprintf("devices of this resource cannot be allocated now (phase %s)", r.phase)
	}
	for _, id := range devices {
		switch d, exists := r.snapshot[id]; {
		case !exists:
			return fmt.Sprintf("device %q does not exist", id)
		case !d.Healthy:
			return fmt.Sprintf("device %q is not healthy", id)
		case r.closed.Reason(d) != "":
			return fmt.Sprintf("device %q is withdrawn: %s", id, r.closed.Reason(d))
		}
	}
	return ""
}

// A refused call counts as just ended: the kubelet is allocating until it reads
// the answer.
func (r *Resource) refuse(id uint64, reason string) {
	r.lastCall = r.now
	r.do(Refuse{Call: id, Code: codes.FailedPrecondition, Reason: reason})
}
