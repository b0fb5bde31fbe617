package volume

import (
	"context"
	"net/netip"
	"time"
)

// Fencer fences clients of a storage server by address. All methods are
// idempotent, also after a crash, and safe for concurrent use.
//
// Blocks are masked prefixes and never IPv4-mapped IPv6.
type Fencer interface {
	// Apply makes desired the exact set of enforced fences. When it returns
	// nil, no client in the set can start a session, nothing that such a client
	// sends is accepted, and other blocks are unfenced. NotEnforced is for a
	// part of the fences.
	Apply(ctx context.Context, desired FenceSet) error
	// Held reads the enforced blocks, disjoint and in order, from the enforcing
	// component, not from memory. It omits partly enforced blocks.
	Held(ctx context.Context) ([]netip.Prefix, error)
	// Sessions returns the live sessions of clients in the blocks. A session
	// without a client stays live while its I/O can still complete.
	Sessions(ctx context.Context, blocks []netip.Prefix) ([]Session, error)
	// End ends sessions and returns nil when all their requests are complete or
	// aborted. It accepts sessions that are ending or gone. Unavailable: some
	// have not ended before the deadline of ctx; the message names the
	// processes that serve them.
	End(ctx context.Context, sessions []Session) error
}

// NotEnforced is the error of an Apply to which some storage did not answer. What
// Apply promises is true for the other blocks.
type NotEnforced struct {
	Blocks []netip.Prefix // in any order
	Err    error
}

func (e *NotEnforced) Error() string { return e.Err.Error() }
func (e *NotEnforced) Unwrap() error { return e.Err }

// FenceSet is the desired set of fences.
type FenceSet struct {
	Blocks []netip.Prefix // disjoint, in order
	// Clients are the recorded clients in the blocks, for backends that do not
	// identify them by address.
	Clients []Client
}

// Session is one connection of a client to the storage.
type Session struct {
	// ID stays valid after a restart of the process, and is never reused before
	// the next boot; End treats an id of an earlier boot as gone.
	ID     string         `json:"id,omitempty"`
	Client netip.AddrPort `json:"client"`
	Server netip.AddrPort `json:"server"`
	// as "nbd-server (process 12)"
	Holder string `json:"holder,omitempty"`
}

// Coverage is what the fences of a machine's packet filter protect at the time
// of the call.
type Coverage struct {
	Enforcer string `json:"enforcer"`
	// Servers listen on a fenced port, for other machines.
	Servers []Listener `json:"servers"`
	// Sessions are those of clients in the blocks on fenced ports, which a fence
	// ends. The end of the Unobserved ones cannot be observed.
	Sessions   []Session `json:"sessions,omitempty"`
	Unobserved []Session `json:"-"`
	// Unprotected are sessions of clients in the blocks with storage servers on
	// ports that are not fenced.
	Unprotected []Session `json:"unprotected,omitempty"`
	// Forwarded are connections of clients in the blocks with servers in other
	// network namespaces or on other machines, whose end is not seen.
	Forwarded []Session `json:"forwarded,omitempty"`
	// Others are sessions of clients in the blocks with other programs, on ports
	// that are not fenced.
	Others []Session `json:"others,omitempty"`
	// Unfenced are storage servers that listen on ports that are not fenced: any
	// client can use them.
	Unfenced []Listener `json:"unfenced,omitempty"`
	// Uncovered are servers whose sessions no packet filter and no socket shows
	// (RDMA). Their addresses are not always known.
	Uncovered []Listener `json:"uncovered,omitempty"`
	// Problems are the reasons for which a fence would not be confirmed.
	Problems []string `json:"problems,omitempty"`
}

// Listener is a server's listening socket.
type Listener struct {
	Address netip.AddrPort `json:"address"`
	Holder  string         `json:"holder"` // as in Session
}

// Fence is the record of a fence on a block of addresses.
type Fence struct {
	Block netip.Prefix `json:"block"` // masked; never 4in6
	Owner FenceOwner   `json:"owner"`
	Phase FencePhase   `json:"phase"`
	Since time.Time    `json:"since"` // start of the phase
	// Force: although the block contains an address of the server or every
	// address.
	Force bool `json:"force,omitempty"`
}

// FenceOwner identifies the parameters of the request that created a fence.
// Values can be secret and are not stored.
type FenceOwner struct {
	Digest string   `json:"digest"` // SHA-256 of all keys and values, in hex
	Keys   []string `json:"keys,omitempty"`
}

type FencePhase string

const (
	// Fencing: the fence is desired and not yet verified.
	Fencing FencePhase = "fencing"
	// Fenced: the fence is enforced, and no session is left.
	Fenced FencePhase = "fenced"
	// Lifting: the fence is no longer enforced, but still denies grants.
	Lifting FencePhase = "lifting"
	// Lifted: the fence is removed. The record stays while another fence
	// overlaps the block, to distinguish a repeated unfence call from one that
	// would open another owner's block.
	Lifted FencePhase = "lifted"
)

// Denies reports whether the fence denies grants to its block.
func (f Fence) Denies() bool { return f.Phase != Lifted }

// IsDesired reports whether the fence should be enforced.
func (f Fence) IsDesired() bool { return f.Phase == Fencing || f.Phase == Fenced }
