// Package cidr computes sets of addresses. All functions refuse invalid blocks,
// since ignoring one would leave a gap in a fence.
package cidr

import (
	"net/netip"
	"slices"

	"go4.org/netipx"

	"github.com/cleatproject/cleat/errs"
)

// Set returns the union of blocks. Invalid: an invalid prefix.
func Set(blocks []netip.Prefix) (*netipx.IPSet, error) { return difference(blocks, nil) }

// Merge returns the union as the minimal sorted list of disjoint blocks.
func Merge(blocks []netip.Prefix) ([]netip.Prefix, error) { return Missing(nil, blocks) }

// Missing returns what held lacks of wanted, disjoint and sorted.
func Missing(held, wanted []netip.Prefix) ([]netip.Prefix, error) {
	set, err := difference(wanted, held)
	if err != nil {
		return nil, err
	}
	return set.Prefixes(), nil
}

// Common returns the addresses that are in both lists, disjoint and sorted.
func Common(a, b []netip.Prefix) ([]netip.Prefix, error) {
	onlyA, err := Missing(b, a)
	if err != nil {
		return nil, err
	}
	return Missing(onlyA, a)
}

func difference(from, without []netip.Prefix) (*netipx.IPSet, error) {
	var b netipx.IPSetBuilder
	for _, p := range slices.Concat(from, without) {
		if !p.IsValid() {
			return nil, errs.Errorf(errs.Invalid, "block %q is not a valid CIDR block, such as 192.0.2.0/24 or 2001:db8::/32", p)
		}
	}
	for _, p := range from {
		b.AddPrefix(p)
	}
	for _, p := range without {
		b.RemovePrefix(p)
	}
	return b.IPSet()
}
