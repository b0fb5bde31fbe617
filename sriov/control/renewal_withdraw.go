package control

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/cleatproject/cleat/sriov/gate"
)

// errEnabled: a later Enable replaced the Disable.
var errEnabled = errors.New("the devices were enabled again")

func (r *renewal) disable(w *disableCall) {
	if r.desired != nil || len(r.waiters) == 0 {
		r.disableAt, r.disableBackoff, r.anyHolder = r.now, backoff{}, false
		r.reached = r.current != nil
	}
	r.desired, r.halted, r.failure, r.retryState = nil, "", failure{}, ""
	r.waiters = append(r.waiters, w)
}

// cancel: the withdrawal continues without the caller.
func (r *renewal) cancel(w *disableCall) {
	r.waiters = slices.DeleteFunc(r.waiters, func(other *disableCall) bool { return other == w })
}

// withdraw calls DisableDevices: closing the stream would count as a loss and
// start the hold time.
func (r *renewal) withdraw() {
	if r.disabling || (len(r.waiters) == 0 && r.current == nil) || r.now.Before(r.disableAt) {
		return
	}
	session := ""
	if r.current != nil && !r.anyHolder {
		session = r.current.session
	}
	r.disabling = true
	r.dialer.disable(session)
}

func (r *renewal) disabled(result gate.Withdrawal, why *failure) {
	r.disabling = false
	if r.desired != nil {
		r.close(&r.current)
		r.close(&r.opening)
		return
	}
	if why == nil {
		r.reached = true
		if r.opening != nil { // the plugin might accept it after this
			r.retryDisable(false)
			return
		}
		r.close(&r.current)
		r.finish(result, nil)
		return
	}
	r.failure = *why
	r.reached = r.reached || why.answered || !why.notServed && !why.permanent
	switch {
	case why.answered:
		r.handleRefusal(*why)
	case why.notServed && !r.reached && r.opening == nil:
		r.finish(gate.Withdrawal{Reason: why.reason}, nil)
	case why.permanent:
		r.finish(gate.Withdrawal{Reason: why.reason}, why.err)
	default: // restarts or does not answer
		r.retryDisable(false)
	}
}

func (r *renewal) handleRefusal(why failure) {
	switch why.code {
	case codes.DeadlineExceeded: // the withdrawal continues
		r.disableAt, r.disableBackoff = r.now, backoff{}
	case codes.Unavailable: // it shuts down and withdraws; its successor can confirm
		r.retryDisable(false)
	case codes.Unimplemented:
		r.close(&r.current)
		r.close(&r.opening)
		r.finish(gate.Withdrawal{Reason: "the plugin does not implement DisableDevices: the stream was closed, and the withdrawal is not acknowledged"}, nil)
	case codes.FailedPrecondition:
		if r.current != nil && r.current.session != "" && !r.anyHolder {
			r.anyHolder = true
			r.disableAt = r.now
			return
		}
		r.close(&r.current)
		r.finish(gate.Withdrawal{Reason: why.reason}, nil)
	case codes.Aborted:
		if r.opening != nil || r.current != nil { // by this renewer's opening stream
			r.retryDisable(false)
			return
		}
		r.finish(gate.Withdrawal{Reason: why.reason}, why.err)
	default:
		if len(r.waiters) > 0 {
			r.finish(gate.Withdrawal{Reason: why.reason}, why.err)
		}
		r.retryDisable(true)
	}
}

func (r *renewal) retryDisable(slow bool) {
	r.disableAt = r.now.Add(r.disableBackoff.next(slow, r.jitter))
}

func (r *renewal) finish(w gate.Withdrawal, err error) {
	if err != nil {
		err = fmt.Errorf("withdraw the devices: %w", err)
	}
	for _, waiter := range r.waiters {
		waiter.done, waiter.result, waiter.err = true, w, err
	}
	r.waiters = nil
	if w.Acknowledged {
		r.failure = failure{}
	}
	r.disableAt = r.now.Add(time.Second) // a stream is still open
}
