// Package watch is the host side of kubelet's plugin registration
// (pluginregistration v1): it finds the sockets of plugins below a directory,
// asks each who it is, hands it to the handler of its type, tells it how that
// went, and deregisters it when its socket goes.
package watch

import (
	"context"
	"time"
)

// Plugin is what one instance of a plugin said of itself.
type Plugin struct {
	// Type chooses the handler: CSIPlugin, DevicePlugin, DRAPlugin, or a word
	// of one's own.
	Type string `json:"type"`
	Name string `json:"name"`
	// Endpoint is the absolute path of the socket that serves the plugin's own
	// contract: what it announced, or Socket when it announced nothing.
	Endpoint string   `json:"endpoint"`
	Versions []string `json:"versions"`
	// Socket is the path under which the instance was found.
	Socket string `json:"socket"`
}

// Handler does what registration means for one type of plugin. Calls for one
// name come one after the other, those for different names at the same time.
// Every call may come again for the same plugin. A panic is an error of that
// call.
type Handler interface {
	// Validate says whether the plugin may be registered, and changes nothing.
	Validate(ctx context.Context, p Plugin) error
	// Register makes the plugin usable. An error is told to the plugin, and
	// everything begins again with GetInfo after a pause.
	Register(ctx context.Context, p Plugin) error
	// DeRegister takes the plugin out of use; its socket may be gone by now. It
	// is called for every plugin whose Register returned nil or was cut off, and
	// again, after a pause, when it fails.
	DeRegister(ctx context.Context, p Plugin) error
}

// Phase is how far a socket has come.
type Phase string

// The phases of a socket, in order.
const (
	Waiting       Phase = "waiting"       // for its turn
	Asking        Phase = "asking"        // GetInfo
	Validating    Phase = "validating"    // Handler.Validate
	Registering   Phase = "registering"   // Handler.Register
	Notifying     Phase = "notifying"     // NotifyRegistrationStatus
	Registered    Phase = "registered"    // in use
	Failed        Phase = "failed"        // Error says why; tried again at NextTry
	DeRegistering Phase = "deregistering" // Handler.DeRegister
	Gone          Phase = "gone"          // last word on a socket, in events only
)

// Status is what is known of one socket.
type Status struct {
	// Plugin holds just the Socket until the first answer to GetInfo.
	Plugin
	Phase Phase `json:"phase"`
	// Step, Error and Reason tell of the last failure: at which step, what was
	// said, and what that usually means and what to do. All are empty after
	// success.
	Step     Phase     `json:"step,omitempty"`
	Error    string    `json:"error,omitempty"`
	Reason   string    `json:"reason,omitempty"`
	Found    time.Time `json:"found"`    // when the socket was seen first
	Since    time.Time `json:"since"`    // of the phase
	Attempts int       `json:"attempts"` // it took or has taken, since the socket was found or last registered
	NextTry  time.Time `json:"nextTry,omitzero"`
	// Dead is set when nobody answers on the socket any more though its file is
	// there.
	Dead bool `json:"dead,omitempty"`
}

// Event is one change of a socket's status.
type Event struct {
	// Serial grows by one with each event of a host.
	Serial uint64    `json:"serial"`
	Time   time.Time `json:"time"`
	Status Status    `json:"status"`
	// Lost is set on the first event after some that a slow subscriber did not
	// take: what it knows is old, and List tells how things are.
	Lost bool `json:"lost,omitempty"`
}
