package plan

import (
	"net/netip"
	"slices"

	"github.com/cleatproject/cleat/volume"
)

// denyIndex finds the fences that block grants. Blocks nest or are disjoint, so
// an overlap takes at most 129 lookups of enclosing blocks and a binary search.
type denyIndex struct {
	fences []volume.Fence // by Compare
	first  map[netip.Prefix]int
}

// newDenyIndex indexes fences that deny grants and are chosen.
func newDenyIndex(list []volume.Fence, chosen func(volume.Fence) bool) denyIndex {
	d := denyIndex{first: map[netip.Prefix]int{}}
	for _, f := range list {
		if !f.Denies() || !chosen(f) {
			continue
		}
		if _, known := d.first[f.Block]; !known {
			d.first[f.Block] = len(d.fences)
		}
		d.fences = append(d.fences, f)
	}
	return d
}

// overlapping prefers the same block, then the smallest enclosing one, then the
// first inside.
func (d denyIndex) overlapping(block netip.Prefix) (volume.Fence, bool) {
	for bits := block.Bits(); bits >= 0; bits-- {
		around := netip.PrefixFrom(block.Addr(), bits).Masked()
		if i, found := d.first[around]; found {
			return d.fences[i], true
		}
	}
	// No block encloses this one: the next in order is inside or disjoint.
	i, _ := slices.BinarySearchFunc(d.fences, block, func(f volume.Fence, p netip.Prefix) int { return f.Block.Compare(p) })
	if i < len(d.fences) && block.Contains(d.fences[i].Block.Addr()) {
		return d.fences[i], true
	}
	return volume.Fence{}, false
}
