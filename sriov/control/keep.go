package control

import (
	"time"

	"google.golang.org/grpc/codes"

	"github.com/cleatproject/cleat/sriov/gate"
)

// Pauses of a Keeper. What can come back any moment is tried soon, what waits for
// a configuration or a person with pauses that grow.
const (
	soonPause = 100 * time.Millisecond
	soonMost  = 2 * time.Second
	slowPause = time.Second
	slowMost  = 30 * time.Second
	// steady is how long a stream must hold for the pauses to start over.
	steady = 2 * time.Second
	// undecided is how long a stream may take to be accepted before another claim
	// replaces it.
	undecided = 5 * time.Second
	// awake is how often a keeper that holds looks at the clock, to know when its
	// process stood still; stood is how long that is without a lease.
	awake = 5 * time.Second
	stood = 15 * time.Second
)

// keep decides for a Keeper: pure, events in, actions out. One goroutine owns it.
type keep struct {
	recheck bool                              // see KeeperConfig
	spread  func(time.Duration) time.Duration // makes pauses differ; nil: as they are

	now  time.Time
	out  []keepAction
	ids  uint64
	told KeeperStatus

	want    *Claim
	halted  KeeperState // why nothing is tried until the next Enable; "" is not
	trouble failure     // the last one; its zero value is none
	trying  KeeperState // what it means

	opening, line *stream // asked for; accepted
	retryAt       time.Time
	pace          pace
	stillUntil    time.Time // the process stood still shortly before

	asks        []uint64 // calls of Disable that wait
	withdrawing bool     // a DisableDevices is under way
	anybody     bool     // the session no longer counts: whoever holds
	met         bool     // the plugin was there since Disable
	withdrawAt  time.Time
	withdrawals pace
}

// stream is one EnableDevices.
type stream struct {
	id      uint64
	claim   Claim
	since   time.Time // it was asked for, or accepted
	session string    // empty from a plugin that speaks the proposal only
	status  gate.Status
	heard   time.Time

	beatAt   time.Time
	beating  bool
	noBeats  bool   // it has no Heartbeat
	silent   string // its answers are missing
	doomed   bool   // a DisableDevices that is under way ends it
	lastLook time.Time
}

// pace is how often something has failed in a row.
type pace struct {
	slow     bool
	failures int
}

// next is the pause after one more failure.
func (p *pace) next(slow bool, spread func(time.Duration) time.Duration) time.Duration {
	if p.slow != slow {
		*p = pace{slow: slow}
	}
	d, most := soonPause, soonMost
	if slow {
		d, most = slowPause, slowMost
	}
	for range p.failures {
		if d = d * 8 / 5; d >= most {
			d = most
			break
		}
	}
	p.failures++
	if spread != nil {
		d = spread(d)
	}
	return d
}

// step tells the keeper what happened at a moment, and returns what is to be
// done, in that order.
func (k *keep) step(now time.Time, event keepEvent) []keepAction {
	if now.After(k.now) {
		k.now = now
	}
	k.out = nil
	k.look()
	switch e := event.(type) {
	case wanted:
		k.enable(e.claim)
	case unwanted:
		k.disable(e.ask)
	case askGone:
		k.forget(e.ask)
	case statusHeard:
		k.hear(e)
	case streamEnded:
		k.ended(e)
	case beaten:
		k.beaten(e)
	case withdrawn:
		k.withdrawn(e)
	case tick:
	}
	if k.want == nil {
		k.letGo()
	} else {
		k.hold()
		k.beat()
	}
	k.publish()
	return k.out
}

// look notices that the process stood still, by how long nothing was looked at.
func (k *keep) look() {
	l := k.line
	if l == nil {
		return
	}
	most := stood
	if l.claim.Lease > 0 {
		most = l.claim.Lease
	}
	if k.now.Sub(l.lastLook) >= most {
		k.stillUntil = k.now.Add(2 * awake)
	}
	l.lastLook = k.now
}

func (k *keep) enable(c Claim) {
	if k.want != nil && *k.want == c && k.halted == "" {
		return
	}
	for _, id := range k.asks {
		k.do(answer{ask: id, err: errEnabled})
	}
	k.want, k.asks, k.halted, k.trouble, k.trying = &c, nil, "", failure{}, ""
	k.retryAt, k.pace, k.stillUntil = k.now, pace{}, time.Time{}
	if k.withdrawing {
		for _, s := range []*stream{k.line, k.opening} {
			if s != nil {
				s.doomed = true
			}
		}
	}
}

// hold opens the stream that is wanted. Another claim takes over from the stream
// that stands, so that nothing is withdrawn between; a plugin that speaks the
// proposal only gets it after that has ended.
func (k *keep) hold() {
	if k.withdrawing || k.halted != "" {
		return // what is asked for now would be withdrawn too
	}
	if o := k.opening; o != nil {
		if o.claim == *k.want && !o.doomed || k.now.Sub(o.since) < undecided {
			return
		}
		k.drop(&k.opening)
	}
	if k.line != nil && k.line.claim == *k.want && !k.line.doomed || k.now.Before(k.retryAt) {
		return
	}
	if k.line != nil && k.line.session == "" {
		k.drop(&k.line)
	}
	k.ids++
	k.opening = &stream{id: k.ids, claim: *k.want, since: k.now}
	k.do(open{stream: k.ids, claim: *k.want})
}

func (k *keep) hear(e statusHeard) {
	if o := k.opening; o != nil && o.id == e.stream {
		k.drop(&k.line)
		k.line, k.opening = o, nil
		o.since, o.session, o.lastLook = k.now, e.session, k.now
		o.beatAt = k.now.Add(o.claim.Lease / 3)
		k.trouble, k.trying, k.stillUntil = failure{}, "", time.Time{}
		k.met = true
	}
	if l := k.line; l != nil && l.id == e.stream {
		l.status, l.heard, l.silent = e.status, k.now, ""
	}
}

func (k *keep) ended(e streamEnded) {
	switch {
	case k.opening != nil && k.opening.id == e.stream:
		doomed := k.opening.doomed
		k.opening = nil
		if k.want != nil && !doomed {
			k.fail(e.why)
		}
	case k.line != nil && k.line.id == e.stream:
		was := k.line
		k.line = nil
		if k.now.Sub(was.since) >= steady {
			k.pace = pace{}
		}
		switch {
		case k.want == nil || was.doomed:
		case k.opening != nil: // which may be what took over; its outcome tells
			if e.why.code != codes.Aborted {
				k.do(lost{e.why.label()})
			}
		default:
			k.do(lost{e.why.label()})
			k.fail(e.why)
		}
	}
}

// fail decides what the end of a stream means for the next.
func (k *keep) fail(why failure) {
	k.trouble = why
	switch {
	case k.recheck && k.now.Before(k.stillUntil) && (!why.said || why.code == codes.DeadlineExceeded):
		k.halted = StateStale
	case why.said && why.code == codes.OK:
		k.halted = StateDisabled
	case why.said && why.code == codes.Aborted && why.other:
		k.halted = StateSuperseded
	case why.said && why.code == codes.DeadlineExceeded, why.said && why.code == codes.Unavailable:
		k.again(StateEnabling, false)
	case why.said, why.fixed:
		k.again(StateRefused, true)
	case why.nobody:
		k.again(StateNobody, false)
	default:
		k.again(StateEnabling, false)
	}
}

func (k *keep) again(means KeeperState, slow bool) {
	k.trying = means
	k.retryAt = k.now.Add(k.pace.next(slow, k.spread))
}

func (k *keep) beat() {
	l := k.line
	if l == nil || l.session == "" || l.claim.Lease <= 0 || l.noBeats || l.beating || k.now.Before(l.beatAt) {
		return
	}
	l.beating, l.beatAt = true, k.now.Add(l.claim.Lease/3)
	k.do(beat{stream: l.id, session: l.session, within: l.claim.Lease})
}

// beaten: what a stream has lost it hears by its end; only silence is told here.
func (k *keep) beaten(e beaten) {
	l := k.line
	if l == nil || l.id != e.stream {
		return
	}
	l.beating = false
	switch {
	case e.why == nil:
		l.heard, l.silent = k.now, ""
	case e.why.said && e.why.code == codes.Unimplemented:
		l.noBeats = true
	case !e.why.said:
		l.silent = "Heartbeat: " + e.why.reason
	}
}

// drop ends a stream from this side.
func (k *keep) drop(s **stream) {
	if *s != nil {
		k.do(drop{stream: (*s).id})
		*s = nil
	}
}

func (k *keep) do(a keepAction) { k.out = append(k.out, a) }

// next is when the keeper has something to do by itself; zero is never.
func (k *keep) next() time.Time {
	var first time.Time
	at := func(t time.Time) {
		if first.IsZero() || t.Before(first) {
			first = t
		}
	}
	switch {
	case k.want == nil:
		if !k.withdrawing && (len(k.asks) > 0 || k.line != nil) {
			at(k.withdrawAt)
		}
	case k.withdrawing || k.halted != "":
	case k.opening != nil:
		if k.opening.claim != *k.want || k.opening.doomed {
			at(k.opening.since.Add(undecided))
		}
	case k.line == nil || k.line.claim != *k.want || k.line.doomed:
		at(k.retryAt)
	}
	if l := k.line; l != nil {
		at(l.lastLook.Add(awake))
		if k.want != nil && l.session != "" && l.claim.Lease > 0 && !l.noBeats && !l.beating {
			at(l.beatAt)
		}
	}
	return first
}
