package control

import (
	"reflect"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/cleatproject/cleat/sriov/gate"
)

// Claim is what a Keeper answers for.
type Claim struct {
	UID        string // of the SriovNetworkNodeState; empty is not known
	Generation int64
	Hash       string // of the plugin's configuration that is meant; empty is any
	Node       string
	Lease      time.Duration // 0: none; else from MinLease to MaxLease
	Hold       time.Duration // after an unexpected loss; at most MaxHold
}

// KeeperState is how far a Keeper is.
type KeeperState string

// The states. In the last three nothing is tried until the next Enable.
const (
	StateIdle       KeeperState = "idle"        // nothing is wanted, nothing held
	StateDisabling  KeeperState = "disabling"   // the devices are being taken back
	StateEnabling   KeeperState = "enabling"    // on the way, or on the way again
	StateHeld       KeeperState = "held"        // the plugin has accepted a claim
	StateNobody     KeeperState = "nobody"      // nobody serves the control socket
	StateRefused    KeeperState = "refused"     // the plugin says no; tried again with pauses that grow
	StateSuperseded KeeperState = "superseded"  // another daemon took over
	StateDisabled   KeeperState = "disabled"    // somebody else had the devices taken back
	StateStale      KeeperState = "stood-still" // this process stood still and lost them; see KeeperConfig.Recheck
)

// KeeperStatus is how a Keeper is.
type KeeperStatus struct {
	State KeeperState
	Since time.Time // of State
	// Wanted is the claim that is to be held, Held the one that the plugin has
	// accepted; they differ while one takes over from the other.
	Wanted, Held *Claim
	// Extended: the plugin has our extensions. Known with Held only.
	Extended bool
	// Plugin is what it told on the stream last, at Heard. With Held only.
	Plugin gate.Status
	Heard  time.Time
	// Code and Reason are the last trouble; OK and empty without.
	Code   codes.Code
	Reason string
	Retry  time.Time // when the next attempt is made; zero: none is needed, or one is under way
}

// failure is why a call has not succeeded.
type failure struct {
	said   bool // by the plugin itself, with that code
	code   codes.Code
	nobody bool // nobody serves the socket
	fixed  bool // it will not change by itself: the socket may not be used
	other  bool // after Aborted: somebody else holds the devices
	reason string
	err    error
}

// label is a failure in metrics.
func (f failure) label() string {
	if f.said {
		return f.code.String()
	}
	return "connection"
}

type (
	keepEvent  interface{ keepEvent() }
	keepAction interface{ keepAction() }
)

// Events of a keep.
type (
	wanted      struct{ claim Claim }
	unwanted    struct{ ask uint64 }
	askGone     struct{ ask uint64 }
	statusHeard struct {
		stream  uint64
		session string
		status  gate.Status
	}
	// streamEnded is the end of a stream that was asked for, however far it came.
	streamEnded struct {
		stream uint64
		why    failure
	}
	beaten struct {
		stream uint64
		why    *failure
	}
	withdrawn struct {
		result Withdrawal
		why    *failure
	}
	tick struct{}
)

// Actions of a keep.
type (
	// open connects and calls EnableDevices.
	open struct {
		stream uint64
		claim  Claim
	}
	drop struct{ stream uint64 }
	beat struct {
		stream  uint64
		session string
		within  time.Duration
	}
	// withdraw connects and calls DisableDevices.
	withdraw struct{ session string }
	answer   struct {
		ask    uint64
		result Withdrawal
		err    error
	}
	// lost counts a stream that was accepted and ended unexpectedly.
	lost struct{ by string }
	tell struct{ status KeeperStatus }
)

func (wanted) keepEvent()      {}
func (unwanted) keepEvent()    {}
func (askGone) keepEvent()     {}
func (statusHeard) keepEvent() {}
func (streamEnded) keepEvent() {}
func (beaten) keepEvent()      {}
func (withdrawn) keepEvent()   {}
func (tick) keepEvent()        {}

func (open) keepAction()     {}
func (drop) keepAction()     {}
func (beat) keepAction()     {}
func (withdraw) keepAction() {}
func (answer) keepAction()   {}
func (lost) keepAction()     {}
func (tell) keepAction()     {}

// status is how the keeper is.
func (k *keep) status() KeeperStatus {
	s := KeeperStatus{State: StateIdle, Wanted: k.want, Code: k.trouble.code, Reason: k.trouble.reason}
	if l := k.line; l != nil {
		s.Held, s.Extended, s.Plugin, s.Heard = &l.claim, l.session != "", l.status, l.heard
		if l.silent != "" {
			s.Reason = l.silent
		}
	}
	switch {
	case k.want == nil && (k.withdrawing || k.line != nil || len(k.asks) > 0):
		s.State = StateDisabling
	case k.want == nil:
	case k.halted != "":
		s.State = k.halted
	case k.line != nil && !k.line.doomed:
		s.State = StateHeld
	case k.trying != "":
		s.State = k.trying
	default:
		s.State = StateEnabling
	}
	if k.want != nil && k.halted == "" && k.opening == nil && k.retryAt.After(k.now) {
		s.Retry = k.retryAt
	}
	s.Since = k.told.Since
	if s.State != k.told.State {
		s.Since = k.now
	}
	return s
}

func (k *keep) publish() {
	if s := k.status(); !reflect.DeepEqual(s, k.told) {
		k.told = s
		k.do(tell{s})
	}
}
