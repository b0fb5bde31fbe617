package request

import (
	"net/netip"
	"slices"

	"github.com/cleatproject/cleat/fence/plan"
	"github.com/cleatproject/cleat/internal/cidr"
)

// Network has the addresses that decide whether a block can be fenced.
type Network struct {
	Own       []netip.Addr // of this server and its peers, with loopback
	Broadcast []netip.Addr // of this server's interfaces
}

// CheckReach rejects blocks that cannot contain a client and, unless forced,
// those that would fence this server or all addresses.
func CheckReach(req plan.Request, network Network) error {
	var wrong findings
	for _, block := range req.Blocks {
		if why := withoutClients(block, network.Broadcast); why != "" {
			wrong.add("%s is %s, which is never a source address", block, why)
		}
	}
	if wrong.all > 0 {
		return invalidf("%w; nothing was fenced. Write the client's address", wrong.err())
	}
	if req.Force {
		return nil
	}
	merged, err := cidr.Merge(req.Blocks)
	if err != nil {
		return err
	}
	for _, block := range merged {
		if block.Bits() == 0 {
			wrong.add("the blocks together cover %s, which is all clients and this server too", block)
		}
	}
	if wrong.all == 0 {
		for _, block := range req.Blocks {
			if addr, covered := coveredOf(block, network.Own); covered {
				wrong.add("%s covers %s, an address of this server or of a peer", block, addr)
			}
		}
	}
	if wrong.all == 0 {
		return nil
	}
	return invalidf("%w; nothing was fenced. Remove the block, or force it with the parameter %s=true", wrong.err(), ForceParameter)
}

// withoutClients describes why a block cannot contain a client. A last address
// is a broadcast address only if an interface has it as one: 10.0.0.255 in a
// /23 is a host.
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
		return "an IPv4 address in the deprecated form ::a.b.c.d"
	case is(limited), slices.ContainsFunc(broadcast, is):
		return "a broadcast address"
	}
	return ""
}

// All of 127.0.0.0/8 is the server's, whatever its interfaces list.
func coveredOf(block netip.Prefix, own []netip.Addr) (netip.Addr, bool) {
	for _, addr := range own {
		// Addresses with zones never match blocks.
		if addr = addr.Unmap().WithZone(""); block.Contains(addr) {
			return addr, true
		}
	}
	if loopback := netip.PrefixFrom(netip.AddrFrom4([4]byte{127}), 8); block.Overlaps(loopback) {
		return greater(block.Addr(), loopback.Addr()), true
	}
	return netip.Addr{}, false
}

func greater(a, b netip.Addr) netip.Addr {
	if a.Less(b) {
		return b
	}
	return a
}
