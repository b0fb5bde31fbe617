package control

import (
	"context"
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

// dialer does the I/O of a renewal. A method starts the work and returns.
type dialer interface {
	// open calls EnableDevices for a stream; received and ended follow.
	open(s *stream)
	// heartbeat calls Heartbeat; beaten follows.
	heartbeat(s *stream, timeout time.Duration)
	// disable calls DisableDevices; disabled follows.
	disable(session string)
	// lost counts the loss of an accepted stream.
	lost(code string)
}

// disableCall is a call of Renewer.Disable; once it is done, the others are final.
type disableCall struct {
	done   bool
	result gate.Withdrawal
	err    error
}

// renewal is a Renewer's state machine, without I/O.
type renewal struct {
	dialer dialer // nil: Run was not called
	jitter func(time.Duration) time.Duration

	now       time.Time
	published RenewerStatus

	desired    *gate.Claim
	halted     RenewerState // waits for the next Enable
	failure    failure      // last
	retryState RenewerState // until the retry

	opening, current *stream // not accepted; accepted
	retryAt          time.Time
	backoff          backoff
	staleUntil       time.Time // a loss until then counts as caused by a suspended process

	waiters        []*disableCall
	disabling      bool // in flight
	anyHolder      bool // not only this renewer's session
	reached        bool // since Disable
	disableAt      time.Time
	disableBackoff backoff
}

type stream struct {
	claim     gate.Claim
	since     time.Time // opened, or accepted
	session   string    // empty without the extensions
	status    gate.Status
	checkedAt time.Time // last event
	withdrawn bool      // DisableDevices in flight ends the stream

	heartbeatAt       time.Time
	heartbeatInFlight bool
	noHeartbeats      bool // not implemented by the plugin

	cancel context.CancelFunc // ends it
	client *Client            // of an accepted stream
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

func (r *renewal) step(now time.Time, event func()) {
	if now.After(r.now) {
		r.now = now
	}
	r.detectSuspension()
	event()
	switch {
	case r.dialer == nil:
	case r.desired == nil:
		r.withdraw()
	default:
		r.open()
		r.heartbeat()
	}
	r.published = r.status()
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

func (r *renewal) enable(c gate.Claim) {
	if r.desired != nil && r.desired.Equal(c) && r.halted == "" {
		return
	}
	for _, w := range r.waiters {
		w.done, w.err = true, errEnabled
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
	r.opening = &stream{claim: *r.desired, since: r.now}
	r.dialer.open(r.opening)
}

func (r *renewal) holdsDesired() bool {
	return r.current != nil && r.current.claim.Equal(*r.desired) && !r.current.withdrawn
}

func (r *renewal) received(s *stream, session string, status gate.Status) {
	if s == r.opening {
		r.close(&r.current)
		r.current, r.opening = s, nil
		s.since, s.session, s.checkedAt = r.now, session, r.now
		s.heartbeatAt = r.now.Add(s.heartbeatInterval())
		r.failure, r.retryState, r.staleUntil = failure{}, "", time.Time{}
		r.reached = true
	}
	s.status = status
}

// ended reports the end of a stream, accepted or not.
func (r *renewal) ended(s *stream, cause failure) {
	switch s {
	case r.opening:
		r.opening = nil
		if r.desired != nil && !s.withdrawn {
			r.failed(cause)
		}
	case r.current:
		r.current = nil
		if r.now.Sub(s.since) >= backoffReset {
			r.backoff = backoff{}
		}
		if r.desired == nil || s.withdrawn {
			return
		}
		if r.opening == nil || cause.code != codes.Aborted { // caused by the opening stream taking over
			r.dialer.lost(cause.label())
		}
		if r.opening == nil {
			r.failed(cause)
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
	r.dialer.heartbeat(s, s.heartbeatTimeout())
}

// A plugin that does not answer hangs: the stream ends. One that answers ends the
// stream itself if the lease was lost. After a suspension of this process a
// failure shows nothing about the plugin.
func (r *renewal) beaten(s *stream, cause *failure) {
	if s != r.current {
		return
	}
	s.heartbeatInFlight = false
	switch {
	case cause == nil:
	case cause.answered && cause.code == codes.Unimplemented:
		s.noHeartbeats = true
	case cause.answered:
	case r.now.Before(r.staleUntil):
		s.heartbeatAt = r.now
	default:
		s.cancel()
		r.ended(s, *cause)
	}
}

func (r *renewal) close(s **stream) {
	if *s != nil {
		(*s).cancel()
		*s = nil
	}
}

func (r *renewal) next() time.Time {
	var first time.Time
	at := func(t time.Time) {
		if first.IsZero() || t.Before(first) {
			first = t
		}
	}
	switch {
	case r.dialer == nil:
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
