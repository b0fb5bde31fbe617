package plan

import (
	"fmt"
	"net/netip"

	"go4.org/netipx"

	"github.com/cleatproject/cleat/volume"
)

// Wanted returns what is to be enforced: the union of the fences that are
// fenced or on the way to it, in disjoint blocks, as few and as large as can
// be, IPv4 first.
func Wanted(now []volume.Fence) []netip.Prefix { return Merge(wanted(now)) }

// Released returns what was to be enforced before and is not after.
func Released(before, after []volume.Fence) []netip.Prefix {
	return Missing(wanted(after), wanted(before))
}

// Merge returns the union of blocks in disjoint blocks, as few and as large as
// can be, in order.
func Merge(blocks []netip.Prefix) []netip.Prefix { return Missing(nil, blocks) }

// Missing returns what of the wanted blocks does not hold, disjoint and in
// order.
func Missing(held, wanted []netip.Prefix) []netip.Prefix {
	var b netipx.IPSetBuilder
	for _, p := range wanted {
		b.AddPrefix(p)
	}
	for _, p := range held {
		b.RemovePrefix(p)
	}
	return prefixes(&b)
}

func wanted(list []volume.Fence) []netip.Prefix {
	var blocks []netip.Prefix
	for _, f := range list {
		if f.Wanted() {
			blocks = append(blocks, f.Block)
		}
	}
	return blocks
}

// prefixes panics on a block that is none: to leave it out would make a fence
// with a hole in it.
func prefixes(b *netipx.IPSetBuilder) []netip.Prefix {
	set, err := b.IPSet()
	if err != nil {
		panic(fmt.Errorf("a recorded or requested block is no prefix: %w", err))
	}
	return set.Prefixes()
}
