package main

import (
	"fmt"
	"os"
	"regexp"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cleatproject/cleat/csi"
	"github.com/cleatproject/cleat/fence/ports"
	"github.com/cleatproject/cleat/internal/cli"
	"github.com/cleatproject/cleat/internal/unixsock"
)

const (
	defaultFenceEndpoint = "unix:///run/cleat/fence/fence.sock"
	defaultFenceState    = "/var/lib/cleat/fence"
	defaultFenceName     = "fence.cleat.dev"
	defaultFenceTable    = "cleat_fence"
)

// fenceServeFlags are the settings of cleat fence serve.
type fenceServeFlags struct {
	fenceFlags
	config         string
	endpoint       string
	name           string
	stateDir       string
	ports          []string
	allPorts       bool
	peersOnly      bool
	kernelTargets  bool
	liftUnrecorded bool
	table          string
	metricsAddress string
	logFormat      string
	logLevel       string
}

func newFenceServeCommand() *cobra.Command {
	var f fenceServeFlags
	c := &cobra.Command{
		Use:   "serve",
		Short: "Fence the clients of storage servers that run on this machine",
		Long: `Serves CSI-Addons (Identity and FenceController) on a UNIX socket, for whatever
storage server runs on this machine, and enforces the fences itself: nftables
drops what fenced clients send to the ports of storage, their sessions are ended
at the sockets, and no call is answered before both were read back and no
process holds such a socket any more.

It must run where the storage server does: in its network namespace, and where
its processes can be seen. It needs root, or CAP_NET_ADMIN, CAP_SYS_PTRACE and,
for servers of other users, CAP_DAC_READ_SEARCH.
Storage targets in the kernel (nvmet, LIO, nfsd) have no process to wait for;
say --kernel-targets when there are some, and read docs/fencing.md for what then
holds.

Fences outlive this process: they are on record in --state-dir, and when the
process ends the packet filter stays, guarded by a process of its own. The next
start puts everything in force before it listens.

With --peer it passes fences on to servers on other machines, and answers when
all have fenced; --peers-only makes it do nothing else. Servers call each other
over mutual TLS (--listen, --tls-cert, --tls-key, --tls-ca).

Every flag can also be given in the environment (--state-dir as CLEAT_STATE_DIR)
and in a YAML file (--config) whose keys are the names of the flags. A flag wins
over the environment, and the environment over the file.`,
		Example: `  sudo cleat fence serve
  sudo cleat fence serve --ports 4420,3260
  sudo cleat fence serve --ports nvme-tcp --kernel-targets --listen :9070 --tls-cert a.pem --tls-key a.key --tls-ca ca.pem
  sudo cleat fence serve --peers-only --peer a=storage-a:9070 --peer b=storage-b:9070 --tls-cert c.pem --tls-key c.key --tls-ca ca.pem`,
		Args: exactlyNone,
	}
	f.add(c.Flags())
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := cli.Bind(cmd.Flags(), cli.Sources{File: configFile(cmd.Flags()), LookupEnv: os.LookupEnv}); err != nil {
			return err
		}
		return serveFences(cmd.Context(), f, cmd.ErrOrStderr())
	}
	return c
}

func (f *fenceServeFlags) add(fs *pflag.FlagSet) {
	fs.StringVar(&f.config, "config", "", "YAML file with any of these settings")
	fs.StringVar(&f.endpoint, "endpoint", defaultFenceEndpoint, "UNIX socket to serve, in a directory of its own")
	fs.StringVar(&f.name, "name", defaultFenceName, "name of the driver for GetIdentity and for peers, a domain name")
	fs.StringVar(&f.stateDir, "state-dir", defaultFenceState, "directory for what this process must remember")
	fs.StringSliceVar(&f.ports, "ports", nil, "ports of the storage servers: numbers, ranges as 6800-7568, or "+strings.Join(ports.Protocols(), ", ")+"; all of these protocols by default")
	fs.BoolVar(&f.allPorts, "all-ports", false, "fence all traffic to this machine, not only that to storage")
	fs.BoolVar(&f.peersOnly, "peers-only", false, "enforce nothing on this machine, only at the peers")
	fs.BoolVar(&f.kernelTargets, "kernel-targets", false, "take sockets that no process holds, those of kernel targets, for ended when they are destroyed")
	fs.BoolVar(&f.liftUnrecorded, "lift-unrecorded", false, "begin a new record also where the packet filter holds fences of an earlier one, which are then lifted")
	fs.StringVar(&f.table, "table", defaultFenceTable, "name of the nftables table; two servers in one network namespace need two")
	f.fenceFlags.add(fs, "")
	fs.StringVar(&f.metricsAddress, "metrics-address", "", "host:port or socket path for /metrics, /healthz, /readyz and /status; empty: none")
	fs.StringVar(&f.logFormat, "log-format", "json", "text or json")
	fs.StringVar(&f.logLevel, "log-level", "info", "debug, info, warn or error; debug shows requests without their secrets and parameters")
	cli.DescribeEnv(fs)
}

var tableName = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_]{0,31}$`)

// check refuses settings that cannot work together, before anything is touched.
func (f *fenceServeFlags) check() error {
	switch {
	case f.allPorts && len(f.ports) > 0:
		return fmt.Errorf("--all-ports and --ports %s: give one of them", strings.Join(f.ports, ","))
	case f.peersOnly && len(f.peers) == 0:
		return fmt.Errorf("--peers-only without a --peer would enforce nothing")
	case f.peersOnly && (f.allPorts || len(f.ports) > 0 || f.kernelTargets):
		return fmt.Errorf("--peers-only enforces nothing on this machine: --ports, --all-ports and --kernel-targets are of no use with it")
	case !tableName.MatchString(f.table):
		return fmt.Errorf("--table %q: a letter, and then letters, digits and underscores are possible, 32 at most", f.table)
	}
	if _, err := f.portSet(); err != nil {
		return fmt.Errorf("--ports: %w", err)
	}
	if _, err := unixsock.ParseEndpoint(f.endpoint); err != nil {
		return fmt.Errorf("--endpoint: %w", err)
	}
	if err := csi.CheckName(f.name); err != nil {
		return fmt.Errorf("--name: %w", err)
	}
	return f.fenceFlags.check()
}

func (f *fenceServeFlags) portSet() (ports.Set, error) {
	switch {
	case f.allPorts:
		return ports.All(), nil
	case len(f.ports) == 0:
		return ports.Storage(), nil
	}
	return ports.Parse(f.ports)
}
