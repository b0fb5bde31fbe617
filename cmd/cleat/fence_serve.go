package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cleatproject/cleat/csi"
	"github.com/cleatproject/cleat/fence/enforce"
	"github.com/cleatproject/cleat/fence/nft"
	"github.com/cleatproject/cleat/fence/ports"
	"github.com/cleatproject/cleat/fence/request"
	"github.com/cleatproject/cleat/fence/service"
	"github.com/cleatproject/cleat/fence/sock"
	"github.com/cleatproject/cleat/internal/ledger"
	"github.com/cleatproject/cleat/internal/linux/netaddr"
	"github.com/cleatproject/cleat/internal/server"
	"github.com/cleatproject/cleat/internal/store"
)

const (
	defaultFenceEndpoint = "unix:///run/cleat/fence/fence.sock"
	defaultFenceState    = "/var/lib/cleat/fence"
	defaultFenceName     = "fence.cleat.dev"
	defaultFenceTable    = "cleat_fence"
)

// fenceServer is cleat fence serve.
type fenceServer struct {
	server.Server
	fencing
	portNames      []string
	allPorts       bool
	peersOnly      bool
	kernelTargets  bool
	liftUnrecorded bool
	table          string
	ports          ports.Set // derived from portNames and allPorts

	filter  *nft.Filter   // nil with --peers-only
	sockets *sock.Sockets // nil with --peers-only
}

func newFenceServeCommand() *cobra.Command {
	return serving(&cobra.Command{
		Use:   "serve",
		Short: "Fence the clients of storage servers that run on this machine",
		Long: `Serves CSI-Addons (Identity and FenceController) on a UNIX socket, for any storage
server on this machine, and enforces the fences: nftables drops what fenced
clients send to the storage ports, and their sessions are ended at the sockets. A
call is answered when both were read back and no process holds such a socket.

It must run in the network namespace of the storage server, where it can see the
server's processes. It needs root, or CAP_NET_ADMIN, CAP_SYS_PTRACE and, for
servers of other users, CAP_DAC_READ_SEARCH. Storage targets in the kernel (nvmet,
LIO, nfsd) have no process to wait for: give --kernel-targets, and read
docs/fencing.md for what then holds.

Fences outlive this process: they are on record in --state-dir, and the packet
filter stays, held by another process. The next start enforces all of them before
it listens.

With --peer it forwards fences to servers on other machines, and answers when all
have fenced; --peers-only does nothing else. Servers call each other over mutual
TLS (--listen, --tls-cert, --tls-key, --tls-ca).`,
		Example: `  sudo cleat fence serve
  sudo cleat fence serve --ports 4420,3260
  sudo cleat fence serve --ports nvme-tcp --kernel-targets --listen :9070 --tls-cert a.pem --tls-key a.key --tls-ca ca.pem
  sudo cleat fence serve --peers-only --peer a=storage-a:9070 --peer b=storage-b:9070 --tls-cert c.pem --tls-key c.key --tls-ca ca.pem`,
		Args: exactlyNone,
	}, &fenceServer{})
}

func (s *fenceServer) addFlags(fs *pflag.FlagSet) {
	fs.StringVar(&s.name, "name", defaultFenceName, "name of the driver for GetIdentity and for peers, a domain name")
	fs.StringSliceVar(&s.portNames, "ports", nil, "ports of the storage servers: numbers, ranges as 6800-7568, or "+strings.Join(ports.Protocols(), ", ")+"; all of these protocols by default")
	fs.BoolVar(&s.allPorts, "all-ports", false, "fence all traffic to this machine, not only that to storage")
	fs.BoolVar(&s.peersOnly, "peers-only", false, "enforce nothing on this machine, only at the peers")
	fs.BoolVar(&s.kernelTargets, "kernel-targets", false, "count sockets that no process holds, those of kernel targets, as ended when they are destroyed")
	fs.BoolVar(&s.liftUnrecorded, "lift-unrecorded", false, "begin a new record also where the packet filter holds fences of an earlier one, which are then lifted")
	fs.StringVar(&s.table, "table", defaultFenceTable, "name of the nftables table; two servers in one network namespace need two")
	s.fencing.addFlags(fs, "")
	s.AddAllowUIDs(fs, "allow-uid", "these users may call besides root")
	s.AddFlags(fs, server.Defaults{Endpoint: defaultFenceEndpoint, StateDir: defaultFenceState})
}

// Complete reads --ports and refuses settings that cannot work together.
func (s *fenceServer) Complete() (err error) {
	switch {
	case s.allPorts && len(s.portNames) > 0:
		return fmt.Errorf("--all-ports and --ports %s: give one of them", strings.Join(s.portNames, ","))
	case s.peersOnly && len(s.peers) == 0:
		return fmt.Errorf("--peers-only without a --peer would enforce nothing")
	case s.peersOnly && (s.allPorts || len(s.portNames) > 0 || s.kernelTargets):
		return fmt.Errorf("--peers-only enforces nothing on this machine: --ports, --all-ports and --kernel-targets are of no use with it")
	case !regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_]{0,31}$`).MatchString(s.table):
		return fmt.Errorf("--table %q: a letter, and then letters, digits and underscores are possible, 32 at most", s.table)
	case s.allPorts:
		s.ports = ports.All()
	case len(s.portNames) == 0:
		s.ports = ports.Storage()
	default:
		if s.ports, err = ports.Parse(s.portNames); err != nil {
			return fmt.Errorf("--ports: %w", err)
		}
	}
	if err := csi.CheckName(s.name); err != nil {
		return fmt.Errorf("--name: %w", err)
	}
	return s.check()
}

// Assemble implements server.Program.
func (s *fenceServer) Assemble(ctx context.Context) error {
	s.AddState(s.open)
	s.AddTelemetry()
	s.addParts(ctx, &s.Server, s.Endpoint, service.Config{Offer: service.Offer{Fence: true}})
	return nil
}

// open enforces the fences on record, before anything listens. Closing leaves
// them in force: see nft.Filter.Close.
func (s *fenceServer) open(ctx context.Context) error {
	dir, err := filepath.Abs(s.StateDir)
	if err == nil {
		err = os.MkdirAll(dir, 0o700)
	}
	if err != nil {
		return fmt.Errorf("--state-dir: %w", err)
	}
	c := enforce.Config{Network: s.network}
	if !s.peersOnly {
		if s.filter, err = nft.Open(ctx, nft.Config{
			Table: s.table, Ports: s.ports, HolderSocket: filepath.Join(dir, "holder.sock"), Holder: helper(nft.HolderCommand), Logger: s.Logger,
		}); err != nil {
			return err
		}
		s.OnClose(s.filter.Close)
		if s.sockets, err = sock.Open(ctx, sock.Config{Ports: s.ports, KernelTargets: s.kernelTargets, Logger: s.Logger}); err != nil {
			return err
		}
		s.OnClose(func(context.Context) error { return s.sockets.Close() })
		c.Locals, c.Changed = []enforce.Local{{Name: "host", Fencer: enforce.Host(s.filter, s.sockets)}}, s.filter.Changed()
	}
	const file = "fences.db"
	if err := s.checkRecord(ctx, filepath.Join(dir, file)); err != nil {
		return err
	}
	record, err := s.OpenStore(ctx, file, store.Options{Role: "fences", Version: 1, Preallocate: 4 << 20})
	if err != nil {
		return err
	}
	c.Ledger = ledger.New(record)
	if err := s.restore(ctx, &s.Server, c); err != nil {
		return err
	}
	s.Check("fences", s.enforcer.Check)
	s.Status("fences", s.status)
	return nil
}

// checkRecord refuses to begin a new record where the packet filter holds what
// an earlier one had: a state directory that was lost, or is the wrong one,
// must not open every fence.
func (s *fenceServer) checkRecord(ctx context.Context, path string) error {
	switch _, err := os.Stat(path); {
	case err == nil, s.filter == nil, s.liftUnrecorded:
		return nil
	case !errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("--state-dir: %w", err)
	}
	held, err := s.filter.Held(ctx)
	if err != nil {
		return err
	}
	if len(held) > 0 {
		return fmt.Errorf("--state-dir %s has no record of fences, but table %s holds %d blocks, %s among them: give the directory that they were recorded in, or let all of them in again with --lift-unrecorded",
			s.StateDir, s.table, len(held), held[0])
	}
	return nil
}

// network is what blocks are checked against: this machine and the peers, which
// only a forced fence covers, and the broadcast addresses of this machine.
func (s *fenceServer) network(ctx context.Context) (request.Network, error) {
	own, err := netaddr.Own()
	if err != nil {
		return request.Network{}, err
	}
	broadcast, err := netaddr.Broadcast()
	return request.Network{Own: append(own, s.peerAddrs(ctx, s.Logger)...), Broadcast: broadcast}, err
}

// status is the server's part of /status.
func (s *fenceServer) status(ctx context.Context) (any, error) {
	document := struct {
		Name    string       `json:"name"`
		Version string       `json:"version"`
		Ports   string       `json:"ports,omitempty"`
		Filter  *nft.Status  `json:"filter,omitempty"`
		Sockets *sock.Status `json:"sockets,omitempty"`
		enforce.Status
	}{Name: s.name, Version: release}
	if s.filter != nil {
		filter, sockets := s.filter.Status(), s.sockets.Status()
		document.Ports, document.Filter, document.Sockets = s.ports.String(), &filter, &sockets
	}
	var err error
	document.Status, err = s.enforcer.Status(ctx)
	return document, err
}
