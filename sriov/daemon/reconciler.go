package daemon

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/cleatproject/cleat/sriov/control"
	"github.com/cleatproject/cleat/sriov/gate"
	"github.com/cleatproject/cleat/sriov/nodestate"
	"github.com/cleatproject/cleat/sriov/nodestate/source"
	"github.com/cleatproject/cleat/sriov/plan"
	"github.com/cleatproject/cleat/sriov/podresources"
)

const (
	// changeDelay is the minimum between observations: creating functions
	// causes many changes.
	changeDelay = time.Second
	// confirmDelay is between two observations that must agree before devices
	// are withdrawn.
	confirmDelay = 3 * time.Second
	// pollDelay is the interval while waiting for something without events:
	// pods that end, the operator.
	pollDelay = 5 * time.Second
	// withdrawalPollDelay applies while a plugin withdraws without
	// acknowledgement.
	withdrawalPollDelay = 500 * time.Millisecond

	minBackoff = time.Second
	maxBackoff = 5 * time.Minute
	// maxRounds limits successive plans.
	maxRounds = 6
)

// reconciler is the daemon's state machine: each event updates it, and
// reconcile starts the next safe action. It is pure: events in, actions out, no
// clock.
type reconciler struct {
	rules Rules
	now   time.Time
	out   []action

	desired desired
	gate    gateState
	record  Record
	effect  effect // running

	due           time.Time // of the next observation
	ignoreChanges bool      // until due: changes might be the daemon's own
	failures      int       // consecutive

	revision    int // incremented when a running observation becomes obsolete
	changes     int
	changesSeen int // changes when the last observation started
	observedAt  time.Time
	last        *observation // successful
	holders     []podresources.Holder
	differences []string // of the last observation

	step       plan.Step         // running or last
	steps      []plan.Step       // of the running plan, from step on
	owners     map[string]string // PF of each function of the steps
	conditions map[string]*condition
	// A process ended or was suspended during steps: the gate closes first.
	interrupted bool
	created     createdFunctions

	status Status
}

type desired struct {
	presence presence
	state    nodestate.NodeState // last valid
	hash     string              // of its spec
	err      error               // of a newer state
}

type presence int

const (
	unknown presence = iota
	absent
	present
	// outdated, in mode Follow: the newest generation, on which the operator
	// might act, cannot be read.
	outdated
)

type gateState struct {
	position  position
	claim     gate.Claim      // last enabled
	spec      string          // hash of the claim's spec
	openedAt  time.Time       // of the claim
	closedAt  time.Time       // when the withdrawal ended
	result    gate.Withdrawal // of the last withdrawal
	notBefore time.Time       // earliest retry

	acknowledged bool      // the closed functions of the claim are withdrawn
	wholeUntil   time.Time // single functions cannot be closed
	wholeReason  string
}

type position int

const (
	gateUnknown position = iota // not used yet, or lost
	gateOpen
	gateWithdrawing
	gateUnconfirmed // devices might be offered
	gateClosed
)

// effect is an action on the node. At most one runs; a withdrawal is separate.
type effect int

const (
	idle effect = iota
	observing
	recording
	applying
)

type event interface{ handle(r *reconciler) }

// Each action except enable is answered by one event.
type (
	desiredReported struct{ source.Update }
	nodeChanged     struct{ queued *atomic.Bool } // queued is reset
	gateChanged     struct{ status control.RenewerStatus }
	timeout         struct{}

	observed struct {
		observation
		revision int
	}
	withdrawn struct {
		result gate.Withdrawal
		err    error
	}
	recorded struct{ err error }
	applied  struct{ err error }
)

type action interface {
	run(ctx context.Context, d *Daemon)
}

type (
	observe struct {
		revision int
		spec     nodestate.Spec
	}
	withdraw struct{}
	record   struct{ Record }
	apply    struct{ plan.Step }
	enable   struct{ gate.Claim }
)

func newReconciler(rules Rules, saved Record, now time.Time) *reconciler {
	return &reconciler{rules: rules.withDefaults(), record: saved, now: now, interrupted: saved.Applying, conditions: map[string]*condition{}, status: initialStatus(rules.Mode, now)}
}

func (r *reconciler) handle(now time.Time, e event) []action {
	r.now, r.out = now, nil
	e.handle(r)
	r.reconcile()
	return r.out
}

func (r *reconciler) do(a action) { r.out = append(r.out, a) }

// reconcile starts the next safe action.
func (r *reconciler) reconcile() {
	if r.effect == recording || r.effect == applying {
		return
	}
	if r.status.Phase == Superseded {
		r.due = time.Time{}
		return
	}
	if phase, reason := r.mustClose(); phase != "" {
		r.due = time.Time{}
		r.withdraw()
		r.setPhase(phase, reason)
		return
	}
	if r.effect == observing || r.gate.position == gateWithdrawing || r.desired.presence == unknown {
		return
	}
	switch {
	case len(r.steps) > 0:
		r.effect, r.step, r.status.Step = applying, r.steps[0], r.steps[0].String()
		r.do(apply{r.step})
	case !r.due.IsZero() && !r.due.After(r.now):
		if r.status.Phase == Waiting {
			r.setPhase(Observing, "")
		}
		r.effect, r.observedAt, r.changesSeen = observing, r.now, r.changes
		r.do(observe{r.revision, r.desired.state.Spec})
	}
}

// mustClose returns the phase and reason if the gate must close before the node
// is observed.
func (r *reconciler) mustClose() (Phase, string) {
	switch p := r.gate.position; {
	case r.desired.presence == unknown:
		return "", ""
	case r.desired.presence == absent:
		return Waiting, "the node state does not exist"
	case r.desired.presence == outdated:
		return Pending, fmt.Sprintf("the node state changed, but is not valid: %v", r.desired.err)
	case r.rules.Mode == Apply && r.interrupted && p != gateClosed:
		return Withdrawing, "a previous process was interrupted while applying"
	case r.rules.Mode == Follow && r.desired.state.Status.SyncStatus != nodestate.Succeeded:
		return Pending, operatorStatus(r.desired.state.Status)
	case r.rules.Mode == Follow && p == gateUnconfirmed && r.status.Withdrawal != "":
		return Failed, "the devices could not be withdrawn: " + r.status.Withdrawal
	case r.rules.Mode == Follow && (p == gateUnconfirmed || p == gateOpen && !r.isServing()):
		return Withdrawing, "the node state changed"
	}
	return "", ""
}

func operatorStatus(s nodestate.Status) string {
	text := fmt.Sprintf("the operator's sync status is %q", s.SyncStatus)
	if s.SyncStatus == "" {
		text = "the operator has not reported a sync status"
	}
	if s.LastSyncError != "" {
		text += ": " + s.LastSyncError
	}
	return text
}

func (r *reconciler) isServing() bool {
	g := r.gate
	return g.position == gateOpen && g.spec == r.desired.hash && g.claim.UID == r.desired.state.UID && g.claim.Generation == r.desired.state.Generation
}

func (r *reconciler) deadline() time.Time {
	at := r.due
	if r.effect != idle || r.gate.position == gateWithdrawing {
		at = time.Time{}
	}
	if again := r.gate.notBefore; r.gate.position == gateUnconfirmed && again.After(r.now) && (at.IsZero() || again.Before(at)) {
		at = again
	}
	return at
}

func (timeout) handle(*reconciler) {}

func (e desiredReported) handle(r *reconciler) {
	d, u := &r.desired, e.Update
	known := d.presence == present || d.presence == outdated
	same := known && u.State.UID == d.state.UID && u.State.Generation == d.state.Generation
	d.err = u.Err
	if u.Err == nil && !u.Gone && r.rules.Mode == Apply {
		d.err = u.State.Spec.CheckNode()
	}
	switch {
	case u.Gone:
		d.presence = absent
		r.abandon()
		return
	case d.err != nil:
		// The last valid state stays in force; the operator might act on the
		// newer one.
		if r.rules.Mode == Follow && u.State.Generation != 0 && !same {
			d.presence = outdated
		}
		return
	}
	hash := u.State.Spec.Hash()
	changed := !same || hash != d.hash || d.presence == outdated
	d.presence, d.state, d.hash = present, u.State, hash
	r.status.UID, r.status.Generation = u.State.UID, u.State.Generation
	if changed {
		r.abandon()
		r.status.Warnings = texts(u.Warnings)
		if r.rules.Mode == Apply {
			r.status.NotDone = plan.NotDone(u.State.Spec)
		}
	}
	if changed || r.rules.Mode == Follow {
		r.revision++
		r.due = r.now
	}
	if changed && known && r.rules.Mode == Follow && r.gate.position == gateUnknown {
		r.gate.position = gateUnconfirmed // a previous process might have opened the gate
	}
}

// abandon lets a running step finish.
func (r *reconciler) abandon() {
	r.steps, r.failures, r.due, r.ignoreChanges = nil, 0, time.Time{}, false
	clear(r.conditions)
	if r.status.Phase == Superseded {
		r.setPhase(Observing, "")
	}
}

func (e nodeChanged) handle(r *reconciler) {
	if e.queued != nil {
		e.queued.Store(false)
	}
	r.changes++
	r.observeSooner()
}

// observeSooner does not schedule an observation if none is.
func (r *reconciler) observeSooner() {
	if at := r.observedAt.Add(changeDelay); !r.due.IsZero() && !r.ignoreChanges && at.Before(r.due) {
		r.due = at
	}
}

func (e gateChanged) handle(r *reconciler) {
	if r.gate.position != gateOpen {
		return
	}
	r.checkRestriction(e.status)
	if e.status.Since.Before(r.gate.openedAt) || r.gate.position != gateOpen {
		return
	}
	switch e.status.State {
	case control.StateSuperseded, control.StateDisabled:
		r.gate.position, r.interrupted = gateUnknown, r.record.Applying
		r.setPhase(Superseded, e.status.Reason)
	case control.StateStale: // this process was suspended
		r.gate.position = gateUnknown
		r.revision++
		r.interrupted = r.record.Applying
		r.steps, r.due = nil, r.now
		r.setPhase(Observing, e.status.Reason)
	}
}

// checkRestriction handles the plugin's answer to a claim with closed functions.
// If the plugin refuses it, all devices are withdrawn: those of the claim before
// are still offered.
func (r *reconciler) checkRestriction(s control.RenewerStatus) {
	g := &r.gate
	if len(g.claim.Closed) == 0 || g.acknowledged || s.Desired == nil || !s.Desired.Equal(g.claim) {
		return
	}
	switch {
	case s.State == control.StateHeld && s.Held != nil && s.Held.Equal(g.claim) && s.Plugin.Withdrawn:
		g.acknowledged, g.closedAt, g.result = true, r.now, gate.Withdrawal{Acknowledged: true}
		r.revision++ // pods can have got the functions until now
		if r.status.Phase == Withdrawing {
			r.due = r.now
		}
	case s.State == control.StateRefused, s.State == control.StateNotServed && r.status.Phase == Withdrawing:
		g.wholeUntil, g.wholeReason = r.now.Add(pollDelay), s.Reason
		if s.Code == codes.Unimplemented { // it cannot close single functions
			g.wholeUntil = r.now.Add(r.rules.Resync)
		}
		r.withdrawAll()
	}
}

func (e observed) handle(r *reconciler) {
	r.effect = idle
	if e.pods.err == nil {
		r.holders = e.pods.holders
	}
	if e.err == nil {
		r.last = &e.observation
	}
	if e.revision != r.revision || r.desired.presence != present || r.status.Phase == Superseded {
		return
	}
	r.decide(e.observation)
	if r.changes != r.changesSeen {
		r.observeSooner()
	}
}

func (r *reconciler) withdraw() {
	if p := r.gate.position; p == gateClosed || p == gateWithdrawing || r.now.Before(r.gate.notBefore) {
		return
	}
	r.gate.position = gateWithdrawing
	r.revision++
	r.do(withdraw{})
}

func (e withdrawn) handle(r *reconciler) {
	r.revision++ // observe after the withdrawal
	if e.err != nil {
		r.status.Withdrawal = e.err.Error()
		r.fail(fmt.Errorf("withdraw the devices: %w", e.err))
		r.gate.position, r.gate.notBefore = gateUnconfirmed, r.due
		return
	}
	r.status.Withdrawal = ""
	r.interrupted = false
	r.gate.position, r.gate.result, r.gate.closedAt, r.gate.notBefore = gateClosed, e.result, r.now, time.Time{}
	r.due = r.now
}

func (e recorded) handle(r *reconciler) {
	r.effect = idle
	if e.err == nil {
		return
	}
	r.record.Spec = "" // force the next save
	if r.gate.position != gateOpen || len(r.steps) > 0 {
		r.fail(fmt.Errorf("save the record: %w", e.err))
	}
}

func (e applied) handle(r *reconciler) {
	r.effect, r.status.Step = idle, ""
	if len(r.steps) > 0 {
		r.steps = r.steps[1:]
	}
	if e.err != nil {
		r.stepFailed(e.err)
	} else {
		r.status.Done++
		r.created.add(r.step)
	}
	if r.status.Phase == Applying && len(r.steps) == 0 {
		r.created.fresh = r.created.thisPlan // functions created earlier have their addresses
		r.due = r.now
	}
}

// stepFailed skips the PF's later steps; those of other PFs go on.
func (r *reconciler) stepFailed(err error) {
	pf := cmp.Or(r.owners[r.step.Function()], r.step.Function())
	r.happened(pf, fmt.Sprintf("%s: %v", r.step, err), false)
	r.steps = slices.DeleteFunc(slices.Clone(r.steps), func(s plan.Step) bool { return cmp.Or(r.owners[s.Function()], s.Function()) == pf })
}

func (r *reconciler) fail(err error) {
	r.wait(Failed, err.Error(), r.nextBackoff())
	r.ignoreChanges = true
}

func (r *reconciler) nextBackoff() time.Duration {
	r.failures++
	return r.rules.Spread(min(minBackoff<<min(r.failures-1, 20), maxBackoff))
}

func (r *reconciler) wait(p Phase, reason string, long time.Duration) {
	r.steps, r.ignoreChanges = nil, false
	r.due = r.now.Add(long)
	r.setPhase(p, reason)
}

func (r *reconciler) setPhase(p Phase, reason string) {
	if p != r.status.Phase {
		r.status.Since = r.now
	}
	r.status.Phase, r.status.Reason = p, reason
}
