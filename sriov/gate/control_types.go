package gate

import (
	"time"

	"google.golang.org/grpc/codes"
)

// Claim is what an EnableDevices asks for.
type Claim struct {
	Session    string // of the stream; unique, made by the caller
	UID        string // of the node state; "" is not known
	Generation int64
	Hash       string        // of the configuration that is meant; "" is any
	Lease      time.Duration // 0: none
	Hold       time.Duration // after an unexpected loss
	Node       string        // for people
}

// State is the published state of the plugin.
type State string

// The states.
const (
	Initializing State = "INITIALIZING"
	Serving      State = "SERVING"
	Failed       State = "ERROR"
	Stopping     State = "STOPPING"
)

// Holding is who answers for the devices.
type Holding string

// The ways.
const (
	NotControlled Holding = "none"    // nobody needs to
	Waiting       Holding = "waiting" // nobody does
	Live          Holding = "held"    // the holder of a stream
	Lost          Holding = "holding" // the holder is lost, and its hold time runs
)

// Status is how the plugin is.
type Status struct {
	State      State
	Holding    Holding
	Pools      int // resources that are offered
	Devices    int // that pods may get
	Generation int64
	UID        string
	Hash       string // of the plugin's own configuration
	Node       string
	LeaseEnds  time.Time // zero: no lease
	HoldEnds   time.Time // zero: no hold runs
	Error      string
	Resources  map[string]Report
}

// Timers of a Control.
const (
	TimerLease Timer = "lease"
	TimerHold  Timer = "hold"
	TimerBound Timer = "bound" // a withdrawal should have ended
	TimerScan  Timer = "scan"  // scan again after one that failed
)

// ControlEvent is something that happened to the plugin as a whole.
type ControlEvent interface{ controlEvent() }

// ControlAction is something that the plugin as a whole wants done.
type ControlAction interface{ controlAction() }

// Events of a Control.
type (
	// Enable is a call of EnableDevices. Where its hash is another than the last
	// Configured said, the caller reads its configuration again first.
	Enable struct{ Claim Claim }
	// Closed is the end of a stream, from whichever side.
	Closed struct{ Session string }
	// Heartbeat is a call, numbered by the caller.
	Heartbeat struct {
		Call    uint64
		Session string
	}
	// Disable is a call. An empty session means any holder.
	Disable struct {
		Call    uint64
		Session string
	}
	// DisableGone is a Disable whose caller waits no longer.
	DisableGone struct{ Call uint64 }
	// Configured tells the configuration's hash and the resources it has. It
	// comes before anything else.
	Configured struct {
		Hash      string
		Resources []string
	}
	// Scanned answers Scan, after the resources have their new snapshots.
	Scanned struct {
		Seq uint64
		Err error
	}
	// Told is a resource's Tell.
	Told struct {
		Resource string
		Report   Report
	}
	// Expired is a timer's end.
	Expired struct{ Timer Timer }
	// Quit takes everything back and ends the plugin.
	Quit struct{}
)

// Actions of a Control.
type (
	// Accept tells that a stream holds the devices now; its first status follows.
	Accept struct{ Session string }
	// End ends a stream.
	End struct {
		Session string
		Code    codes.Code
		Reason  string
	}
	// Beat answers a Heartbeat.
	Beat struct {
		Call   uint64
		Code   codes.Code
		Reason string
		Lease  time.Duration
	}
	// Disabled answers a Disable. With OK everything is withdrawn.
	Disabled struct {
		Call      uint64
		Code      codes.Code
		Reason    string
		Confirmed bool              // by the kubelet, for every resource it knows
		InUse     map[string][]Held // by resource; with Confirmed only
	}
	// Scan reads anew what there is and gives each resource its snapshot.
	Scan struct{ Seq uint64 }
	// To is an event for a resource: Open, Close, Shutdown or Halt.
	To struct {
		Resource string
		Event    ResourceEvent
	}
	// Publish is how the plugin is, after each change; every stream gets it.
	Publish struct{ Status Status }
	// Set sets a timer; an earlier deadline of it no longer counts.
	Set struct {
		Timer Timer
		At    time.Time
	}
	// Exit tells that the plugin may end; nothing follows.
	Exit struct{}
)

func (Enable) controlEvent()      {}
func (Closed) controlEvent()      {}
func (Heartbeat) controlEvent()   {}
func (Disable) controlEvent()     {}
func (DisableGone) controlEvent() {}
func (Configured) controlEvent()  {}
func (Scanned) controlEvent()     {}
func (Told) controlEvent()        {}
func (Expired) controlEvent()     {}
func (Quit) controlEvent()        {}

func (Accept) controlAction()   {}
func (End) controlAction()      {}
func (Beat) controlAction()     {}
func (Disabled) controlAction() {}
func (Scan) controlAction()     {}
func (To) controlAction()       {}
func (Publish) controlAction()  {}
func (Set) controlAction()      {}
func (Exit) controlAction()     {}
