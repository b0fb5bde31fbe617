// Package host fences clients of storage servers that run on this machine and
// know nothing of fences: a packet filter keeps the clients out, and their
// sessions are ended at their sockets.
package host

import (
	"context"
	"net/netip"

	"github.com/cleatproject/cleat/volume"
)

// Filter keeps clients out; package nft has one.
type Filter interface {
	Apply(ctx context.Context, blocks []netip.Prefix) error
	Held(ctx context.Context) ([]netip.Prefix, error)
}

// Sockets ends the sessions that clients have; package sock does.
type Sockets interface {
	Sessions(ctx context.Context, blocks []netip.Prefix) ([]volume.Session, error)
	End(ctx context.Context, sessions []volume.Session) error
}

// New joins the two to the Fencer of this machine.
func New(filter Filter, sockets Sockets) volume.Fencer { return fencer{filter, sockets} }

type fencer struct {
	Filter
	Sockets
}

// Apply needs the addresses alone: no client is known here by another name.
func (f fencer) Apply(ctx context.Context, wanted volume.FenceSet) error {
	return f.Filter.Apply(ctx, wanted.Blocks)
}
