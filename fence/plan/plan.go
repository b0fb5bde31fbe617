// Package plan computes, by pure functions, how a request changes the list of
// recorded fences.
//
// Each block and owner has its own record, even if blocks nest or overlap, so
// that owners lift only their own fences; the union is enforced (Desired).
// Lists are sorted by Compare, without duplicates, and not modified. Blocks are
// valid, masked and never 4in6.
package plan

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"github.com/cleatproject/cleat/volume"
)

// Request is a fence or unfence request.
type Request struct {
	Owner  volume.FenceOwner
	Blocks []netip.Prefix // sorted, unique, not merged
	// Allow blocks with the server's own addresses, or all addresses.
	Force bool
	// Restarted: all clients in the blocks were restarted, or are off, since they
	// were fenced. For unfencing.
	Restarted bool
}

// Compare orders by block (IPv4 first, address, larger first), then by the
// owner's digest.
func Compare(a, b volume.Fence) int {
	return cmp.Or(a.Block.Compare(b.Block), cmp.Compare(a.Owner.Digest, b.Owner.Digest))
}

func (a Request) includes(f volume.Fence) bool {
	if f.Owner.Digest != a.Owner.Digest {
		return false
	}
	_, found := slices.BinarySearchFunc(a.Blocks, f.Block, netip.Prefix.Compare)
	return found
}

func (a Request) missing(now []volume.Fence) []netip.Prefix {
	var missing []netip.Prefix
	for _, block := range a.Blocks {
		if _, found := slices.BinarySearchFunc(now, volume.Fence{Block: block, Owner: a.Owner}, Compare); !found {
			missing = append(missing, block)
		}
	}
	return missing
}

// Fence returns the list with the request's blocks, unless already fenced, as
// Fencing.
func Fence(now []volume.Fence, req Request, at time.Time) []volume.Fence {
	next := slices.Clone(now)
	for i, f := range next {
		switch {
		case !req.includes(f):
		case f.IsDesired():
			next[i].Force = f.Force || req.Force
		default:
			next[i] = req.record(f.Block, at)
		}
	}
	for _, block := range req.missing(now) {
		next = append(next, req.record(block, at))
	}
	slices.SortFunc(next, Compare)
	return next
}

func (a Request) record(block netip.Prefix, at time.Time) volume.Fence {
	return volume.Fence{Block: block, Owner: a.Owner, Phase: volume.Fencing, Since: at, Force: a.Force}
}

// Unfence returns the list with the requested blocks as Lifting. A block
// without a record is accepted, since calls are repeated, unless another fence
// denies some of its addresses: the caller would assume that they are unfenced.
// Then the request fails with Precondition, naming the fence and its owner.
func Unfence(now []volume.Fence, req Request, at time.Time) ([]volume.Fence, error) {
	// The request lifts these itself.
	stay := newDenyIndex(now, func(f volume.Fence) bool { return !req.includes(f) })
	var kept []conflict
	for _, block := range req.missing(now) {
		if f, found := stay.overlapping(block); found {
			kept = append(kept, conflict{block, f})
		}
	}
	if len(kept) > 0 {
		return nil, refusal(req.Owner, kept)
	}
	next := slices.Clone(now)
	for i, f := range next {
		if req.includes(f) && f.IsDesired() {
			next[i].Phase, next[i].Since = volume.Lifting, at
		}
	}
	return next, nil
}

// Confirm returns the list with the request's Fencing blocks as Fenced.
func Confirm(now []volume.Fence, req Request, at time.Time) []volume.Fence {
	next := slices.Clone(now)
	for i, f := range next {
		if req.includes(f) && f.Phase == volume.Fencing {
			next[i].Phase, next[i].Since = volume.Fenced, at
		}
	}
	return next
}

// Forget removes the request's Lifting blocks. While another fence denies some
// of a block's addresses, its record stays as Lifted, for a repeated Unfence.
// Lifted records that are no longer needed are removed.
func Forget(now []volume.Fence, req Request, at time.Time) []volume.Fence {
	next := slices.Clone(now)
	for i, f := range next {
		if req.includes(f) && f.Phase == volume.Lifting {
			next[i].Phase, next[i].Since = volume.Lifted, at
		}
	}
	denied := newDenyIndex(next, func(volume.Fence) bool { return true })
	return slices.DeleteFunc(next, func(f volume.Fence) bool {
		_, needed := denied.overlapping(f.Block)
		return f.Phase == volume.Lifted && !needed
	})
}
