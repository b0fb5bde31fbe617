package daemon

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/cleatproject/cleat/sriov/control"
	"github.com/cleatproject/cleat/sriov/nodestate"
	"github.com/cleatproject/cleat/sriov/nodestate/source"
	"github.com/cleatproject/cleat/sriov/plan"
	"github.com/cleatproject/cleat/sriov/podresources"
)

const (
	// stir is how long a change on the node may be followed by others before a
	// look; making functions is many changes.
	stir = time.Second
	// sure lies between two looks that must both find a change of what is offered.
	sure = 3 * time.Second
	// poll lies between two looks while something is waited for that no event
	// tells: pods that end, the operator.
	poll = 5 * time.Second
	// quick is the same while a plugin without acknowledgement withdraws.
	quick = 500 * time.Millisecond

	firstPause = time.Second
	maxPause   = 5 * time.Minute
	// maxRounds bounds how often it is planned again without an end.
	maxRounds = 6
)

// word is what the gate was told last.
type word int

const (
	unknown word = iota // nothing by this process, or it did not answer
	opened
	shut
)

// machine decides. It is pure: events in, actions out, and time comes with each
// event. It is not safe for concurrent use.
type machine struct {
	rules Rules
	now   time.Time
	out   []any

	source  error // why the newest wish is not known
	wished  bool
	wish    nodestate.NodeState
	spec    string // hash of wish.Spec
	none    bool   // the source said that there is no wish
	lost    bool   // the newest wish makes no sense, and is of another generation
	record  Record
	holders []podresources.Holder // as heard last

	// What is under way. At most one of looking, noting and doing.
	looking, noting, doing, withdrawing bool
	again                               bool // what the look under way sees is too old
	stirred                             bool // meanwhile

	word       word
	claim      control.Claim
	served     string // spec of claim
	openedAt   time.Time
	shutAt     time.Time // when the withdrawal ended
	withdrawal control.Withdrawal
	shutAgain  time.Time // no withdrawal is tried before
	shutFirst  bool      // a process before this one left steps unfinished

	due      time.Time // of the next look; zero: none is planned
	lookedAt time.Time
	last     *looked  // what was seen last
	doubt    []string // what was not as wanted then
	queue    []plan.Step
	fresh    []string  // PFs whose functions were just made
	settling []string  // those of them that the queue was planned for
	remade   []string  // PFs whose functions were made since the node was last as wanted
	under    plan.Step // the one that is or was under way
	rounds   int
	failures int
	deaf     bool // what stirs may be our own doing, and does not end a pause

	status Status
}

func newMachine(r Rules, record Record, now time.Time) *machine {
	r.Resync = cmp.Or(r.Resync, 5*time.Minute)
	r.Unacknowledged = cmp.Or(r.Unacknowledged, 10*time.Second)
	if r.Spread == nil {
		r.Spread = func(d time.Duration) time.Duration { return d/2 + rand.N(d/2+1) }
	}
	m := &machine{rules: r, record: record, now: now, shutFirst: record.Applying && r.Mode == Apply}
	m.status = Status{Mode: r.Mode, Phase: Waiting, Since: now, Reason: "no node state was read yet"}
	return m
}

// step tells the machine what happened, and returns what is to be done.
func (m *machine) step(now time.Time, event any) []any {
	m.now, m.out = now, nil
	switch e := event.(type) {
	case source.Update:
		m.heard(e)
	case looked:
		m.onLooked(e)
	case withdrawn:
		m.onWithdrawn(e)
	case noted:
		m.noting = false
		m.onNoted(e)
	case did:
		m.doing = false
		m.onDid(e)
	case stirred:
		m.stirred = m.stirred || m.looking
		m.sooner()
	case told:
		m.onTold(e.status)
	}
	m.proceed()
	return m.out
}

// sooner looks again soon, when it would some time.
func (m *machine) sooner() {
	if !m.due.IsZero() && !m.deaf {
		m.due = minTime(m.due, maxTime(m.now, m.lookedAt.Add(stir)))
	}
}

// deadline is when a tick is needed; zero: none is.
func (m *machine) deadline() time.Time {
	at := m.due
	if m.looking || m.noting || m.doing || m.withdrawing {
		at = time.Time{}
	}
	if m.word == unknown && !m.withdrawing && m.shutAgain.After(m.now) && (at.IsZero() || m.shutAgain.Before(at)) {
		at = m.shutAgain
	}
	return at
}

// heard takes a wish.
func (m *machine) heard(u source.Update) {
	m.source = u.Err
	switch {
	case u.Gone:
		m.wished, m.none, m.lost = false, true, false
		m.abandon()
		return
	case u.Err == nil && m.rules.Mode == Apply:
		m.source = u.State.Spec.Check()
	}
	if m.source != nil {
		// The wish before stays in force. An operator that can read this one will
		// act on it, though.
		m.lost = m.lost || m.rules.Mode == Follow && u.State.Generation != 0 && !m.sameObject(u.State)
		return
	}
	spec := u.State.Spec.Hash()
	first := !m.wished
	changed := first || spec != m.spec || !m.sameObject(u.State) || m.lost
	m.wished, m.none, m.lost, m.wish, m.spec = true, false, false, u.State, spec
	m.status.UID, m.status.Generation = u.State.UID, u.State.Generation
	if changed {
		m.abandon()
		m.status.Warnings = texts(u.Warnings)
		if m.rules.Mode == Apply {
			m.status.NotDone = plan.NotDone(u.State.Spec)
		}
	}
	if changed || m.rules.Mode == Follow {
		m.again, m.due = m.looking, m.now
	}
	if changed && !first && m.rules.Mode == Follow {
		m.shut()
	}
}

func (m *machine) sameObject(n nodestate.NodeState) bool {
	return m.wished && n.UID == m.wish.UID && n.Generation == m.wish.Generation
}

// abandon forgets what was planned for the wish before.
func (m *machine) abandon() {
	m.queue, m.rounds, m.failures, m.due, m.deaf = nil, 0, 0, time.Time{}, false
	if m.status.Phase == Away {
		m.phase(Looking, "")
	}
}

// proceed does what can be done, if nothing is under way that must end first.
func (m *machine) proceed() {
	switch {
	case m.noting || m.doing:
		return
	case m.status.Phase == Away:
		m.due = time.Time{}
		return
	case m.none:
		m.due = time.Time{}
		m.shut()
		m.phase(Waiting, "there is no node state")
		return
	case m.lost:
		m.due = time.Time{}
		m.shut()
		m.phase(Pending, fmt.Sprintf("the node state changed, and cannot be read: %v", m.source))
		return
	case !m.wished:
		return
	case m.shutFirst:
		m.shut()
		m.phase(Withdrawing, "the work of a process before is not finished")
	case m.rules.Mode == Follow && m.wish.Status.SyncStatus != nodestate.Succeeded:
		m.shut()
		m.due = time.Time{}
		m.phase(Pending, operatorSays(m.wish.Status))
		return
	}
	if m.looking || m.withdrawing || m.due.IsZero() || m.due.After(m.now) {
		return
	}
	if m.shutFirst {
		m.due = m.shutAgain
		return
	}
	if m.status.Phase == Waiting {
		m.phase(Looking, "")
	}
	m.looking, m.again, m.stirred, m.lookedAt = true, false, false, m.now
	m.out = append(m.out, look{})
}

func operatorSays(s nodestate.Status) string {
	text := fmt.Sprintf("the operator says %q", s.SyncStatus)
	if s.SyncStatus == "" {
		text = "the operator has not said anything"
	}
	if s.LastSyncError != "" {
		text += ": " + s.LastSyncError
	}
	return text
}

// shut has the devices taken back unless they are.
func (m *machine) shut() {
	if m.word == shut || m.withdrawing || m.now.Before(m.shutAgain) {
		return
	}
	m.word, m.withdrawing = unknown, true
	m.out = append(m.out, withdraw{})
}

func (m *machine) onWithdrawn(e withdrawn) {
	m.withdrawing = false
	m.status.Withdrawal = ""
	if e.err != nil {
		m.status.Withdrawal = e.err.Error()
		m.fail(fmt.Errorf("have the devices taken back: %w", e.err))
		m.shutAgain = m.due
		return
	}
	m.word, m.withdrawal, m.shutAt, m.shutAgain, m.shutFirst = shut, e.result, m.now, time.Time{}, false
	if m.wished {
		m.due = m.now
	}
}

// open lets the devices be offered, as they are as wanted.
func (m *machine) open(hash string) {
	c := control.Claim{UID: m.wish.UID, Generation: m.wish.Generation, Hash: hash, Node: m.rules.Node, Lease: m.rules.Lease, Hold: m.rules.Hold}
	if m.word != opened || c != m.claim {
		m.word, m.openedAt, m.shutAgain = opened, m.now, time.Time{}
		m.out = append(m.out, open{c})
	}
	m.claim, m.served = c, m.spec
	m.failures, m.rounds, m.deaf, m.due = 0, 0, false, m.now.Add(m.rules.Resync)
	m.status.Held = nil
	m.phase(Serving, "")
}

// onTold: the gate may have been lost for good, or until it is known again that
// the node is as wanted.
func (m *machine) onTold(s control.KeeperStatus) {
	if m.word != opened || s.Since.Before(m.openedAt) {
		return
	}
	switch s.State {
	case control.StateSuperseded, control.StateDisabled:
		m.word, m.due = unknown, time.Time{}
		m.phase(Away, s.Reason)
	case control.StateStale:
		m.word, m.due = unknown, m.now
		m.again = m.looking
		m.phase(Looking, s.Reason)
	}
}

// fail gives up for a while.
func (m *machine) fail(err error) {
	m.failures++
	m.queue, m.rounds, m.deaf = nil, 0, true
	m.due = m.now.Add(m.pause())
	m.phase(Failed, err.Error())
	m.status.err = err
}

func (m *machine) pause() time.Duration {
	d := firstPause << min(m.failures-1, 20)
	return m.rules.Spread(min(d, maxPause))
}

// wait looks again after a while.
func (m *machine) wait(p Phase, reason string, long time.Duration) {
	m.queue, m.rounds, m.deaf = nil, 0, false
	m.due = m.now.Add(long)
	m.phase(p, reason)
}

func (m *machine) phase(p Phase, reason string) {
	if p != m.status.Phase {
		m.status.Since = m.now
	}
	m.status.Phase, m.status.Reason, m.status.err = p, reason, nil
}

func minTime(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

func maxTime(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

var errRounds = errors.New("the node does not become as it was made")
