package gate

import (
	"time"

	"google.golang.org/grpc/codes"
)

// Claim is a call of EnableDevices that sriov/control has checked: no number in it
// is negative.
type Claim struct {
	UID        string // of the SriovNetworkNodeState; "" is not known
	Generation int64
	Hash       string        // of the plugin's configuration that is meant; "" is any
	Node       string        // for logs and messages
	Lease      time.Duration // 0: none
	Hold       time.Duration // how long the devices stay offered after an unexpected loss
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

// Holding says who holds the devices.
type Holding string

// The values of Holding.
const (
	NotControlled Holding = "none"    // no holder is needed
	Waiting       Holding = "waiting" // no holder
	Live          Holding = "held"    // the holder of a stream
	Lost          Holding = "holding" // the holder is lost, and its hold time runs
)

// Status is the status of the plugin as a whole.
type Status struct {
	State      State
	Holding    Holding
	Pools      int // resources that are offered
	Devices    int // that pods can get
	Generation int64
	UID        string
	Hash       string // of the plugin's own configuration
	Node       string
	LeaseEnds  time.Time // zero: no lease
	HoldEnds   time.Time // zero: no hold runs
	Error      string
	Resources  map[string]Report
}

// Phase is the phase of a resource.
type Phase string

// The phases of a resource.
const (
	Idle        Phase = "idle"        // never opened; the kubelet does not know it
	Offered     Phase = "offered"     // pods can get the healthy devices
	Withdrawing Phase = "withdrawing" // Allocate is refused; the kubelet may still offer devices
	Withdrawn   Phase = "withdrawn"   // the kubelet offers none, and no Allocate runs
	Stopped     Phase = "stopped"     // the server has ended
)

// Report is the status of a resource.
type Report struct {
	Phase      Phase
	Epoch      uint64 // of the last Open or Close
	Devices    int    // that exist
	Offered    int    // healthy devices in the kubelet's list; 0 unless Phase is Offered
	Allocating int    // calls of Allocate that run
	Streaming  bool   // the kubelet has an open ListAndWatch
	Confirmed  bool   // PodResources confirmed that the kubelet offers none
	InUse      []Held // known with Confirmed only
	Error      string // what stands in the way
}

// Held is a device that a running pod has. Unknown fields are empty.
type Held struct {
	Resource, ID, Namespace, Pod, Container string
}

// Device is an entry of the kubelet's list.
type Device struct {
	ID      string
	Healthy bool
}

// Timer names a timer of a machine.
type Timer string

// Timers of a Gate, then of a Resource.
const (
	TimerLease Timer = "lease"
	TimerHold  Timer = "hold"
	TimerBound Timer = "bound" // of a withdrawal
	TimerScan  Timer = "scan"  // scan again after a failure

	TimerRegister Timer = "register" // register again
	TimerDrain    Timer = "drain"    // stop waiting for running calls before the devices go unhealthy
	TimerQuiet    Timer = "quiet"    // ids can leave the list
	TimerConfirm  Timer = "confirm"  // ask PodResources again
	TimerLinger   Timer = "linger"   // stop the server
)

// The inputs and outputs of the machines: the types below, and no others.
type (
	// Event is an input of a Gate.
	Event interface{ apply(*Gate) }
	// ResourceEvent is an input of a Resource.
	ResourceEvent interface{ applyTo(*Resource) }
	// Action is an output of a Gate or of a Resource.
	Action interface{ action() }
)

// Events of a Gate.
type (
	// Enable is a call of EnableDevices. Session is the caller's name for its
	// stream and unique. If the claim has another hash than the last Configured,
	// the caller reads its configuration first.
	Enable struct {
		Session string
		Claim   Claim
	}
	// Closed is the end of a stream, from either side.
	Closed struct{ Session string }
	// Heartbeat is a call, numbered by the caller.
	Heartbeat struct {
		Call    uint64
		Session string
	}
	// Disable is a call of DisableDevices. An empty session means any holder.
	Disable struct {
		Call    uint64
		Session string
	}
	// DisableGone is the end of a Disable whose caller no longer waits.
	DisableGone struct{ Call uint64 }
	// Configured is a new configuration: its hash and resources. It is the first
	// event.
	Configured struct {
		Hash      string
		Resources []string
	}
	// Scanned answers Scan, after the resources have their new snapshots.
	Scanned struct {
		Seq uint64
		Err error
	}
	// Reported is a Notify of a resource.
	Reported struct {
		Resource string
		Report   Report
	}
	// Quit withdraws everything and ends the plugin.
	Quit struct{}
)

// Expired is the end of a timer, of a Gate or of a Resource.
type Expired struct{ Timer Timer }

// Events of a Resource.
type (
	// Open lets the resource offer the devices of its snapshot.
	Open struct{ Epoch uint64 }
	// Close withdraws the devices.
	Close struct{ Epoch uint64 }
	// Shutdown withdraws the devices and then stops.
	Shutdown struct{ Epoch uint64 }
	// Halt stops at once.
	Halt struct{}
	// Snapshot replaces the devices that exist. Ids are unique.
	Snapshot struct{ Devices []Device }

	// AllocateBegin is a new call, before anything was done for it.
	AllocateBegin struct {
		Call    uint64
		Devices []string
	}
	// AllocateCheck is an admitted call that is about to answer OK.
	AllocateCheck struct{ Call uint64 }
	// AllocateEnd is an admitted call whose handler has returned.
	AllocateEnd struct{ Call uint64 }

	// Served answers Serve.
	Served struct{ Err error }
	// Registered answers Register.
	Registered struct{ Err error }
	// StreamUp is a call of ListAndWatch, numbered by the caller from 1.
	StreamUp struct{ Stream uint64 }
	// StreamDown is its end.
	StreamDown struct{ Stream uint64 }
	// Sent says that a Send was passed to the stream.
	Sent struct{ Stream, Seq uint64 }
	// KubeletStarted says that the kubelet has created a new socket.
	KubeletStarted struct{}
	// Confirmed answers Confirm. If Known is false nobody could be asked, and the
	// rest means nothing.
	Confirmed struct {
		Epoch   uint64
		Known   bool
		Offered int // devices of this resource that the kubelet still offers
		InUse   []Held
	}
)

// Actions of a Gate.
type (
	// End ends a stream, or refuses its claim.
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
		Confirmed bool   // by the kubelet, for every resource that it knows
		InUse     []Held // known with Confirmed only
	}
	// Scan reads the devices of the machine and gives each resource its snapshot.
	Scan struct{ Seq uint64 }
	// To is an event for a resource: Open, Close, Shutdown or Halt.
	To struct {
		Resource string
		Event    ResourceEvent
	}
	// Publish is the status for every stream, after each change and when a claim
	// is accepted.
	Publish struct{ Status Status }
	// Exit says that the plugin can end. It is the last action.
	Exit struct{}
)

// Set sets a timer, of a Gate or of a Resource, or moves it.
type Set struct {
	Timer Timer
	At    time.Time
}

// Actions of a Resource.
type (
	// Serve makes sure that the socket exists and is served. It never ends a
	// running server.
	Serve struct{}
	// Register registers the resource with the kubelet: by a call of Register, or
	// by a new socket in the directory of the plugin watcher.
	Register struct{}
	// Send is the list for a stream. A later one for the same stream replaces one
	// that was not passed on yet.
	Send struct {
		Stream, Seq uint64
		Devices     []Device // by id
	}
	// Admit lets a call continue.
	Admit struct{ Call uint64 }
	// Approve lets a call answer OK.
	Approve struct{ Call uint64 }
	// Refuse ends a call.
	Refuse struct {
		Call   uint64
		Code   codes.Code
		Reason string
	}
	// Confirm asks the kubelet's PodResources what it offers.
	Confirm struct{ Epoch uint64 }
	// Notify reports a change to the Gate.
	Notify struct{ Report Report }
	// Stop ends the server. Only the last Notify and refusals follow.
	Stop struct{}
)

func (End) action()      {}
func (Beat) action()     {}
func (Disabled) action() {}
func (Scan) action()     {}
func (To) action()       {}
func (Publish) action()  {}
func (Exit) action()     {}
func (Set) action()      {}
func (Serve) action()    {}
func (Register) action() {}
func (Send) action()     {}
func (Admit) action()    {}
func (Approve) action()  {}
func (Refuse) action()   {}
func (Confirm) action()  {}
func (Notify) action()   {}
func (Stop) action()     {}

// machine is what a Gate and a Resource have in common: the time of the current
// event, the timers, and the actions so far.
type machine struct {
	now    time.Time
	timers map[Timer]time.Time
	out    []Action
}

// begin begins a step. A time before that of the last event counts as the last.
func (m *machine) begin(at time.Time) {
	if at.After(m.now) {
		m.now = at
	}
	m.out = nil
}

func (m *machine) do(a Action) { m.out = append(m.out, a) }

func (m *machine) set(name Timer, at time.Time) {
	m.timers[name] = at
	m.do(Set{Timer: name, At: at})
}

// due reports whether a timer's deadline has passed, and clears it then.
func (m *machine) due(name Timer) bool {
	at, isSet := m.timers[name]
	if !isSet || m.now.Before(at) {
		return false
	}
	delete(m.timers, name)
	return true
}

// expired is due for an Expired, which may be early.
func (m *machine) expired(name Timer) bool {
	if at, isSet := m.timers[name]; isSet && m.now.Before(at) {
		m.set(name, at)
		return false
	}
	return m.due(name)
}
