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

func (k *keep) disable(ask uint64) {
	if k.want != nil || len(k.asks) == 0 {
		k.withdrawAt, k.withdrawals, k.anybody = k.now, pace{}, false
		k.met = k.line != nil
	}
	k.want, k.halted, k.trouble, k.trying = nil, "", failure{}, ""
	k.asks = append(k.asks, ask)
}

// forget: the caller of a Disable waits no longer. What it asked for goes on.
func (k *keep) forget(ask uint64) {
	k.asks = slices.DeleteFunc(k.asks, func(id uint64) bool { return id == ask })
}

// letGo asks the plugin to take the devices back for as long as somebody waits
// for that or a stream stands: a stream that is just dropped counts as lost, and
// a hold time would run.
func (k *keep) letGo() {
	if k.withdrawing || (len(k.asks) == 0 && k.line == nil) || k.now.Before(k.withdrawAt) {
		return
	}
	session := ""
	if k.line != nil && !k.anybody {
		session = k.line.session
	}
	k.withdrawing = true
	k.do(withdraw{session: session})
}

func (k *keep) withdrawn(e withdrawn) {
	k.withdrawing = false
	if k.want != nil { // who waited is answered already
		k.drop(&k.line)
		k.drop(&k.opening)
		return
	}
	why := e.why
	if why == nil {
		k.met = true
		if k.opening != nil { // the plugin may accept it after this
			k.withdrawAgain(false)
			return
		}
		k.drop(&k.line)
		k.settle(e.result, nil)
		return
	}
	k.trouble = *why
	k.met = k.met || why.said || !why.nobody && !why.fixed // there was a connection: the plugin was there
	switch {
	case why.said:
		k.declined(*why)
	case why.nobody && !k.met && k.opening == nil:
		k.settle(Withdrawal{Reason: why.reason}, nil)
	case why.fixed:
		k.settle(Withdrawal{Reason: why.reason}, why.err)
	default: // it is restarting, or does not answer: afterwards it knows
		k.withdrawAgain(false)
	}
}

// declined: the plugin itself has not done it.
func (k *keep) declined(why failure) {
	switch why.code {
	case codes.DeadlineExceeded: // it goes on
		k.withdrawAt, k.withdrawals = k.now, pace{}
	case codes.Unavailable: // it ends, which takes everything back; the next one knows
		k.withdrawAgain(false)
	case codes.Unimplemented:
		k.drop(&k.line)
		k.drop(&k.opening)
		k.settle(Withdrawal{Reason: "the plugin has no DisableDevices: the stream was closed, and nobody tells when the devices are withdrawn"}, nil)
	case codes.FailedPrecondition:
		if k.line != nil && k.line.session != "" && !k.anybody {
			k.anybody = true // somebody else holds them
			k.withdrawAt = k.now
			return
		}
		k.drop(&k.line)
		k.settle(Withdrawal{Reason: why.reason}, nil)
	case codes.Aborted:
		if k.opening != nil || k.line != nil { // by a stream of ours that was on its way
			k.withdrawAgain(false)
			return
		}
		k.settle(Withdrawal{Reason: why.reason}, why.err)
	default:
		if len(k.asks) == 0 {
			k.withdrawAgain(true)
			return
		}
		k.settle(Withdrawal{Reason: why.reason}, why.err)
		k.withdrawAgain(true)
	}
}

func (k *keep) withdrawAgain(slow bool) {
	k.withdrawAt = k.now.Add(k.withdrawals.next(slow, k.spread))
}

// settle answers everybody who waits.
func (k *keep) settle(w Withdrawal, err error) {
	if err != nil {
		err = fmt.Errorf("take the devices back: %w", err)
	}
	for _, id := range k.asks {
		k.do(answer{ask: id, result: w, err: err})
	}
	k.asks = nil
	if w.Acknowledged {
		k.trouble = failure{}
	}
	k.withdrawAt = k.now.Add(time.Second) // for a stream that still stands
}
