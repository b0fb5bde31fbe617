// Package source watches a node's SriovNetworkNodeState in a file or in the API
// server.
package source

import (
	"context"

	"github.com/cleatproject/cleat/internal/strictjson"
	"github.com/cleatproject/cleat/sriov/nodestate"
)

// Update is a node state, its absence, or a read error.
type Update struct {
	State    nodestate.NodeState
	Warnings []strictjson.Problem
	Gone     bool
	// The desired state cannot be read; the last one stays in force. The next
	// Update without Err ends the error. Of an invalid object, State has name,
	// uid and generation.
	Err error
}

// Source reports the desired state.
type Source interface {
	// Run sends the current state and each change until ctx ends, and returns
	// its cause. send must not block.
	Run(ctx context.Context, send func(Update)) error
}
