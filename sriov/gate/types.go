package gate

import (
	"cmp"
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
	Epoch      uint64
	Devices    int    // existing
	Offered    int    // healthy for the kubelet
	Allocating int    // calls in flight
	Streaming  bool   // ListAndWatch is open
	Confirmed  bool   // by PodResources
	InUse      []Held // valid only with Confirmed
	Error      string // what prevents progress
	// The last Restrict whose closed devices are withdrawn.
	Restriction uint64
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

// Timer names a timer.
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
	TimerRestrict Timer = "restrict" // another Confirm
	TimerStop     Timer = "linger"
)

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
	// Enable is an EnableDevices call. Session is unique per stream. For a new
	// hash, the caller reads its configuration first.
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
	// Configured is the first event of a Gate.
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
	// Quit withdraws everything.
	Quit struct{}
)

// Expired: a timer fired.
type Expired struct{ Timer Timer }

// Events of a Resource.
type (
	// Open lets the resource offer the devices of its snapshot.
	Open struct{ Epoch uint64 }
	// Close withdraws the devices.
	Close struct{ Epoch uint64 }
	// Shutdown withdraws the devices and then stops.
	Shutdown struct{ Epoch uint64 }
	// Halt stops at once, without a withdrawal.
	Halt struct{}
	// Restrict withdraws the devices of closed functions and offers the others; it
	// has effect while the resource is open.
	Restrict struct {
		Seq    uint64
		Closed Closed
	}
	// Snapshot is the set of existing devices. Ids are unique.
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
	// Confirmed answers Confirm. Unless Known, PodResources is not available.
	Confirmed struct {
		Epoch, Restriction uint64 // of the Confirm
		Known              bool
		Offered            int // allocatable devices that were asked for
		InUse              []Held
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
		Confirmed bool   // by the kubelet, for every resource that it knows
		InUse     []Held // valid only with Confirmed
	}
	// Scan reads the devices of the node and sends each resource its snapshot.
	Scan struct{ Seq uint64 }
	// Forward carries Open, Close, Restrict, Shutdown or Halt.
	Forward struct {
		Resource string
		Event    ResourceEvent
	}
	// Publish, for every stream, follows each change and accepted claim.
	Publish struct{ Status Status }
	// Exit reports that the plugin can end. It is the last action.
	Exit struct{}
)

// Set sets or moves a timer.
type Set struct {
	Timer Timer
	At    time.Time
}

// Actions of a Resource.
type (
	// Serve makes sure that the socket is served, and never stops a server.
	Serve struct{}
	// Register registers the resource with the kubelet: by a Register call, or
	// by a new socket in the plugin watcher's directory.
	Register struct{}
	// Send replaces an unsent list of the stream.
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
	// Confirm queries the kubelet's PodResources for allocatable devices: all of
	// the resource, or those of a Restrict.
	Confirm struct {
		Epoch       uint64
		Restriction uint64   // 0: all
		Devices     []string // of the restriction
	}
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

// machine is the common part: current time, timers, and the step's actions.
type machine struct {
	now    time.Time
	timers map[Timer]time.Time
	out    []Action
}

// Time never goes backwards.
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

// due clears a timer whose deadline has passed.
func (m *machine) due(name Timer) bool {
	at, isSet := m.timers[name]
	if !isSet || m.now.Before(at) {
		return false
	}
	delete(m.timers, name)
	return true
}

// A timer that fired early is set again.
func (m *machine) expired(name Timer) bool {
	if at, isSet := m.timers[name]; isSet && m.now.Before(at) {
		m.set(name, at)
		return false
	}
	return m.due(name)
}
