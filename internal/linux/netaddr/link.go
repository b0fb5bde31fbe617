package netaddr

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"go4.org/netipx"
	"golang.org/x/sys/unix"
)

// address is an address of an interface.
type address struct {
	prefix netip.Prefix // not masked
	link   int
	flags  int // IFA_F_*
}

func (a address) addr() netip.Addr { return a.prefix.Addr() }

func (a address) has(flag int) bool { return a.flags&flag != 0 }

// isVirtual: a permanent address without a network, such as the virtual IP of
// keepalived or kube-vip, moves between machines. Those of DHCP have a lifetime.
func (a address) isVirtual() bool { return a.prefix.IsSingleIP() && a.has(unix.IFA_F_PERMANENT) }

func (a address) isUsable() bool {
	return a.addr().IsGlobalUnicast() && !a.has(unix.IFA_F_DADFAILED)
}

// OnLinks returns sources, and all other addresses of their interfaces that a
// connection to the storage can have: also temporary and deprecated ones, which
// existing connections keep. Virtual addresses are only returned as sources.
func OnLinks(sources []netip.Addr) ([]netip.Addr, error) {
	all, err := addresses()
	return onLinks(all, sources), err
}

// Stable returns sources with a stable address of the same network in place of each
// temporary one (RFC 8981), or without it if the interface has none.
func Stable(sources []netip.Addr) ([]netip.Addr, error) {
	all, err := addresses()
	return stable(all, sources), err
}

func onLinks(all []address, sources []netip.Addr) []netip.Addr {
	found := slices.Clone(sources)
	for _, a := range all {
		isOnLink := slices.ContainsFunc(all, func(b address) bool { return b.link == a.link && slices.Contains(sources, b.addr()) })
		if isOnLink && a.isUsable() && !a.isVirtual() {
			found = append(found, a.addr())
		}
	}
	slices.SortFunc(found[len(sources):], netip.Addr.Compare)
	return unique(found)
}

func stable(all []address, sources []netip.Addr) []netip.Addr {
	var found []netip.Addr
	for _, source := range sources {
		i := slices.IndexFunc(all, func(a address) bool { return a.addr() == source && a.has(unix.IFA_F_TEMPORARY) })
		if i < 0 || source.Is4() { // for IPv4 the flag means a secondary address
			found = append(found, source)
			continue
		}
		var same []netip.Addr
		for _, a := range all {
			if a.link == all[i].link && all[i].prefix.Contains(a.addr()) && a.isUsable() && !a.isVirtual() &&
				!a.has(unix.IFA_F_TEMPORARY|unix.IFA_F_DEPRECATED) {
				same = append(same, a.addr())
			}
		}
		if len(same) > 0 {
			found = append(found, slices.MinFunc(same, netip.Addr.Compare))
		}
	}
	return unique(found)
}

// unique keeps the order.
func unique(all []netip.Addr) []netip.Addr {
	var found []netip.Addr
	for _, a := range all {
		if !slices.Contains(found, a) {
			found = append(found, a)
		}
	}
	return found
}

func addresses() ([]address, error) {
	listed, err := netlink.AddrList(nil, netlink.FAMILY_ALL)
	for range 10 { // the addresses changed meanwhile
		if !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
		listed, err = netlink.AddrList(nil, netlink.FAMILY_ALL)
	}
	if err != nil {
		return nil, fmt.Errorf("list this machine's addresses: %w", err)
	}
	var all []address
	for _, l := range listed {
		prefix, ok := netipx.FromStdIPNet(l.IPNet)
		if !ok {
			return nil, fmt.Errorf("list this machine's addresses: %v is not a prefix", l.IPNet)
		}
		all = append(all, address{netip.PrefixFrom(prefix.Addr().Unmap(), prefix.Bits()), l.LinkIndex, l.Flags})
	}
	return all, nil
}
