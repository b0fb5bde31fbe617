package spdk

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"

	rpc "github.com/cleatproject/cleat/spdk"
)

func addressOf(transport string, a netip.AddrPort) rpc.NVMeAddress {
	family := "IPv4"
	if a.Addr().Is6() {
		family = "IPv6"
	}
	return rpc.NVMeAddress{Transport: strings.ToUpper(transport), Family: family, Address: a.Addr().String(), Service: strconv.Itoa(int(a.Port()))}
}

func listensOn(s rpc.Subsystem, transport string, at netip.AddrPort) bool {
	return slices.ContainsFunc(s.Listeners, func(l rpc.Listener) bool { return isAt(l.NVMeAddress, transport, at) })
}

func isAt(l rpc.NVMeAddress, transport string, at netip.AddrPort) bool {
	a, ok := parseAddress(l)
	return ok && a == at && strings.EqualFold(l.Transport, transport)
}

func parseAddress(l rpc.NVMeAddress) (netip.AddrPort, bool) {
	addr, err := netip.ParseAddr(l.Address)
	if err != nil {
		return netip.AddrPort{}, false
	}
	port, err := strconv.ParseUint(l.Service, 10, 16)
	return netip.AddrPortFrom(addr.Unmap(), uint16(port)), err == nil
}
