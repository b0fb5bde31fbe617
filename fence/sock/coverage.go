package sock

import (
	"cmp"
	"context"
	"net/netip"
	"os"
	"slices"
	"strings"

	"go4.org/netipx"

	"github.com/cleatproject/cleat/fence/ports"
	"github.com/cleatproject/cleat/internal/cidr"
	"github.com/cleatproject/cleat/internal/linux/sockdiag"
	"github.com/cleatproject/cleat/internal/linux/sockfd"
	"github.com/cleatproject/cleat/volume"
)

// storageServers are the names (comm, at most 15 bytes) of processes that serve
// storage: a client's session with one of them is a way to the data on any port.
// SPDK's targets also run as reactor_0, with the number of their first core.
func storageServers() []string {
	return []string{
		"nbd-server", "qemu-nbd", "qemu-storage-da", "nbdkit", "tgtd", "smbd", "ganesha.nfsd", "glusterfsd", "glusterd",
		"ceph-osd", "ceph-mds", "ceph-mon", "nvmf_tgt", "spdk_tgt", "iscsi_tgt", "beegfs-storage",
	}
}

func isStorageServer(p sockfd.Process) bool {
	return slices.Contains(storageServers(), p.Name) || strings.HasPrefix(p.Name, "reactor_")
}

// Coverage reads which servers listen on the fenced ports, and which sessions
// clients in the blocks have on these and on other ports. Kernel targets have
// listeners without a process. Servers in other network namespaces are not seen,
// but connections that are forwarded to them. RDMA has no sockets: Uncovered.
func (s *Sockets) Coverage(ctx context.Context, blocks []netip.Prefix) (volume.Coverage, error) {
	fenced, err := cidr.Set(blocks)
	if err != nil {
		return volume.Coverage{}, err
	}
	all, err := s.sockets()
	if err != nil {
		return volume.Coverage{}, err
	}
	view := coverageView{config: s.config, boot: s.boot, listeners: map[uint16][]sockdiag.Socket{}}
	wanted := view.sort(all, fenced)
	if view.held, _, err = sockfd.Holders(ctx, wanted); err != nil {
		return volume.Coverage{}, inspectError(err)
	}
	coverage := view.coverage()
	if coverage.Forwarded, err = s.forwarded(ctx, fenced); err != nil {
		return volume.Coverage{}, err
	}
	if !s.config.AllowRDMA {
		coverage.Uncovered, err = rdmaServers(hostRoot())
	}
	return coverage, err
}

// coverageView is what Coverage reads of the kernel.
type coverageView struct {
	config    Config
	boot      string
	listeners map[uint16][]sockdiag.Socket // by port
	sessions  []sockdiag.Socket            // of clients in the blocks
	held      map[uint32][]sockfd.Process  // by inode
}

// sort keeps listeners and the clients' sessions, and returns their inodes.
func (v *coverageView) sort(all map[uint64]sockdiag.Socket, fenced *netipx.IPSet) map[uint32]bool {
	wanted := map[uint32]bool{}
	for _, one := range all {
		port := one.Local.Port()
		switch role := roleOf(one); {
		case one.State == sockdiag.Listen:
			v.listeners[port] = append(v.listeners[port], one)
		// A connection without data says nothing on a port that stays open.
		case fenced.Contains(one.Remote.Addr()) && (role == served || role == unaccepted || role == beginning && v.config.Ports.Contains(port)):
			v.sessions = append(v.sessions, one)
		default:
			continue
		}
		wanted[one.Inode] = one.Inode != 0
	}
	return wanted
}

// processes of an unaccepted connection are those that listen.
func (v *coverageView) processes(one sockdiag.Socket) (all []sockfd.Process) {
	if one.Inode != 0 {
		return v.held[one.Inode]
	}
	for _, l := range v.listeners[one.Local.Port()] {
		all = append(all, v.held[l.Inode]...)
	}
	return all
}

func (v *coverageView) coverage() volume.Coverage {
	c := volume.Coverage{Servers: []volume.Listener{}}
	for port, listeners := range v.listeners {
		for _, one := range listeners {
			holders := v.held[one.Inode]
			found := volume.Listener{Address: one.Local, Holder: firstProcesses(holders)}
			switch {
			case one.Local.Addr().IsLoopback(), isOwn(holders):
			case v.config.Ports.Contains(port):
				c.Servers = append(c.Servers, found)
			case v.servesStorage(port, holders):
				c.Unfenced = append(c.Unfenced, found)
			}
		}
	}
	for _, one := range v.sessions {
		holders, port := v.processes(one), one.Local.Port()
		session := volume.Session{
			ID: identity{v.boot, one.Cookie, one.Inode}.String(), Client: one.Remote, Server: one.Local, Holder: firstProcesses(holders),
		}
		switch isFenced := v.config.Ports.Contains(port); {
		case isFenced && isOwn(holders):
		case isFenced:
			c.Sessions = append(c.Sessions, session)
			if one.Inode != 0 && len(holders) == 0 && !v.config.KernelTargets {
				c.Unobserved = append(c.Unobserved, session)
			}
		case v.servesStorage(port, holders):
			c.Unprotected = append(c.Unprotected, session)
		default:
			c.Others = append(c.Others, session)
		}
	}
	for _, listeners := range [][]volume.Listener{c.Servers, c.Unfenced} {
		slices.SortFunc(listeners, func(a, b volume.Listener) int { return a.Address.Compare(b.Address) })
	}
	for _, sessions := range [][]volume.Session{c.Sessions, c.Unobserved, c.Unprotected, c.Others} {
		slices.SortFunc(sessions, func(a, b volume.Session) int {
			return cmp.Or(a.Server.Compare(b.Server), a.Client.Compare(b.Client), strings.Compare(a.ID, b.ID))
		})
	}
	return c
}

// servesStorage: a known storage server, the kernel (nfsd, nvmet, DRBD), or a
// server on a port of a storage protocol. A local port of an outgoing connection
// can be such a number too, without a listener.
func (v *coverageView) servesStorage(port uint16, holders []sockfd.Process) bool {
	return len(holders) == 0 || slices.ContainsFunc(holders, isStorageServer) ||
		len(v.listeners[port]) > 0 && ports.Storage().Contains(port)
}

// isOwn: this process listens itself, for peers.
func isOwn(holders []sockfd.Process) bool {
	return slices.ContainsFunc(holders, func(p sockfd.Process) bool { return p.PID == os.Getpid() })
}
