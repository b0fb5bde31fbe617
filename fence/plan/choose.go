package plan

import (
	"net/netip"
	"slices"

	"github.com/cleatproject/cleat/internal/cidr"

	"github.com/cleatproject/cleat/volume"
)

// Unconfirmed returns the blocks of a request never confirmed to its owner. A
// refused request rolls them back, also those of earlier attempts.
func Unconfirmed(before []volume.Fence, req Request) []netip.Prefix {
	added := req.missing(before)
	for _, f := range before {
		if req.includes(f) && f.Phase != volume.Fenced {
			added = append(added, f.Block)
		}
	}
	slices.SortFunc(added, netip.Prefix.Compare)
	return added
}

// InPhase returns a request's blocks whose records are in a phase.
func InPhase(now []volume.Fence, req Request, phase volume.FencePhase) []netip.Prefix {
	var blocks []netip.Prefix
	for _, f := range now {
		if req.includes(f) && f.Phase == phase {
			blocks = append(blocks, f.Block)
		}
	}
	return blocks
}

// Owners returns a request per owner of exactly these blocks.
func Owners(now []volume.Fence, blocks []netip.Prefix) []Request {
	var all []Request
	for _, f := range now {
		if _, found := slices.BinarySearchFunc(blocks, f.Block, netip.Prefix.Compare); !found {
			continue
		}
		i := slices.IndexFunc(all, func(a Request) bool { return a.Owner.Digest == f.Owner.Digest })
		if i < 0 {
			i = len(all)
			all = append(all, Request{Owner: f.Owner})
		}
		all[i].Blocks = append(all[i].Blocks, f.Block)
	}
	return all
}

// Desired returns the union of the fences in phase Fenced or Fencing, as by
// cidr.Merge.
func Desired(now []volume.Fence) ([]netip.Prefix, error) { return cidr.Merge(desired(now)) }

// Released returns the addresses that a change stops enforcing.
func Released(before, after []volume.Fence) ([]netip.Prefix, error) {
	return cidr.Missing(desired(after), desired(before))
}

func desired(list []volume.Fence) []netip.Prefix {
	var blocks []netip.Prefix
	for _, f := range list {
		if f.IsDesired() {
			blocks = append(blocks, f.Block)
		}
	}
	return blocks
}
