// Package plan computes how the recorded fences change on a fence or unfence
// request: pure functions from the recorded list and a request to the next
// list.
//
// There is one record per block and owner as requested, even if blocks nest or
// overlap, so that each owner lifts only its own fences. The union of all
// blocks is enforced (Desired). Lists are sorted by Compare, in and out, and
// have a block of an owner once. No function changes the list that it was
// given. Blocks are valid, masked and never 4in6.
// never 4in6.
package plan

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"github.com/cleatproject/cleat/volume"
)

// Request is a request to fence or to unfence.
type Request struct {
	Owner  volume.FenceOwner
	Blocks []netip.Prefix // sorted, without duplicates, as requested: not merged
	// Force overrides the check that blocks do not cover the server's own
	// addresses or all addresses.
	Force bool
}

// Compare orders records by block (IPv4 first, then address, then the larger
// block first), then by the owner's digest.
func Compare(a, b volume.Fence) int {
	return cmp.Or(a.Block.Compare(b.Block), cmp.Compare(a.Owner.Digest, b.Owner.Digest))
}

// includes reports whether a record belongs to the request.
func (a Request) includes(f volume.Fence) bool {
	if f.Owner.Digest != a.Owner.Digest {
		return false
	}
	_, found := slices.BinarySearchFunc(a.Blocks, f.Block, netip.Prefix.Compare)
	return found
}

// missing returns the blocks of a request that its owner has no record of.
func (a Request) missing(now []volume.Fence) []netip.Prefix {
	var missing []netip.Prefix
	for _, block := range a.Blocks {
		if _, found := slices.BinarySearchFunc(now, volume.Fence{Block: block, Owner: a.Owner}, Compare); !found {
			missing = append(missing, block)
		}
	}
	return missing
}

// Fence returns the list after a fence request is accepted: blocks without a
// record, or lifted or being lifted, become Fencing.
func Fence(now []volume.Fence, req Request, at time.Time) []volume.Fence {
	next := slices.Clone(now)
	for i, f := range next {
		switch {
		case !req.includes(f):
		case f.Wanted():
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

// Unfence returns the list with the requested blocks in phase Lifting. A block
// without a record is accepted, since calls are repeated, unless another fence
// denies some of its addresses: the caller would assume that they are unfenced.
// Then the whole request fails with Precondition, and the message names the
// fence and its owner.
func Unfence(now []volume.Fence, req Request, at time.Time) ([]volume.Fence, error) {
	// Fences that the same request lifts do not conflict.
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
		if req.includes(f) && f.Wanted() {
			next[i].Phase, next[i].Since = volume.Lifting, at
		}
	}
	return next, nil
}

// Confirm returns the list with the requested blocks in phase Fenced, if they
// were Fencing.
func Confirm(now []volume.Fence, req Request, at time.Time) []volume.Fence {
	next := slices.Clone(now)
	for i, f := range next {
		if req.includes(f) && f.Phase == volume.Fencing {
			next[i].Phase, next[i].Since = volume.Fenced, at
		}
	}
	return next
}

// Forget returns the list without the requested blocks that were Lifting. If
// another fence still denies some of a block's addresses, the record stays as
// Lifted, so that a repeated Unfence finds it. Lifted records of any owner that
// are no longer needed for that are removed.
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
