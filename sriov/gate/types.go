package gate

import (
	"cmp"
	"fmt"
	"maps"
	"reflect"
	"time"

	"google.golang.org/grpc/codes"
)

// Claim is a validated EnableDevices call: no number is negative.
type Claim struct {
	UID        string // of the SriovNetworkNodeState
	Generation int64
	Hash       string        // of the plugin's configuration; "": any
	Node       string        // for messages
	Lease      time.Duration // 0: none
	Hold       time.Duration // after an unexpected disconnect
	Closed     Closed
}

// Equal reports whether the claims are the same.
func (c Claim) Equal(o Claim) bool {
	if !maps.Equal(c.Closed, o.Closed) {
		return false
	}
	c.Closed, o.Closed = nil, nil
	return reflect.DeepEqual(c, o)
}

// Closed has the reason of each function whose devices are withdrawn, by PCI
// address. That of a PF closes all its functions.
type Closed map[string]string

// Reason returns why a device is withdrawn; "": it is not.
func (c Closed) Reason(d Device) string {
	for _, address := range []string{d.Function, d.PF} {
		if reason, closed := c[address]; closed && address != "" {
			return cmp.Or(reason, "no reason given")
		}
	}
	return ""
}

// with returns the functions of both.
func (c Closed) with(more Closed) Closed {
	if len(more) == 0 {
		return c
	}
	all := maps.Clone(more)
	maps.Copy(all, c)
	return all
}

// within reports whether o closes all functions of c.
func (c Closed) within(o Closed) bool {
	for address := range c {
		if _, closed := o[address]; !closed {
			return false
		}
	}
	return true
}

// End is the end of a stream or the refusal of a call. Code OK ends a stream
// after DisableDevices.
type End struct {
	Code   codes.Code
	Reason string
}

func (e *End) Error() string { return fmt.Sprintf("%s (%s)", e.Reason, e.Code) }

// Withdrawal is the result of a withdrawal of all devices.
type Withdrawal struct {
	// No Allocate is in flight, and the kubelet has a list without a healthy
	// device.
	Acknowledged bool
	// By PodResources, for every resource that the kubelet knows: no device is
	// allocatable. False with Acknowledged: the kubelet does not serve it.
	Confirmed bool
	InUse     []Held // by running pods; valid only with Confirmed
	Reason    string // not acknowledged
}

// State is the plugin's published state.
type State string

const (
	Initializing State = "INITIALIZING"
	Serving      State = "SERVING"
	Failed       State = "ERROR"
	Stopping     State = "STOPPING"
)

// HolderState is the state of the claim on the devices.
type HolderState string

const (
	NotControlled HolderState = "none"
	Waiting       HolderState = "waiting" // no holder
	Live          HolderState = "held"
	Lost          HolderState = "holding" // the stream was lost, the hold time runs
)

// Status is the plugin's status.
type Status struct {
	State      State
	Holding    HolderState
	Pools      int // offered resources
	Devices    int // that pods can get
	Generation int64
	UID        string
	Hash       string // of the plugin's configuration
	Node       string
	LeaseEnds  time.Time
	HoldEnds   time.Time
	Error      string
	Closed     Closed // of the holder
	Withdrawn  bool   // the devices of Closed
	Resources  map[string]Report
}

// Phase is a resource's phase.
type Phase string

const (
	Idle        Phase = "idle"        // never opened; unknown to the kubelet
	Offered     Phase = "offered"     // pods can get the healthy devices
	Withdrawing Phase = "withdrawing" // the kubelet might still hand out devices
	Withdrawn   Phase = "withdrawn"   // no allocatable device, no Allocate
	Stopped     Phase = "stopped"
)

// Report is a resource's status.
type Report struct {
	Phase      Phase
	Openings   int    // number of openings so far
	Devices    int    // existing
	Offered    int    // healthy for the kubelet
	Allocating int    // calls in flight
	Streaming  bool   // ListAndWatch is open
	Error      string // what prevents progress
}

// Held is a device that a pod uses.
type Held struct {
	Resource, ID, Namespace, Pod, Container string
}

// Device is a device of a resource, or an entry of the kubelet's list.
type Device struct {
	ID      string
	Healthy bool
	// PCI addresses of its function and of that function's PF; not in a list.
	Function, PF string
}

// Timer names a deadline of a Gate or of a resource.
type Timer string

const (
	TimerLease    Timer = "lease"
	TimerHold     Timer = "hold"
	TimerWithdraw Timer = "bound"
	TimerScan     Timer = "scan" // after a failure

	TimerRegister Timer = "register"
	TimerDrain    Timer = "drain" // in-flight calls
	TimerRemove   Timer = "quiet" // ids can leave the list
	TimerConfirm  Timer = "confirm"
	TimerStop     Timer = "linger"
)

type timers map[Timer]time.Time

// due removes a timer whose deadline has passed.
func (t timers) due(name Timer, now time.Time) bool {
	at, isSet := t[name]
	if !isSet || now.Before(at) {
		return false
	}
	delete(t, name)
	return true
}

func (t timers) next(first time.Time) time.Time {
	for _, at := range t {
		if first.IsZero() || at.Before(first) {
			first = at
		}
	}
	return first
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
