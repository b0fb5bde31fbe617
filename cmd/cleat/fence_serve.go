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
	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/fence/endpoint"
	"github.com/cleatproject/cleat/fence/enforce"
	"github.com/cleatproject/cleat/fence/nft"
	"github.com/cleatproject/cleat/fence/ports"
	"github.com/cleatproject/cleat/fence/request"
	"github.com/cleatproject/cleat/fence/service"
	"github.com/cleatproject/cleat/fence/sock"
	"github.com/cleatproject/cleat/internal/cli"
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
	fencing        endpoint.Endpoint
	portNames      []string
	allPorts       bool
	peersOnly      bool
	kernelTargets  bool
	standby        bool
	allowRDMA      bool
	liftUnrecorded bool
	table          string
	ports          ports.Set // derived from portNames and allPorts

	filter  *nft.Filter   // nil with --peers-only
	sockets *sock.Sockets // nil with --peers-only
}

func newFenceServeCommand() *cobra.Command {
	return serving(&cobra.Command{
		Use:   "serve",
		Short: "Run the network fencing service of a storage server",
		Long: `Serves CSI-Addons (Identity and FenceController) on a UNIX socket, for any storage
server on this machine, and enforces the fences: nftables drops packets from fenced
clients to the storage ports, and their sockets are closed. A call succeeds after
both were verified and no process holds such a socket.

The service must run in the network namespace of the storage server, with access to
the server's processes. It needs root, or CAP_NET_ADMIN, CAP_SYS_PTRACE and, for
servers of other users, CAP_DAC_READ_SEARCH. Storage targets in the kernel (nvmet,
LIO, nfsd) have no process to wait for: set --kernel-targets, and read
docs/fencing.md for the guarantees in this case.

Fences outlive this process: they are recorded in --state-dir, and the packet
filter stays, owned by a holder process. The next start enforces all of them before
it listens.

With --peer it forwards fences to servers on other machines, and succeeds when all
have fenced; with --peers-only it only forwards. Servers call each other over
mutual TLS (--listen, --tls-cert, --tls-key, --tls-ca).`,
		Example: `  sudo cleat fence serve
  sudo cleat fence serve --ports 4420,3260
  sudo cleat fence serve --ports nvme-tcp --kernel-targets --listen :9070 --tls-cert a.pem --tls-key a.key --tls-ca ca.pem
  sudo cleat fence serve --peers-only --peer a=storage-a:9070 --peer b=storage-b:9070 --tls-cert c.pem --tls-key c.key --tls-ca ca.pem`,
		Args: noArgs,
	}, &fenceServer{})
}

func (s *fenceServer) addFlags(fs *pflag.FlagSet) {
	fs.StringVar(&s.fencing.Name, "name", defaultFenceName, "driver name for GetIdentity and for peers, in domain name notation: do not change it while fences are in force")
	fs.StringSliceVar(&s.portNames, "ports", nil, "ports of the storage servers: numbers, ranges such as 6800-7568, or "+strings.Join(ports.Protocols(), ", ")+"; all of these protocols by default")
	cli.Enumerate(fs, "ports", ports.Protocols()...)
	fs.BoolVar(&s.allPorts, "all-ports", false, "fence all traffic to this machine, not only to the storage ports: also ssh from the client, and connections of its servers to the client")
	fs.BoolVar(&s.peersOnly, "peers-only", false, "enforce fences only at the peers, not on this machine")
	fs.BoolVar(&s.kernelTargets, "kernel-targets", false, "treat sockets without a process (of kernel targets) as ended when they are destroyed")
	fs.BoolVar(&s.standby, "standby", false, "confirm fences although no storage server listens on the ports: it runs on this machine only after a failover")
	fs.BoolVar(&s.allowRDMA, "allow-rdma", false, "confirm fences although storage servers accept RDMA, whose sessions only the servers themselves can end")
	fs.BoolVar(&s.liftUnrecorded, "lift-unrecorded", false, "create a new record even if the packet filter has fences of another record, which are then removed")
	fs.StringVar(&s.table, "table", defaultFenceTable, "name of the nftables table; each server in a network namespace needs its own")
	s.fencing.AddFlags(fs, "")
	s.AddAllowUIDs(fs, "allow-uid", "user IDs, besides root, that are allowed to call, and so to stop every workload")
	s.AddFlags(fs, server.Defaults{Endpoint: defaultFenceEndpoint, StateDir: defaultFenceState})
}

// Complete reads --ports and refuses settings that cannot work together.
func (s *fenceServer) Complete() (err error) {
	switch {
	case s.allPorts && len(s.portNames) > 0:
		return fmt.Errorf("--all-ports and --ports %s are mutually exclusive: set one of them", strings.Join(s.portNames, ","))
	case s.peersOnly && len(s.fencing.Peers) == 0:
		return fmt.Errorf("--peers-only requires at least one --peer")
	case s.peersOnly && (s.allPorts || len(s.portNames) > 0 || s.kernelTargets || s.standby || s.allowRDMA):
		return fmt.Errorf("--peers-only enforces no fences on this machine: --ports, --all-ports, --kernel-targets, --standby and --allow-rdma cannot be set with it")
	case !regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_]{0,31}$`).MatchString(s.table):
		return fmt.Errorf("--table %q is invalid: use a letter, followed by letters, digits and underscores, at most 32 characters", s.table)
	case s.allPorts:
		s.ports = ports.All()
	case len(s.portNames) == 0:
		s.ports = ports.Storage()
	default:
		if s.ports, err = ports.Parse(s.portNames); err != nil {
			return fmt.Errorf("--ports: %w", err)
		}
	}
	if err := csi.CheckName(s.fencing.Name); err != nil {
		return fmt.Errorf("--name: %w", err)
	}
	s.fencing.Version = release
	return s.fencing.Check()
}

// Assemble implements server.Program.
func (s *fenceServer) Assemble(ctx context.Context) error {
	s.AddState(s.open)
	s.AddTelemetry()
	s.fencing.AddParts(ctx, &s.Server, s.Endpoint, service.Config{Offer: service.Offer{Fence: true}})
	return nil
}

// open enforces the recorded fences before anything listens. They outlast
// Close: see nft.Filter.Close.
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
		if s.sockets, err = sock.Open(ctx, sock.Config{Ports: s.ports, KernelTargets: s.kernelTargets, AllowRDMA: s.allowRDMA, Logger: s.Logger}); err != nil {
			return err
		}
		s.OnClose(func(context.Context) error { return s.sockets.Close() })
		c.Locals, c.Changed = []enforce.Local{{Name: "host", Fencer: enforce.Host(s.filter, s.sockets), Standby: s.standby}}, s.filter.Changed()
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
	if err := s.fencing.Restore(ctx, &s.Server, c); err != nil {
		return err
	}
	s.Check("fences", s.fencing.Enforcer.Check)
	s.Check("coverage", s.fencing.Enforcer.CheckCoverage)
	s.Status("fences", s.status)
	return nil
}

// checkRecord refuses a new record while the packet filter has fences of an
// earlier one: a lost or wrong state directory must not remove every fence.
func (s *fenceServer) checkRecord(ctx context.Context, path string) error {
	switch _, err := os.Stat(path); {
	case err == nil, s.filter == nil, s.liftUnrecorded:
		return nil
	case !errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("--state-dir: %w", err)
	}
	blocks, err := s.filter.Blocks(ctx)
	if errs.KindOf(err) == errs.Precondition {
		return fmt.Errorf("--state-dir %s has no record of fences, and those in table %s are not known: set the directory with their record, or unfence all of them with --lift-unrecorded: %w", s.StateDir, s.table, err)
	}
	if err != nil {
		return err
	}
	if len(blocks) > 0 {
		return fmt.Errorf("--state-dir %s has no record of fences, but table %s fences %d blocks, including %s: set the directory with their record, or unfence all of them with --lift-unrecorded",
			s.StateDir, s.table, len(blocks), blocks[0])
	}
	return nil
}

// network returns the addresses that blocks are validated against: of this
// machine and the peers, which need a forced fence, and broadcast addresses.
func (s *fenceServer) network(ctx context.Context) (request.Network, error) {
	own, err := netaddr.Own()
	if err != nil {
		return request.Network{}, err
	}
	broadcast, err := netaddr.Broadcast()
	return request.Network{Own: append(own, s.fencing.PeerAddrs(ctx, s.Logger)...), Broadcast: broadcast}, err
}

func (s *fenceServer) status(ctx context.Context) (any, error) {
	document := struct {
		Name    string       `json:"name"`
		Version string       `json:"version"`
		Ports   string       `json:"ports,omitempty"`
		Filter  *nft.Status  `json:"filter,omitempty"`
		Sockets *sock.Status `json:"sockets,omitempty"`
		enforce.Status
	}{Name: s.fencing.Name, Version: release}
	if s.filter != nil {
		filter, sockets := s.filter.Status(), s.sockets.Status()
		document.Ports, document.Filter, document.Sockets = s.ports.String(), &filter, &sockets
	}
	var err error
	document.Status, err = s.fencing.Enforcer.Status(ctx)
	return document, err
}
