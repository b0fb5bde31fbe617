package control

import (
	"context"
	"reflect"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/cleatproject/cleat/sriov/gate"
)

// The fast backoff is for a plugin that can return at any time, the slow one
// for refusals that need a configuration change or a user.
const (
	fastBackoff    = 100 * time.Millisecond
	maxFastBackoff = 2 * time.Second
	slowBackoff    = time.Second
	maxSlowBackoff = 30 * time.Second
	// backoffReset is the life of a stream that resets the backoff.
	backoffReset = 2 * time.Second
	// acceptTimeout is when another claim can replace an unaccepted one.
	acceptTimeout = 5 * time.Second
	// suspendCheckInterval is how often a renewer with a stream checks that its
	// process was not suspended. Without a lease, suspendGap between two events
	// indicates that it was.
	suspendCheckInterval = 5 * time.Second
	suspendGap           = 15 * time.Second
	// heartbeatInterval also bounds the time between two calls for a long lease.
	heartbeatInterval = 10 * time.Second
)

type (
	event  interface{ apply(*renewal) }
	action interface {
		run(context.Context, *Renewer)
	}
)

type (
	enableRequested  struct{ claim gate.Claim }
	disableRequested struct{ waiter waiter }
	waiterCanceled   struct{ waiter waiter }
	statusReceived   struct {
		stream  uint64
		session string
		status  gate.Status
	}
	// Accepted or not.
	streamEnded struct {
		stream uint64
		cause  failure
	}
	heartbeatDone struct {
		stream uint64
		cause  *failure
	}
	disableDone struct {
		result gate.Withdrawal
		cause  *failure
	}
	timerExpired struct{}
)

type (
	openStream struct {
		stream uint64
		claim  gate.Claim
	}
	closeStream struct{ stream uint64 }
	heartbeat   struct {
		stream  uint64
		session string
		timeout time.Duration
	}
	disable struct{ session string }
	answer  struct {
		waiter waiter
		result gate.Withdrawal
		err    error
	}
	// Of an accepted stream.
	countLoss struct{ code string }
	publish   struct{ status RenewerStatus }
)

type waiter chan answer

// renewal is a Renewer's state machine, without I/O.
type renewal struct {
	jitter func(time.Duration) time.Duration

	now       time.Time
	out       []action
	published RenewerStatus

	desired    *gate.Claim
	halted     RenewerState // waits for the next Enable
	failure    failure      // last
	retryState RenewerState // until the retry

	lastStream       uint64
	opening, current *stream // not accepted; accepted
	retryAt          time.Time
	backoff          backoff
	staleUntil       time.Time // a loss until then counts as caused by a suspended process

	waiters        []waiter
	disabling      bool // in flight
	anyHolder      bool // not only this renewer's session
	reached        bool // since Disable
	disableAt      time.Time
	disableBackoff backoff
}

type stream struct {
	id        uint64
	claim     gate.Claim
	since     time.Time // opened, or accepted
	session   string    // empty without the extensions
	status    gate.Status
	checkedAt time.Time // last event
	withdrawn bool      // DisableDevices in flight ends the stream

	heartbeatAt       time.Time
	heartbeatInFlight bool
	noHeartbeats      bool // not implemented by the plugin
}

type backoff struct {
	slow     bool
	failures int
}

func (b *backoff) next(slow bool, jitter func(time.Duration) time.Duration) time.Duration {
	if b.slow != slow {
		*b = backoff{slow: slow}
	}
	d, most := fastBackoff, maxFastBackoff
	if slow {
		d, most = slowBackoff, maxSlowBackoff
	}
	for range b.failures {
		if d = d * 8 / 5; d >= most {
			d = most
			break
		}
	}
	b.failures++
	if jitter != nil {
		d = jitter(d)
	}
	return d
}

func (r *renewal) step(now time.Time, e event) []action {
	if now.After(r.now) {
		r.now = now
	}
	r.out = nil
	r.detectSuspension()
	e.apply(r)
	if r.desired == nil {
		r.withdraw()
	} else {
		r.open()
		r.heartbeat()
	}
	if s := r.status(); !reflect.DeepEqual(s, r.published) {
		r.published = s
		r.do(publish{s})
	}
	return r.out
}

// detectSuspension looks at the gap between two events.
func (r *renewal) detectSuspension() {
	s := r.current
	if s == nil {
		return
	}
	most := suspendGap
	if s.hasLease() {
		most = s.claim.Lease
	}
	if r.now.Sub(s.checkedAt) >= most {
		r.staleUntil = r.now.Add(2 * suspendCheckInterval)
	}
	s.checkedAt = r.now
}

func (timerExpired) apply(*renewal) {}

func (e enableRequested) apply(r *renewal) {
	c := e.claim
	if r.desired != nil && r.desired.Equal(c) && r.halted == "" {
		return
	}
	for _, w := range r.waiters {
		r.do(answer{waiter: w, err: errEnabled})
	}
	r.desired, r.waiters, r.halted, r.failure, r.retryState = &c, nil, "", failure{}, ""
	r.retryAt, r.backoff, r.staleUntil = r.now, backoff{}, time.Time{}
	for _, s := range []*stream{r.current, r.opening} {
		if s != nil && r.disabling {
			s.withdrawn = true
		}
	}
}

// open takes over from the current stream, so that nothing is withdrawn in
// between. Without the extensions, the plugin gets it only after the current
// stream has ended.
func (r *renewal) open() {
	if r.disabling || r.halted != "" {
		return // it would also withdraw the new claim
	}
	if s := r.opening; s != nil {
		if s.claim.Equal(*r.desired) && !s.withdrawn || r.now.Sub(s.since) < acceptTimeout {
			return
		}
		r.close(&r.opening)
	}
	if r.holdsDesired() || r.now.Before(r.retryAt) {
		return
	}
	if r.current != nil && r.current.session == "" {
		r.close(&r.current)
	}
	r.lastStream++
	r.opening = &stream{id: r.lastStream, claim: *r.desired, since: r.now}
	r.do(openStream{stream: r.lastStream, claim: *r.desired})
}

func (r *renewal) holdsDesired() bool {
	return r.current != nil && r.current.claim.Equal(*r.desired) && !r.current.withdrawn
}

func (e statusReceived) apply(r *renewal) {
	if s := r.opening; s != nil && s.id == e.stream {
		r.close(&r.current)
		r.current, r.opening = s, nil
		s.since, s.session, s.checkedAt = r.now, e.session, r.now
		s.heartbeatAt = r.now.Add(s.heartbeatInterval())
		r.failure, r.retryState, r.staleUntil = failure{}, "", time.Time{}
		r.reached = true
	}
	if s := r.current; s != nil && s.id == e.stream {
		s.status = e.status
	}
}

func (e streamEnded) apply(r *renewal) {
	switch {
	case r.opening != nil && r.opening.id == e.stream:
		withdrawn := r.opening.withdrawn
		r.opening = nil
		if r.desired != nil && !withdrawn {
			r.failed(e.cause)
		}
	case r.current != nil && r.current.id == e.stream:
		last := r.current
		r.current = nil
		if r.now.Sub(last.since) >= backoffReset {
			r.backoff = backoff{}
		}
		if r.desired == nil || last.withdrawn {
			return
		}
		if r.opening == nil || e.cause.code != codes.Aborted { // caused by the opening stream taking over
			r.do(countLoss{e.cause.label()})
		}
		if r.opening == nil {
			r.failed(e.cause)
		}
	}
}

func (r *renewal) failed(why failure) {
	r.failure = why
	switch {
	case r.now.Before(r.staleUntil) && (!why.answered || why.code == codes.DeadlineExceeded):
		r.halted = StateStale
	case why.answered && why.code == codes.OK:
		r.halted = StateDisabled
	case why.answered && why.code == codes.Aborted && why.superseded:
		r.halted = StateSuperseded
	case why.answered && (why.code == codes.DeadlineExceeded || why.code == codes.Unavailable):
		r.retry(StateEnabling, false)
	case why.answered, why.permanent:
		r.retry(StateRefused, true)
	case why.notServed:
		r.retry(StateNotServed, false)
	default:
		r.retry(StateEnabling, false)
	}
}

func (r *renewal) retry(state RenewerState, slow bool) {
	r.retryState = state
	r.retryAt = r.now.Add(r.backoff.next(slow, r.jitter))
}

func (s *stream) hasLease() bool { return s.sendsHeartbeats() && s.claim.Lease > 0 }

// sendsHeartbeats: they renew a lease, and show that the plugin does not hang.
// Without the extensions only the pings of the connection show that.
func (s *stream) sendsHeartbeats() bool { return s != nil && s.session != "" && !s.noHeartbeats }

func (s *stream) heartbeatInterval() time.Duration {
	if lease := s.claim.Lease; lease > 0 {
		return min(lease/3, heartbeatInterval)
	}
	return heartbeatInterval
}

// heartbeatTimeout is longer than the gap that shows a suspension of this process,
// whose heartbeat then fails for that.
func (s *stream) heartbeatTimeout() time.Duration {
	return max(s.claim.Lease, suspendGap) + suspendCheckInterval
}

func (r *renewal) heartbeat() {
	s := r.current
	if !s.sendsHeartbeats() || s.heartbeatInFlight || r.now.Before(s.heartbeatAt) {
		return
	}
	s.heartbeatInFlight, s.heartbeatAt = true, r.now.Add(s.heartbeatInterval())
	r.do(heartbeat{stream: s.id, session: s.session, timeout: s.heartbeatTimeout()})
}

// A plugin that does not answer hangs: the stream ends. One that answers ends the
// stream itself if the lease was lost. After a suspension of this process a
// failure shows nothing about the plugin.
func (e heartbeatDone) apply(r *renewal) {
	s := r.current
	if s == nil || s.id != e.stream {
		return
	}
	s.heartbeatInFlight = false
	switch {
	case e.cause == nil:
	case e.cause.answered && e.cause.code == codes.Unimplemented:
		s.noHeartbeats = true
	case e.cause.answered:
	case r.now.Before(r.staleUntil):
		s.heartbeatAt = r.now
	default:
		r.do(closeStream{stream: s.id})
		streamEnded{e.stream, *e.cause}.apply(r)
	}
}

func (r *renewal) close(s **stream) {
	if *s != nil {
		r.do(closeStream{stream: (*s).id})
		*s = nil
	}
}

func (r *renewal) do(a action) { r.out = append(r.out, a) }

func (r *renewal) next() time.Time {
	var first time.Time
	at := func(t time.Time) {
		if first.IsZero() || t.Before(first) {
			first = t
		}
	}
	switch {
	case r.desired == nil:
		if !r.disabling && (len(r.waiters) > 0 || r.current != nil) {
			at(r.disableAt)
		}
	case r.disabling || r.halted != "":
	case r.opening != nil:
		if !r.opening.claim.Equal(*r.desired) || r.opening.withdrawn {
			at(r.opening.since.Add(acceptTimeout))
		}
	case !r.holdsDesired():
		at(r.retryAt)
	}
	if s := r.current; s != nil {
		at(s.checkedAt.Add(suspendCheckInterval))
		if r.desired != nil && s.sendsHeartbeats() && !s.heartbeatInFlight {
			at(s.heartbeatAt)
		}
	}
	return first
}
