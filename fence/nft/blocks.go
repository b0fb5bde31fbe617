package nft

import (
	"bytes"
	"fmt"
	"net/netip"
	"slices"

	"go4.org/netipx"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/cidr"
	"github.com/cleatproject/cleat/internal/linux/nft"
)

// setOf rejects blocks that the kernel would interpret differently.
func setOf(blocks []netip.Prefix) (*netipx.IPSet, error) {
	for _, block := range blocks {
		switch {
		case block.Addr().Is4In6():
			return nil, errs.Errorf(errs.Invalid, "block %s is an IPv4 block written as IPv6; write it as IPv4", block)
		case block.IsValid() && block != block.Masked():
			return nil, errs.Errorf(errs.Invalid, "block %s has host bits set; write %s", block, block.Masked())
		}
	}
	return cidr.Set(blocks)
}

func elements(set *netipx.IPSet) (v4, v6 []nft.Element) {
	for _, r := range set.Ranges() {
		if r.From().Is4() {
			v4 = append(v4, interval(r)...)
		} else {
			v6 = append(v6, interval(r)...)
		}
	}
	return v4, v6
}

// The kernel expects the address after a range as its end, and none after the
// last address.
func interval(r netipx.IPRange) []nft.Element {
	out := []nft.Element{{Key: r.From().AsSlice()}}
	if next := r.To().Next(); next.IsValid() {
		out = append(out, nft.Element{Key: next.AsSlice(), End: true})
	}
	return out
}

func parseIntervals(elements []nft.Element, addressLen int) (blocks []netip.Prefix, err error) {
	elements = slices.Clone(elements)
	for _, e := range elements {
		if e.Odd != "" || len(e.Key) != addressLen {
			return nil, fmt.Errorf("element with key %x is not a plain address (%s)", e.Key, e.Odd)
		}
	}
	slices.SortFunc(elements, func(a, b nft.Element) int {
		if c := bytes.Compare(a.Key, b.Key); c != 0 || a.End == b.End {
			return c
		}
		if a.End { // ends sort first
			return -1
		}
		return 1
	})
	var from netip.Addr
	for _, e := range elements {
		at, _ := netip.AddrFromSlice(e.Key)
		switch {
		case e.End && from.IsValid():
			blocks = netipx.IPRangeFrom(from, at.Prev()).AppendPrefixes(blocks)
			from = netip.Addr{}
		case e.End: // nft(8) adds one at the lowest address
		case from.IsValid():
			return nil, fmt.Errorf("the interval that begins at %s has no end before %s", from, at)
		default:
			from = at
		}
	}
	if from.IsValid() {
		blocks = netipx.IPRangeFrom(from, netipx.PrefixLastIP(netip.PrefixFrom(from, 0))).AppendPrefixes(blocks)
	}
	return blocks, nil
}
