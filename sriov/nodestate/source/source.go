// Package source is where a SriovNetworkNodeState comes from: a file, or an
// object of the API server. A Source tells what is wanted whenever that
// changes, and what keeps it from telling.
package source

import (
	"context"

	"github.com/cleatproject/cleat/sriov/nodestate"
)

// Update is what a source has to say: a state, or that there is none, or why
// nobody can tell.
type Update struct {
	State    nodestate.NodeState
	Warnings []nodestate.Warning // about State
	// Gone: there is no node state, or none any more.
	Gone bool
	// Err: what is wanted cannot be read. What was read last stays in force. The
	// next Update without Err ends it, also when nothing else has changed. State
	// has the name, uid and generation of an object that was reached but makes
	// no sense; else it is empty.
	Err error
}

// Source tells what is wanted.
type Source interface {
	// Run sends what there is, and then each change, until ctx ends; it returns
	// the context's cause. While out is not read it waits, and then sends the
	// newest only.
	Run(ctx context.Context, out chan<- Update) error
}
