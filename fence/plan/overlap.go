package plan

import (
	"net/netip"
	"slices"

	"github.com/cleatproject/cleat/volume"
)

// denials are the fences that keep grants away, by the place of their blocks.
// Blocks either nest or are apart, so what overlaps one is found by looking up
// those around it, at most 128, and one step in the order.
type denials struct {
	fences []volume.Fence // in order
	first  map[netip.Prefix]int
}

// deniers indexes the fences of a list that deny and that are chosen.
func deniers(list []volume.Fence, chosen func(volume.Fence) bool) denials {
	d := denials{first: map[netip.Prefix]int{}}
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

// overlapping returns one of the fences that overlap a block: the same block,
// else the smallest around it, else the first inside.
func (d denials) overlapping(block netip.Prefix) (volume.Fence, bool) {
	for bits := block.Bits(); bits >= 0; bits-- {
		around := netip.PrefixFrom(block.Addr(), bits).Masked()
		if i, found := d.first[around]; found {
			return d.fences[i], true
		}
	}
	// Nothing is around, so what comes next in the order is inside or apart.
	i, _ := slices.BinarySearchFunc(d.fences, block, func(f volume.Fence, p netip.Prefix) int { return f.Block.Compare(p) })
	if i < len(d.fences) && block.Contains(d.fences[i].Block.Addr()) {
		return d.fences[i], true
	}
	return volume.Fence{}, false
}
