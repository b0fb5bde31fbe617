// Package plan decides what becomes of the recorded fences when somebody asks
// to fence or to unfence: pure functions from the list that is on record and a
// request to the next list.
//
// A record is kept for every block and owner as it was asked for, however
// blocks nest or overlap, so that each owner lifts what it has closed and
// nothing else; what is enforced is the union of them (Wanted). Lists are in
// the order of Compare, in and out, and hold a block of an owner once. No
// function changes the list that it was given. Blocks are valid, masked and
// never 4in6.
package plan

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"github.com/cleatproject/cleat/volume"
)

// Ask is a request to fence or to unfence.
type Ask struct {
	Owner  volume.FenceOwner
	Blocks []netip.Prefix // in order, each once, as asked: not merged
	// Force: the caller insists, though the blocks cover the server's own
	// addresses or everything.
	Force bool
}

// Compare orders records by block (IPv4 first, then address, then the larger
// block first), then by the owner's digest.
func Compare(a, b volume.Fence) int {
	return cmp.Or(a.Block.Compare(b.Block), cmp.Compare(a.Owner.Digest, b.Owner.Digest))
}

// has reports whether a record is one of those that an ask is about.
func (a Ask) has(f volume.Fence) bool {
	if f.Owner.Digest != a.Owner.Digest {
		return false
	}
	_, found := slices.BinarySearchFunc(a.Blocks, f.Block, netip.Prefix.Compare)
	return found
}

// missing returns the blocks of an ask that its owner has no record of.
func (a Ask) missing(now []volume.Fence) []netip.Prefix {
	var missing []netip.Prefix
	for _, block := range a.Blocks {
		if _, found := slices.BinarySearchFunc(now, volume.Fence{Block: block, Owner: a.Owner}, Compare); !found {
			missing = append(missing, block)
		}
	}
	return missing
}

// Fence returns the list with everything that is asked for fenced or on the
// way to it: what is missing, or lifted or being lifted, becomes Fencing.
func Fence(now []volume.Fence, ask Ask, at time.Time) []volume.Fence {
	next := slices.Clone(now)
	for i, f := range next {
		switch {
		case !ask.has(f):
		case f.Wanted():
			next[i].Force = f.Force || ask.Force
		default:
			next[i] = ask.record(f.Block, at)
		}
	}
	for _, block := range ask.missing(now) {
		next = append(next, ask.record(block, at))
	}
	slices.SortFunc(next, Compare)
	return next
}

func (a Ask) record(block netip.Prefix, at time.Time) volume.Fence {
	return volume.Fence{Block: block, Owner: a.Owner, Phase: volume.Fencing, Since: at, Force: a.Force}
}

// Unfence returns the list with everything that is asked for Lifting, if it is
// not on that way already. A block that its owner has no record of is fine, as
// a repeated call needs it, unless another fence denies some of the block:
// then the caller would take for open what is closed. That is refused as a
// whole with Precondition, and the message says which fence and whose.
func Unfence(now []volume.Fence, ask Ask, at time.Time) ([]volume.Fence, error) {
	// Fences that the same request lifts keep nothing closed.
	stay := deniers(now, func(f volume.Fence) bool { return !ask.has(f) })
	var kept []conflict
	for _, block := range ask.missing(now) {
		if f, found := stay.overlapping(block); found {
			kept = append(kept, conflict{block, f})
		}
	}
	if len(kept) > 0 {
		return nil, refusal(ask.Owner, kept)
	}
	next := slices.Clone(now)
	for i, f := range next {
		if ask.has(f) && f.Wanted() {
			next[i].Phase, next[i].Since = volume.Lifting, at
		}
	}
	return next, nil
}

// Confirm returns the list with everything that is asked for Fenced, where it
// was Fencing.
func Confirm(now []volume.Fence, ask Ask, at time.Time) []volume.Fence {
	next := slices.Clone(now)
	for i, f := range next {
		if ask.has(f) && f.Phase == volume.Fencing {
			next[i].Phase, next[i].Since = volume.Fenced, at
		}
	}
	return next
}

// Forget returns the list with everything that is asked for dropped, where it
// was Lifting. Where another fence still denies some of the block the record
// stays as Lifted, so that a repeated Unfence finds it; records that nothing
// needs any more for that are dropped, whoever they are of.
func Forget(now []volume.Fence, ask Ask, at time.Time) []volume.Fence {
	next := slices.Clone(now)
	for i, f := range next {
		if ask.has(f) && f.Phase == volume.Lifting {
			next[i].Phase, next[i].Since = volume.Lifted, at
		}
	}
	denied := deniers(next, func(volume.Fence) bool { return true })
	return slices.DeleteFunc(next, func(f volume.Fence) bool {
		_, needed := denied.overlapping(f.Block)
		return f.Phase == volume.Lifted && !needed
	})
}
