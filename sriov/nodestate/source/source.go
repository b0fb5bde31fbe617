// Package source reads the desired state of a node, a SriovNetworkNodeState,
// from a file or from an object of the API server, and reports each change.
package source

import (
	"context"

	"github.com/cleatproject/cleat/internal/strictjson"
	"github.com/cleatproject/cleat/sriov/nodestate"
)

// Update is one report of a source: a state, that no state exists, or why it
// cannot be read.
type Update struct {
	State    nodestate.NodeState
	Warnings []strictjson.Problem // about State
	// Gone: no node state exists.
	Gone bool
	// Err: the desired state cannot be read. The state that was read last stays in
	// force. The next Update without Err ends the error, also when nothing else
	// has changed. State has the name, uid and generation of an object that was
	// received but is invalid; else it is empty.
	Err error
}

// Source reports the desired state.
type Source interface {
	// Run calls send with the present state and then with each change, until ctx
	// ends, and returns the cause of that. send returns at once.
	Run(ctx context.Context, send func(Update)) error
}
