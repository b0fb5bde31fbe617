package plan

import (
	"net/netip"

	"github.com/cleatproject/cleat/internal/cidr"
	"github.com/cleatproject/cleat/volume"
)

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
