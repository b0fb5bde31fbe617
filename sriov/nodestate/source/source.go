// Package source watches the desired state of a node, a SriovNetworkNodeState,
// in a file or in the API server.
package source

import (
	"context"

	"github.com/cleatproject/cleat/internal/strictjson"
	"github.com/cleatproject/cleat/sriov/nodestate"
)

// Update is one report of a source: a node state, its absence, or a read error.
type Update struct {
	State    nodestate.NodeState
	Warnings []strictjson.Problem // about State
	// Gone: no node state exists.
	Gone bool
	// Err: the desired state cannot be read, and the last one read remains in
	// force. The next Update without Err ends the error, even if nothing else
	// has changed. If an invalid object was received, State has its name, uid
	// and generation; otherwise State is empty.
	Err error
}

// Source reports the desired state.
type Source interface {
	// Run calls send with the current state and then with each change until ctx
	// ends, and returns the cause of ctx. send must not block.
	Run(ctx context.Context, send func(Update)) error
}
