package sock

import (
	"cmp"
	"context"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/cleatproject/cleat/internal/cidr"
	"github.com/cleatproject/cleat/internal/linux/sockdiag"
	"github.com/cleatproject/cleat/internal/linux/sockfd"
	"github.com/cleatproject/cleat/volume"
)

// storageServers are the names (comm, at most 15 bytes) of processes that serve
// storage: a client's session with one of them is a way to the data on any port.
// SPDK's targets run as reactor_0.
func storageServers() []string {
	return []string{
		"nbd-server", "qemu-nbd", "nbdkit", "tgtd", "smbd", "ganesha.nfsd", "glusterfsd", "glusterd",
		"ceph-osd", "ceph-mds", "ceph-mon", "nvmf_tgt", "spdk_tgt", "iscsi_tgt", "reactor_0", "beegfs-storage",
	}
}

// Coverage reads which servers listen on the fenced ports, and which sessions
// clients in the blocks have with storage servers on other ports. Kernel targets
// have listeners without a process. Servers in other network namespaces are
// not seen, but connections that are forwarded to them; RDMA is not.
func (s *Sockets) Coverage(ctx context.Context, blocks []netip.Prefix) (volume.Coverage, error) {
	fenced, err := cidr.Set(blocks)
	if err != nil {
		return volume.Coverage{}, err
	}
	all, err := s.sockets()
	if err != nil {
		return volume.Coverage{}, err
	}
	var listeners, outside []sockdiag.Socket
	wanted := map[uint32]bool{}
	for _, one := range all {
		isFencedPort := s.config.Ports.Contains(one.Local.Port())
		switch {
		case one.State == sockdiag.Listen && isFencedPort && !one.Local.Addr().IsLoopback():
			listeners = append(listeners, one)
		case roleOf(one) == served && !isFencedPort && fenced.Contains(one.Remote.Addr()):
			outside = append(outside, one)
		default:
			continue
		}
		wanted[one.Inode] = one.Inode != 0
	}
	held, _, err := sockfd.Holders(ctx, wanted)
	if err != nil {
		return volume.Coverage{}, inspectError(err)
	}
	coverage := volume.Coverage{Servers: []volume.Listener{}}
	for _, one := range listeners {
		if holders := held[one.Inode]; !isOwn(holders) {
			coverage.Servers = append(coverage.Servers, volume.Listener{Address: one.Local, Holder: firstProcesses(holders)})
		}
	}
	for _, one := range outside {
		// The kernel serves storage too (nfsd, nvmet, DRBD), and has no process.
		if holders := held[one.Inode]; len(holders) == 0 || slices.ContainsFunc(holders, isStorageServer) {
			coverage.Unprotected = append(coverage.Unprotected, volume.Session{
				ID: identity{s.boot, one.Cookie, one.Inode}.String(), Client: one.Remote, Server: one.Local, Holder: firstProcesses(holders),
			})
		}
	}
	if coverage.Forwarded, err = s.forwarded(fenced); err != nil {
		return volume.Coverage{}, err
	}
	slices.SortFunc(coverage.Servers, func(a, b volume.Listener) int { return a.Address.Compare(b.Address) })
	slices.SortFunc(coverage.Unprotected, func(a, b volume.Session) int {
		return cmp.Or(a.Server.Compare(b.Server), a.Client.Compare(b.Client), strings.Compare(a.ID, b.ID))
	})
	return coverage, nil
}

// isOwn: this process listens itself, for peers.
func isOwn(holders []sockfd.Process) bool {
	return slices.ContainsFunc(holders, func(p sockfd.Process) bool { return p.PID == os.Getpid() })
}

func isStorageServer(p sockfd.Process) bool { return slices.Contains(storageServers(), p.Name) }
