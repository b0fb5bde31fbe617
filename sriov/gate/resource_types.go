package gate

import (
	"time"

	"google.golang.org/grpc/codes"
)

// Device is what the kubelet is told of a device.
type Device struct {
	ID      string
	Healthy bool
}

// Phase is how far a resource is.
type Phase string

// The phases of a resource.
const (
	Idle        Phase = "idle"        // was never open; the kubelet does not know it
	Offered     Phase = "offered"     // pods may get what is healthy
	Withdrawing Phase = "withdrawing" // Allocate is refused; the kubelet may still offer devices
	Withdrawn   Phase = "withdrawn"   // the kubelet offers none, and no Allocate runs
	Stopped     Phase = "stopped"     // the server has ended
)

// Held is a device that a running pod has.
type Held struct {
	ID, Namespace, Pod, Container string
}

// Report is how a resource is, for Control and for people.
type Report struct {
	Phase      Phase
	Epoch      uint64 // of the last Open or Close
	Devices    int    // that are there
	Offered    int    // of them, healthy ones that the kubelet is told of; 0 unless Offered
	Allocating int    // calls of Allocate that run
	Streaming  bool   // the kubelet listens
	Confirmed  bool   // the kubelet itself said that it offers none
	InUse      []Held // by the kubelet's word; with Confirmed only
	Error      string // what stands in the way; "" is nothing
}

// Timers of a Resource.
const (
	TimerRegister Timer = "register" // register again
	TimerDrain    Timer = "drain"    // wait no longer for calls that run before the devices go unhealthy
	TimerQuiet    Timer = "quiet"    // ids may leave the list
	TimerConfirm  Timer = "confirm"  // ask the kubelet again
	TimerLinger   Timer = "linger"   // stop the server
)

// ResourceEvent is something that happened to a Resource.
type ResourceEvent interface{ resourceEvent() }

// ResourceAction is something that a Resource wants done.
type ResourceAction interface{ resourceAction() }

// Events of a Resource.
type (
	// Open lets it offer what its snapshot has.
	Open struct{ Epoch uint64 }
	// Close takes everything back.
	Close struct{ Epoch uint64 }
	// Snapshot replaces what there is. Ids are unique.
	Snapshot struct{ Devices []Device }

	// AllocateBegin is a call that came, before anything was done for it.
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
	// Sent tells that a Send was handed to the stream.
	Sent struct{ Stream, Seq uint64 }
	// KubeletStarted tells that the kubelet made its socket anew.
	KubeletStarted struct{}
	// Confirmed answers Confirm. Known is false where nobody can be asked; then
	// the rest means nothing.
	Confirmed struct {
		Epoch   uint64
		Known   bool
		Offered int // devices of this resource that the kubelet still offers
		InUse   []Held
	}

	// Fired is a timer's end.
	Fired struct{ Timer Timer }
	// Shutdown withdraws and then stops.
	Shutdown struct{ Epoch uint64 }
	// Halt stops now.
	Halt struct{}
)

// Actions of a Resource.
type (
	// Serve makes sure that the socket is there and served. It never ends a
	// server that lives.
	Serve struct{}
	// Register makes the resource known to the kubelet: a call of Register, or a
	// new socket in the directory of the plugin watcher.
	Register struct{}
	// Send is the list for a stream. A later one for the same stream replaces
	// one that was not handed over yet.
	Send struct {
		Stream, Seq uint64
		Devices     []Device // by id
	}
	// Admit lets a call go on.
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
	// Tell is how the resource is, after each change.
	Tell struct{ Report Report }
	// Arm sets a timer; an earlier deadline of it no longer counts.
	Arm struct {
		Timer Timer
		At    time.Time
	}
	// Stop ends the server; only the last Tell follows, and refusals.
	Stop struct{}
)

func (Open) resourceEvent()           {}
func (Close) resourceEvent()          {}
func (Snapshot) resourceEvent()       {}
func (AllocateBegin) resourceEvent()  {}
func (AllocateCheck) resourceEvent()  {}
func (AllocateEnd) resourceEvent()    {}
func (Served) resourceEvent()         {}
func (Registered) resourceEvent()     {}
func (StreamUp) resourceEvent()       {}
func (StreamDown) resourceEvent()     {}
func (Sent) resourceEvent()           {}
func (KubeletStarted) resourceEvent() {}
func (Confirmed) resourceEvent()      {}
func (Fired) resourceEvent()          {}
func (Shutdown) resourceEvent()       {}
func (Halt) resourceEvent()           {}

func (Serve) resourceAction()    {}
func (Register) resourceAction() {}
func (Send) resourceAction()     {}
func (Admit) resourceAction()    {}
func (Approve) resourceAction()  {}
func (Refuse) resourceAction()   {}
func (Confirm) resourceAction()  {}
func (Tell) resourceAction()     {}
func (Arm) resourceAction()      {}
func (Stop) resourceAction()     {}
