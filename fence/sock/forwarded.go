package sock

import (
	"fmt"
	"net/netip"
	"os"
	"slices"

	"github.com/vishvananda/netlink"
	"go4.org/netipx"
	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/linux/netaddr"
	"github.com/cleatproject/cleat/volume"
)

// forwarded lists connections of clients in the blocks to fenced ports that this
// machine forwards to another one or to another network namespace (DNAT). The
// server's sockets are not in this namespace, so their end is not seen.
func (s *Sockets) forwarded(fenced *netipx.IPSet) ([]volume.Session, error) {
	// Without the file the kernel tracks no connections.
	if _, err := os.Stat("/proc/sys/net/netfilter/nf_conntrack_count"); os.IsNotExist(err) {
		return nil, nil
	}
	own, err := netaddr.Own()
	if err != nil {
		return nil, errs.Errorf(errs.Internal, "%w", err)
	}
	var found []volume.Session
	for _, family := range []netlink.InetFamily{unix.AF_INET, unix.AF_INET6} {
		flows, err := s.tracked.ConntrackTableList(netlink.ConntrackTable, family)
		if err != nil {
			return nil, errs.Errorf(errs.Unavailable, "list the connections that this machine forwards: %w", err)
		}
		for _, f := range flows {
			client, called := addrPort(f.Forward.SrcIP, f.Forward.SrcPort), addrPort(f.Forward.DstIP, f.Forward.DstPort)
			server := addrPort(f.Reverse.SrcIP, f.Reverse.SrcPort)
			switch {
			case f.Forward.Protocol != unix.IPPROTO_TCP, !fenced.Contains(client.Addr()), called == server,
				slices.Contains(own, server.Addr()), !s.config.Ports.Contains(called.Port()) && !s.config.Ports.Contains(server.Port()), isOver(f):
				continue
			}
			found = append(found, volume.Session{Client: client, Server: called, Holder: fmt.Sprintf("a server at %s", server)})
		}
	}
	return found, nil
}

// isOver: both sides have closed the connection, or one has reset it.
func isOver(f *netlink.ConntrackFlow) bool {
	const timeWait, closed = 7, 8 // enum tcp_conntrack
	tcp, is := f.ProtoInfo.(*netlink.ProtoInfoTCP)
	return is && (tcp.State == timeWait || tcp.State == closed)
}

func addrPort(ip []byte, port uint16) netip.AddrPort {
	addr, _ := netip.AddrFromSlice(ip)
	return netip.AddrPortFrom(addr.Unmap(), port)
}
