package volume

import (
	"context"
	"net/netip"
	"time"
)

// Fencer cuts clients off from the storage behind it, by their addresses. All
// methods may be called by many goroutines at once, be repeated, and be cut
// half-way by a crash; a repeat continues.
//
// Blocks are masked prefixes without 4in6 addresses.
type Fencer interface {
	// Apply makes just this set hold: when it returns nil no client in it can
	// begin a session, and nothing that one sends from now on is taken. What
	// held before and is not in the set is let in again.
	Apply(ctx context.Context, wanted FenceSet) error
	// Held reads back, from what enforces it and not from memory, the blocks
	// that hold now, disjoint and in order. What holds in part does not hold.
	Held(ctx context.Context) ([]netip.Prefix, error)
	// Sessions lists the live sessions of clients in the blocks. One whose
	// client is gone, but whose I/O may still be done, is live.
	Sessions(ctx context.Context, blocks []netip.Prefix) ([]Session, error)
	// End ends sessions and returns nil when all that their clients asked for
	// is done or aborted. It also takes sessions that it, or an earlier
	// process, has begun to end, and those that are gone. Unavailable: some
	// have not ended within ctx; the message says who holds them.
	End(ctx context.Context, sessions []Session) error
}

// FenceSet is everything that is to be fenced.
type FenceSet struct {
	Blocks []netip.Prefix // disjoint, in order
	// Clients are those on record with an address in a block, for backends
	// that know clients by other names than addresses.
	Clients []Client
}

// Session is one connection of a client to the storage.
type Session struct {
	// ID names it to the Fencer that listed it, also when the process has been
	// started anew. It is never that of another session, unless the machine
	// was booted in between; then End takes it for gone.
	ID     string         `json:"id"`
	Client netip.AddrPort `json:"client"`
	Server netip.AddrPort `json:"server"`
	// Holder says for people who serves it, as "nbd-server (process 12)".
	Holder string `json:"holder,omitempty"`
}

// Fence is the record that a block of addresses is, or is to be, cut off.
type Fence struct {
	Block netip.Prefix `json:"block"` // masked; never 4in6
	Owner FenceOwner   `json:"owner"`
	Phase FencePhase   `json:"phase"`
	Since time.Time    `json:"since"` // of the phase
	// Force: the caller insisted, though the block covers the server's own
	// addresses or everything.
	Force bool `json:"force,omitempty"`
}

// FenceOwner says who asked for a fence: a set of parameters, of which values
// are not kept, since they may be secret.
type FenceOwner struct {
	Digest string   `json:"digest"`         // SHA-256 in hex of the whole set
	Keys   []string `json:"keys,omitempty"` // in order
}

// FencePhase is how far a fence is.
type FencePhase string

const (
	// Fencing: it is to hold, which has not been verified yet.
	Fencing FencePhase = "fencing"
	// Fenced: it holds, no session is left, and the caller may know.
	Fenced FencePhase = "fenced"
	// Lifting: it is to go. It is enforced no more, but keeps grants away.
	Lifting FencePhase = "lifting"
	// Lifted: it is gone. The record stays only as long as another fence
	// overlaps the block, so that a repeated call is told from one that would
	// open what somebody else has closed.
	Lifted FencePhase = "lifted"
)

// Denies reports whether a fence keeps grants away from its block.
func (f Fence) Denies() bool { return f.Phase != Lifted }

// Wanted reports whether a fence is to be enforced.
func (f Fence) Wanted() bool { return f.Phase == Fencing || f.Phase == Fenced }
