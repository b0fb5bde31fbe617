package gate

import (
	"time"

	"google.golang.org/grpc/codes"
)

// Claim is an EnableDevices call that sriov/control has validated: no number in
// it is negative.
type Claim struct {
	UID        string // of the SriovNetworkNodeState; "": unknown
	Generation int64
	Hash       string        // expected hash of the plugin's configuration; "": any
	Node       string        // for logs and messages
	Lease      time.Duration // 0: none
	Hold       time.Duration // how long the devices stay offered after an unexpected disconnect
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

// HolderState is the state of the claim on the devices.
type Holding string

// Holder states.
const (
	NotControlled Holding = "none"    // no holder is needed
	Waiting       Holding = "waiting" // no holder
	Live          Holding = "held"    // the holder's stream is open
	Lost          Holding = "holding" // the stream was lost, and the hold time runs
)

// Status is the status of the plugin as a whole.
type Status struct {
	State      State
	Holding    Holding
	Pools      int // resources whose devices are offered
	Devices    int // devices that pods can get
	Generation int64
	UID        string
	Hash       string // of the plugin's own configuration
	Node       string
	LeaseEnds  time.Time // zero: no lease
	HoldEnds   time.Time // zero: hold time not running
	Error      string
	Resources  map[string]Report
}

// Phase is the phase of a resource.
type Phase string

// The phases of a resource.
const (
	Idle        Phase = "idle"        // never opened; the kubelet does not know it
	Offered     Phase = "offered"     // pods can get the healthy devices
	Withdrawing Phase = "withdrawing" // Allocate is refused; the kubelet might still hand out devices
	Withdrawn   Phase = "withdrawn"   // the kubelet lists no allocatable device, and no Allocate runs
	Stopped     Phase = "stopped"     // the server has ended
)

// Report is the status of a resource.
type Report struct {
	Phase      Phase
	Epoch      uint64 // of the last Open or Close
	Devices    int    // existing devices
	Offered    int    // healthy devices in the kubelet's list; 0 unless Phase is Offered
	Allocating int    // Allocate calls in flight
	Streaming  bool   // the kubelet has an open ListAndWatch
	Confirmed  bool   // PodResources confirmed that no device is allocatable
	InUse      []Held // valid only with Confirmed
	Error      string // what prevents progress; "": nothing
}

// Held is a device that a running pod uses. Unknown fields are empty.
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
	TimerLease    Timer = "lease"
	TimerHold     Timer = "hold"
	TimerWithdraw Timer = "bound" // of a withdrawal
	TimerScan     Timer = "scan"  // scan again after a failure

	TimerRegister Timer = "register" // register again
	TimerDrain    Timer = "drain"    // stop waiting for in-flight calls before the devices become unhealthy
	TimerRemove   Timer = "quiet"    // device ids can leave the list
	TimerConfirm  Timer = "confirm"  // query PodResources again
	TimerStop     Timer = "linger"   // stop the server
)

// Inputs and outputs of the state machines.
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
	// Enable is an EnableDevices call. Session is the caller's unique name for
	// its stream. If the claim has another hash than the last Configured, the
	// caller reads its configuration first.
	Enable struct {
		Session string
		Claim   Claim
	}
	// StreamClosed is the end of an EnableDevices stream, from either side.
	StreamClosed struct{ Session string }
	// Heartbeat is a Heartbeat call, numbered by the caller.
	Heartbeat struct {
		Call    uint64
		Session string
	}
	// Disable is a DisableDevices call. An empty session means any holder.
	Disable struct {
		Call    uint64
		Session string
	}
	// DisableCanceled reports that the caller of a Disable no longer waits.
	DisableCanceled struct{ Call uint64 }
	// Configured is a new configuration: its hash and resources. It is the
	// first event of a Gate.
	Configured struct {
		Hash      string
		Resources []string
	}
	// Scanned answers Scan, after the resources received their snapshots.
	Scanned struct {
		Seq uint64
		Err error
	}
	// Reported passes on a Notify of a resource.
	Reported struct {
		Resource string
		Report   Report
	}
	// Quit withdraws everything and ends the plugin.
	Quit struct{}
)

// Expired reports that a timer of a Gate or of a Resource fired.
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
	// Snapshot replaces the set of existing devices. Ids are unique.
	Snapshot struct{ Devices []Device }

	// AllocateBegin is a new call, before any work for it.
	AllocateBegin struct {
		Call    uint64
		Devices []string
	}
	// AllocateCheck is an admitted call that is about to answer OK.
	AllocateCheck struct{ Call uint64 }
	// AllocateEnd reports that the handler of an admitted call returned.
	AllocateEnd struct{ Call uint64 }

	// Served answers Serve.
	Served struct{ Err error }
	// Registered answers Register.
	Registered struct{ Err error }
	// StreamUp is a call of ListAndWatch, numbered by the caller from 1.
	StreamUp struct{ Stream uint64 }
	// StreamDown is the end of a ListAndWatch stream.
	StreamDown struct{ Stream uint64 }
	// Sent reports that a Send was passed to the stream.
	Sent struct{ Stream, Seq uint64 }
	// KubeletStarted reports that the kubelet created a new socket.
	KubeletStarted struct{}
	// Confirmed answers Confirm. If Known is false PodResources is not
	// available, and the other fields are not valid.
	Confirmed struct {
		Epoch   uint64
		Known   bool
		Offered int // devices of this resource that the kubelet still has as allocatable
		InUse   []Held
	}
)

// Actions of a Gate.
type (
	// EndStream ends an EnableDevices stream, or refuses its claim.
	EndStream struct {
		Session string
		Code    codes.Code
		Reason  string
	}
	// HeartbeatReply answers a Heartbeat.
	HeartbeatReply struct {
		Call   uint64
		Code   codes.Code
		Reason string
		Lease  time.Duration
	}
	// DisableReply answers a Disable. OK means that all devices are withdrawn.
	DisableReply struct {
		Call      uint64
		Code      codes.Code
		Reason    string
		Confirmed bool   // the kubelet confirmed it for every resource that it knows
		InUse     []Held // valid only with Confirmed
	}
	// Scan reads the devices of the node and sends each resource its snapshot.
	Scan struct{ Seq uint64 }
	// Forward passes an event to a resource: Open, Close, Shutdown or Halt.
	Forward struct {
		Resource string
		Event    ResourceEvent
	}
	// Publish is the status for every stream. It follows each change and each
	// accepted claim.
	Publish struct{ Status Status }
	// Exit reports that the plugin can end. It is the last action.
	Exit struct{}
)

// Set sets or moves a timer of a Gate or of a Resource.
type Set struct {
	Timer Timer
	At    time.Time
}

// Actions of a Resource.
type (
	// Serve makes sure that the socket exists and is served. It never stops a
	// running server.
	Serve struct{}
	// Register registers the resource with the kubelet: by a Register call, or
	// by a new socket in the plugin watcher's directory.
	Register struct{}
	// Send is the list for a stream. It replaces an unsent list of the same
	// stream.
	Send struct {
		Stream, Seq uint64
		Devices     []Device // sorted by id
	}
	// Admit lets a call proceed.
	Admit struct{ Call uint64 }
	// Approve lets a call answer OK.
	Approve struct{ Call uint64 }
	// Refuse fails a call.
	Refuse struct {
		Call   uint64
		Code   codes.Code
		Reason string
	}
	// Confirm queries the kubelet's PodResources for allocatable devices.
	Confirm struct{ Epoch uint64 }
	// Notify reports a change to the Gate.
	Notify struct{ Report Report }
	// Stop ends the server. Only the last Notify and Refuse actions follow.
	Stop struct{}
)

func (EndStream) action()      {}
func (HeartbeatReply) action() {}
func (DisableReply) action()   {}
func (Scan) action()           {}
func (Forward) action()        {}
func (Publish) action()        {}
func (Exit) action()           {}
func (Set) action()            {}
func (Serve) action()          {}
func (Register) action()       {}
func (Send) action()           {}
func (Admit) action()          {}
func (Approve) action()        {}
func (Refuse) action()         {}
func (Confirm) action()        {}
func (Notify) action()         {}
func (Stop) action()           {}

// machine is the common part of Gate and Resource: the time of the current
// event, the timers, and the actions of the current step.
type machine struct {
	now    time.Time
	timers map[Timer]time.Time
	out    []Action
}

// begin starts a step. Time never goes backwards: an earlier time counts as
// that of the last event.
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

// due reports whether a timer's deadline has passed, and then clears the timer.
func (m *machine) due(name Timer) bool {
	at, isSet := m.timers[name]
	if !isSet || m.now.Before(at) {
		return false
	}
	delete(m.timers, name)
	return true
}

// expired is due for an Expired event. A timer that fired early is set again.
func (m *machine) expired(name Timer) bool {
	if at, isSet := m.timers[name]; isSet && m.now.Before(at) {
		m.set(name, at)
		return false
	}
	return m.due(name)
}
