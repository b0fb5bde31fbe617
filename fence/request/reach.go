package request

import (
	"net/netip"
	"slices"

	"github.com/cleatproject/cleat/fence/plan"
	"github.com/cleatproject/cleat/internal/cidr"
)

// Network is what decides whether a block can be fenced.
type Network struct {
	Own       []netip.Addr // addresses of this server and its peers, loopback among them
	Broadcast []netip.Addr // of this server's interfaces
}

// CheckReach refuses an ask that no client can match, and, unless it is forced,
// one that would cut this server off from itself or from everybody.
func CheckReach(ask plan.Ask, network Network) error {
	var wrong findings
	for _, block := range ask.Blocks {
		if why := withoutClients(block, network.Broadcast); why != "" {
			wrong.add("%s is %s, from which no client sends", block, why)
		}
	}
	if wrong.all > 0 {
		return invalidf("%w; nothing was fenced. Name the client's own address", wrong.err())
	}
	if ask.Force {
		return nil
	}
	merged, err := cidr.Merge(ask.Blocks)
	if err != nil {
		return err
	}
	for _, block := range merged {
		if block.Bits() == 0 {
			wrong.add("the blocks together are %s, which is everybody and this server too", block)
		}
	}
	if wrong.all == 0 {
		for _, block := range ask.Blocks {
			if addr, covered := coveredOf(block, network.Own); covered {
				wrong.add("%s covers %s, an address of this server or of a peer", block, addr)
			}
		}
	}
	if wrong.all == 0 {
		return nil
	}
	return invalidf("%w; nothing was fenced. Leave it out, or insist with the parameter %s=true", wrong.err(), ForceParameter)
}

// withoutClients says what a block is, if no client can have an address in it.
// The last address of a network is a broadcast address only where an interface
// of this server says so: 10.0.0.255 in a /23 is a host.
func withoutClients(block netip.Prefix, broadcast []netip.Addr) string {
	var (
		thisNetwork = netip.PrefixFrom(netip.AddrFrom4([4]byte{}), 8)  // RFC 1122
		compatible  = netip.PrefixFrom(netip.IPv6Unspecified(), 96)    // RFC 4291, deprecated
		limited     = netip.AddrFrom4([4]byte{0xff, 0xff, 0xff, 0xff}) // RFC 919
		within      = func(p netip.Prefix) bool { return block.Bits() >= p.Bits() && p.Contains(block.Addr()) }
		is          = func(a netip.Addr) bool { return block.IsSingleIP() && block.Addr() == a }
	)
	switch {
	case within(thisNetwork):
		return "in 0.0.0.0/8"
	case within(compatible) && !is(netip.IPv6Loopback()):
		return "an IPv4 address in the old form ::a.b.c.d"
	case is(limited), slices.ContainsFunc(broadcast, is):
		return "a broadcast address"
	}
	return ""
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
