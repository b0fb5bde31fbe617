package plan

import (
	"net/netip"
	"slices"

	"github.com/cleatproject/cleat/internal/cidr"

	"github.com/cleatproject/cleat/volume"
)

// Unanswered returns the blocks of an ask of which its owner was never told that
// they hold: what has to go again when the ask is refused. An attempt that was
// killed behind its intent is no reason to stay.
func Unanswered(before []volume.Fence, ask Ask) []netip.Prefix {
	added := ask.missing(before)
	for _, f := range before {
		if ask.has(f) && f.Phase != volume.Fenced {
			added = append(added, f.Block)
		}
	}
	slices.SortFunc(added, netip.Prefix.Compare)
	return added
}

// InPhase returns the blocks of an ask whose records are in a phase.
func InPhase(now []volume.Fence, ask Ask, phase volume.FencePhase) []netip.Prefix {
	var blocks []netip.Prefix
	for _, f := range now {
		if ask.has(f) && f.Phase == phase {
			blocks = append(blocks, f.Block)
		}
	}
	return blocks
}

// Owners returns what everybody has on record of just these blocks, as each
// would have asked for it.
func Owners(now []volume.Fence, blocks []netip.Prefix) []Ask {
	var all []Ask
	for _, f := range now {
		if _, found := slices.BinarySearchFunc(blocks, f.Block, netip.Prefix.Compare); !found {
			continue
		}
		i := slices.IndexFunc(all, func(a Ask) bool { return a.Owner.Digest == f.Owner.Digest })
		if i < 0 {
			i = len(all)
			all = append(all, Ask{Owner: f.Owner})
		}
		all[i].Blocks = append(all[i].Blocks, f.Block)
	}
	return all
}

// Wanted returns what is to be enforced: the union of the fences that are
// fenced or being fenced, merged as by cidr.Merge.
func Wanted(now []volume.Fence) ([]netip.Prefix, error) { return cidr.Merge(wanted(now)) }

// Released returns what was to be enforced before and is not after.
func Released(before, after []volume.Fence) ([]netip.Prefix, error) {
	return cidr.Missing(wanted(after), wanted(before))
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
