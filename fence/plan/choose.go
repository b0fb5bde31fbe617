package plan

import (
	"net/netip"
	"slices"

	"github.com/cleatproject/cleat/internal/cidr"

	"github.com/cleatproject/cleat/volume"
)

// Unconfirmed returns the blocks of a request whose fence was never confirmed
// to its owner. They are rolled back when the request is refused, even if an
// earlier attempt recorded them.
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

// InPhase returns the blocks of a request whose records are in a phase.
func InPhase(now []volume.Fence, req Request, phase volume.FencePhase) []netip.Prefix {
	var blocks []netip.Prefix
	for _, f := range now {
		if req.includes(f) && f.Phase == phase {
			blocks = append(blocks, f.Block)
		}
	}
	return blocks
}

// Owners returns one request per owner that has records of exactly these
// blocks.
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

// Desired returns the blocks to enforce: the union of the fences in phase
// Fenced or Fencing, merged as by cidr.Merge.
func Desired(now []volume.Fence) ([]netip.Prefix, error) { return cidr.Merge(desired(now)) }

// Released returns the addresses that are to be enforced before a change and
// not after it.
func Released(before, after []volume.Fence) ([]netip.Prefix, error) {
	return cidr.Missing(desired(after), desired(before))
}

func desired(list []volume.Fence) []netip.Prefix {
	var blocks []netip.Prefix
	for _, f := range list {
		if f.Wanted() {
			blocks = append(blocks, f.Block)
		}
	}
	return blocks
}
