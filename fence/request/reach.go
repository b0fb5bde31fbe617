package request

import (
	"net/netip"

	"github.com/cleatproject/cleat/fence/plan"
)

// CheckReach refuses an ask that would cut this server off from itself, or
// from everybody, unless it insists. own are the addresses of this server and
// its peers, loopback among them.
func CheckReach(ask plan.Ask, own []netip.Addr) error {
	if ask.Force {
		return nil
	}
	var wrong findings
	for _, block := range plan.Merge(ask.Blocks) {
		if block.Bits() == 0 {
			wrong.add("the blocks together are %s, which is everybody and this server too", block)
		}
	}
	if wrong.all == 0 {
		for _, block := range ask.Blocks {
			if addr, covered := coveredOf(block, own); covered {
				wrong.add("%s covers %s, an address of this server or of a peer", block, addr)
			}
		}
	}
	if wrong.all == 0 {
		return nil
	}
	return invalidf("%w; nothing was fenced. Leave it out, or insist with the parameter %s=true", wrong.err(), ForceParameter)
}

// coveredOf returns the first of the server's addresses that a block covers.
// All of 127.0.0.0/8 is the server's, whatever its interfaces list.
func coveredOf(block netip.Prefix, own []netip.Addr) (netip.Addr, bool) {
	for _, addr := range own {
		// As interfaces list them: with zones, which blocks never match.
		if addr = addr.Unmap().WithZone(""); block.Contains(addr) {
			return addr, true
		}
	}
	if loopback := netip.PrefixFrom(netip.AddrFrom4([4]byte{127}), 8); block.Overlaps(loopback) {
		return greater(block.Addr(), loopback.Addr()), true
	}
	return netip.Addr{}, false
}

// greater returns the greater of two addresses.
func greater(a, b netip.Addr) netip.Addr {
	if a.Less(b) {
		return b
	}
	return a
}
