// Package netaddr returns the machine's addresses in the network namespace of
// the calling thread.
package netaddr

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"go4.org/netipx"
	"golang.org/x/sys/unix"
)

// Own returns all addresses of all interfaces, up or down, and always 127.0.0.1
// and ::1: sorted, without zones, never 4in6.
func Own() ([]netip.Addr, error) {
	networks, err := networks()
	if err != nil {
		return nil, err
	}
	own := []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback()}
	for _, n := range networks {
		own = append(own, n.Addr())
	}
	slices.SortFunc(own, netip.Addr.Compare)
	return slices.Compact(own), nil
}

// Broadcast returns, sorted, the last address of each IPv4 network, as in the
// kernel (fib_add_ifaddr): not for networks of one or two addresses, nor
// loopback.
func Broadcast() ([]netip.Addr, error) {
	networks, err := networks()
	if err != nil {
		return nil, err
	}
	var broadcast []netip.Addr
	for _, n := range networks {
		if n.Addr().Is4() && n.Bits() < 31 && !n.Addr().IsLoopback() {
			broadcast = append(broadcast, netipx.PrefixLastIP(n))
		}
	}
	slices.SortFunc(broadcast, netip.Addr.Compare)
	return slices.Compact(broadcast), nil
}

func networks() ([]netip.Prefix, error) {
	listed, err := net.InterfaceAddrs()
	if err != nil {
		return nil, fmt.Errorf("list this machine's addresses: %w", err)
	}
	networks := make([]netip.Prefix, len(listed))
	for i, l := range listed {
		n, ok := l.(*net.IPNet)
		if !ok {
			return nil, fmt.Errorf("list this machine's addresses: %v is a %T", l, l)
		}
		if networks[i], ok = netipx.FromStdIPNet(n); !ok {
			return nil, fmt.Errorf("list this machine's addresses: %v is not a prefix", n)
		}
		// FromStdIPNet does not mask, but the address can be 4in6.
		networks[i] = netip.PrefixFrom(networks[i].Addr().Unmap(), networks[i].Bits())
	}
	return networks, nil
}

// Preferred returns the source addresses of the default routes: at most one
// IPv4, then at most one IPv6 address, not loopback or link-local.
func Preferred() ([]netip.Addr, error) {
	var preferred []netip.Addr
	// The A root name server: reached by the default route.
	for _, text := range []string{"198.41.0.4", "2001:503:ba3e::2:30"} {
		far := netip.MustParseAddr(text)
		source, err := source(far)
		switch {
		case isNoRoute(err):
		case err != nil:
			return nil, fmt.Errorf("find the source address of the default route: %w", err)
		case source == far: // every address is local here
		case source.IsGlobalUnicast(): // includes private addresses
			preferred = append(preferred, source)
		}
	}
	return preferred, nil
}

// source returns the local address of a connection to far. Connecting a
// datagram socket determines it without sending a packet.
func source(far netip.Addr) (netip.Addr, error) {
	conn, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(far, 9)))
	if err != nil {
		return netip.Addr{}, err
	}
	defer func() { _ = conn.Close() }()
	local, ok := conn.LocalAddr().(*net.UDPAddr)
	if !ok {
		return netip.Addr{}, fmt.Errorf("a UDP socket has the address %v", conn.LocalAddr())
	}
	return local.AddrPort().Addr().WithZone("").Unmap(), nil
}

// isNoRoute includes routes that reject packets (unreachable, prohibit,
// blackhole).
func isNoRoute(err error) bool {
	for _, none := range []error{unix.ENETUNREACH, unix.EHOSTUNREACH, unix.EADDRNOTAVAIL, unix.EAFNOSUPPORT, unix.EACCES, unix.EINVAL} {
		if errors.Is(err, none) {
			return true
		}
	}
	return false
}
