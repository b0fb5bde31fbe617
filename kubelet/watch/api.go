// Package watch is the host side of the kubelet's plugin registration
// (pluginregistration v1): it finds the sockets of plugins below a directory,
// calls GetInfo, hands the plugin to the handler of its type, notifies it of the
// result, and deregisters it when its socket goes.
//
// Package discovery reports which sockets come and go. Each socket has a
// goroutine (socket.run) that attempts to register its plugin until that
// succeeds, holds the gRPC connection to notice the end of the plugin, and
// deregisters it. Host.mu guards what goroutines share: which sockets exist, and
// their status.
package watch

import (
	"context"
	"time"
)

// Plugin is one instance of a plugin, as it answered GetInfo.
type Plugin struct {
	// Type selects the handler: CSIPlugin, DevicePlugin, DRAPlugin, or another
	// type.
	Type string `json:"type"`
	Name string `json:"name"`
	// Endpoint is the absolute path of the socket that serves the plugin's own
	// API: the announced one, or Socket if the plugin announced none.
	Endpoint string   `json:"endpoint"`
	Versions []string `json:"versions"`
	// Socket is the path under which the instance was found.
	Socket string `json:"socket"`
}

// Handler implements registration for one type of plugin. Calls for one name
// are serial, calls for different names concurrent. Every call can be repeated
// for the same plugin and must be idempotent. A panic counts as an error of
// that call.
type Handler interface {
	// Validate checks whether the plugin can be registered, and changes nothing.
	Validate(ctx context.Context, p Plugin) error
	// Register makes the plugin usable. The plugin is notified of an error, and
	// the next attempt begins with GetInfo after a pause.
	Register(ctx context.Context, p Plugin) error
	// DeRegister takes the plugin out of use; its socket might not exist any
	// more. It is called for every plugin whose Register returned nil or was
	// interrupted, and is retried with backoff when it fails.
	DeRegister(ctx context.Context, p Plugin) error
}

// Phase is the phase of a socket in the registration of its plugin.
type Phase string

// The phases of a socket, in order.
const (
	Waiting       Phase = "waiting"       // for other sockets
	Asking        Phase = "asking"        // GetInfo
	Validating    Phase = "validating"    // Handler.Validate
	Registering   Phase = "registering"   // Handler.Register
	Notifying     Phase = "notifying"     // NotifyRegistrationStatus
	Registered    Phase = "registered"    // in use
	Failed        Phase = "failed"        // Error says why; retried at NextTry
	DeRegistering Phase = "deregistering" // Handler.DeRegister
	Gone          Phase = "gone"          // the last event of a socket; in events only
)

// Status is the observed state of one socket.
type Status struct {
	// Until the first answer to GetInfo, only Plugin.Socket is set.
	Plugin
	Phase Phase `json:"phase"`
	// Step, Error and Reason describe the last failure: the step that failed,
	// the error, and its usual cause and remedy. They are empty after success.
	Step     Phase     `json:"step,omitempty"`
	Error    string    `json:"error,omitempty"`
	Reason   string    `json:"reason,omitempty"`
	Found    time.Time `json:"found"`    // when the socket was seen first
	Since    time.Time `json:"since"`    // of the phase
	Attempts int       `json:"attempts"` // since the socket was found or last registered
	NextTry  time.Time `json:"nextTry,omitzero"`
	// Dead is set when the socket file of a registered plugin still exists, but
	// no process listens on it any more.
	Dead bool `json:"dead,omitempty"`
}

// Event is one change of a socket's status.
type Event struct {
	// Serial grows by one with each event of a host.
	Serial uint64    `json:"serial"`
	Time   time.Time `json:"time"`
	Status Status    `json:"status"`
	// Lost is set on the first event after events were dropped for a slow
	// subscriber: its state is stale, and List has the current state.
	Lost bool `json:"lost,omitempty"`
}
