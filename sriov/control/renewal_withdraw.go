package control

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
)

// errEnabled answers a Disable that an Enable overtook.
var errEnabled = errors.New("the devices were enabled again meanwhile")

func (e disableRequested) apply(r *renewal) {
	if r.desired != nil || len(r.waiters) == 0 {
		r.disableAt, r.disableBackoff, r.anyHolder = r.now, backoff{}, false
		r.reached = r.current != nil
	}
	r.desired, r.halted, r.failure, r.retryState = nil, "", failure{}, ""
	r.waiters = append(r.waiters, e.waiter)
}

// apply removes a caller that no longer waits. The withdrawal continues.
func (e waiterGone) apply(r *renewal) {
	r.waiters = slices.DeleteFunc(r.waiters, func(w waiter) bool { return w == e.waiter })
}

// withdraw calls DisableDevices while a caller waits or a stream is open. To
// close the stream would count as a loss, and a hold time would run.
func (r *renewal) withdraw() {
	if r.disabling || (len(r.waiters) == 0 && r.current == nil) || r.now.Before(r.disableAt) {
		return
	}
	session := ""
	if r.current != nil && !r.anyHolder {
		session = r.current.session
	}
	r.disabling = true
	r.do(disable{session: session})
}

func (e disableDone) apply(r *renewal) {
	r.disabling = false
	if r.desired != nil { // the waiters have their answer
		r.close(&r.current)
		r.close(&r.opening)
		return
	}
	why := e.why
	if why == nil {
		r.reached = true
		if r.opening != nil { // the plugin may accept it after this
			r.disableAgain(false)
			return
		}
		r.close(&r.current)
		r.finish(e.result, nil)
		return
	}
	r.failure = *why
	r.reached = r.reached || why.answered || !why.notServed && !why.permanent // there was a connection
	switch {
	case why.answered:
		r.declined(*why)
	case why.notServed && !r.reached && r.opening == nil:
		r.finish(Withdrawal{Reason: why.reason}, nil)
	case why.permanent:
		r.finish(Withdrawal{Reason: why.reason}, why.err)
	default: // it restarts, or does not answer: ask again
		r.disableAgain(false)
	}
}

// declined handles an error of the plugin itself.
func (r *renewal) declined(why failure) {
	switch why.code {
	case codes.DeadlineExceeded: // the withdrawal continues there
		r.disableAt, r.disableBackoff = r.now, backoff{}
	case codes.Unavailable: // the plugin stops, which withdraws everything; the next one can confirm it
		r.disableAgain(false)
	case codes.Unimplemented:
		r.close(&r.current)
		r.close(&r.opening)
		r.finish(Withdrawal{Reason: "the plugin has no DisableDevices: the stream was closed, and the withdrawal is not acknowledged"}, nil)
	case codes.FailedPrecondition:
		if r.current != nil && r.current.session != "" && !r.anyHolder {
			r.anyHolder = true // another daemon holds them
			r.disableAt = r.now
			return
		}
		r.close(&r.current)
		r.finish(Withdrawal{Reason: why.reason}, nil)
	case codes.Aborted:
		if r.opening != nil || r.current != nil { // by a stream of our own that was opening
			r.disableAgain(false)
			return
		}
		r.finish(Withdrawal{Reason: why.reason}, why.err)
	default:
		if len(r.waiters) > 0 {
			r.finish(Withdrawal{Reason: why.reason}, why.err)
		}
		r.disableAgain(true)
	}
}

func (r *renewal) disableAgain(slow bool) {
	r.disableAt = r.now.Add(r.disableBackoff.next(slow, r.jitter))
}

// finish answers all waiters.
func (r *renewal) finish(w Withdrawal, err error) {
	if err != nil {
		err = fmt.Errorf("withdraw the devices: %w", err)
	}
	for _, waiter := range r.waiters {
		r.do(answer{waiter: waiter, result: w, err: err})
	}
	r.waiters = nil
	if w.Acknowledged {
		r.failure = failure{}
	}
	r.disableAt = r.now.Add(time.Second) // for a stream that is still open
}
