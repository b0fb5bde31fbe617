// Package watch is the host side of the kubelet's plugin registration
// (pluginregistration v1): it finds plugin sockets below a directory, calls
// GetInfo, and registers and deregisters plugins with the handler of their
// type.
//
// Package discovery finds the sockets. Each has a goroutine (socket.run) that
// registers its plugin with retries, keeps the connection to notice the
// plugin's end, and deregisters it. Host.mu guards the set of sockets and their
// status.
package watch

import (
	"context"
	"time"
)

// Plugin is a plugin instance, from GetInfo.
type Plugin struct {
	// CSIPlugin, DevicePlugin, DRAPlugin, or another; selects the handler.
	Type string `json:"type"`
	Name string `json:"name"`
	// Absolute path of the plugin's own API: the announced one, or Socket.
	Endpoint string   `json:"endpoint"`
	Versions []string `json:"versions"`
	// Where the instance was found.
	Socket string `json:"socket"`
}

// Handler implements registration for a type of plugin. Calls for one name are
// serial, calls for different names concurrent. Calls can be repeated and must
// be idempotent. A panic counts as an error.
type Handler interface {
	// Validate changes nothing.
	Validate(ctx context.Context, p Plugin) error
	// Register makes the plugin usable. After an error, which the plugin
	// receives, the next attempt begins with GetInfo.
	Register(ctx context.Context, p Plugin) error
	// DeRegister takes the plugin out of use; its socket might be gone. It is
	// called for every plugin whose Register succeeded or was interrupted, with
	// retries.
	DeRegister(ctx context.Context, p Plugin) error
}

// Phase is the phase of a socket's registration.
type Phase string

// In order.
const (
	Waiting       Phase = "waiting"
	Asking        Phase = "asking"      // GetInfo
	Validating    Phase = "validating"  // Handler.Validate
	Registering   Phase = "registering" // Handler.Register
	Notifying     Phase = "notifying"   // NotifyRegistrationStatus
	Registered    Phase = "registered"
	Failed        Phase = "failed"        // retried at NextTry
	DeRegistering Phase = "deregistering" // Handler.DeRegister
	Gone          Phase = "gone"          // last event; in events only
)

// Status is a socket's observed state.
type Status struct {
	// Before GetInfo only Plugin.Socket is set.
	Plugin
	Phase Phase `json:"phase"`
	// Last failure: step, error, usual cause and remedy.
	Step     Phase     `json:"step,omitempty"`
	Error    string    `json:"error,omitempty"`
	Reason   string    `json:"reason,omitempty"`
	Found    time.Time `json:"found"`
	Since    time.Time `json:"since"`    // of the phase
	Attempts int       `json:"attempts"` // since found or last registered
	NextTry  time.Time `json:"nextTry,omitzero"`
	// The file of a registered plugin exists, but no process listens on it or
	// on the plugin's endpoint.
	Dead bool `json:"dead,omitempty"`
}

// Event is a change of a Status.
type Event struct {
	// Incremented with each event.
	Serial uint64    `json:"serial"`
	Time   time.Time `json:"time"`
	Status Status    `json:"status"`
	// Earlier events were dropped for a slow subscriber: use List.
	Lost bool `json:"lost,omitempty"`
}
