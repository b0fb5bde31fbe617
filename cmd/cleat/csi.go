package main

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cleatproject/cleat/csi"
	"github.com/cleatproject/cleat/internal/cli"
	"github.com/cleatproject/cleat/internal/unixsock"
)

const (
	defaultEndpoint = "unix:///run/cleat/csi/csi.sock"
	defaultPool     = "/var/lib/cleat/pool"
	defaultState    = "/var/lib/cleat/csi"
	engineLocal     = "local"
	// nodeSegment is the topology key that pins a volume to its machine.
	nodeSegment = "topology.cleat.dev/node"
)

// csiFlags are the settings of cleat csi.
type csiFlags struct {
	config            string
	endpoint          string
	socketGroup       string
	engine            string
	pool              string
	poolImage         cli.Size
	overProvision     float64
	nodeID            string
	driverName        string
	stateDir          string
	services          string
	topology          map[string]string
	controllerPublish bool
	perNode           bool
	maxVolumes        int64
	addonsEndpoint    string
	nodeAddresses     []string
	fences            fenceFlags
	registrationDir   string
	announced         string // the endpoint as the host sees it
	metricsAddress    string
	logFormat         string
	logLevel          string
}

func newCSICommand() *cobra.Command {
	var f csiFlags
	c := &cobra.Command{
		Use:   "csi",
		Short: "Serve the CSI 1.13 storage driver",
		Long: `Serves the Container Storage Interface 1.13 on a UNIX socket. Without a flag it
keeps volumes as files in /var/lib/cleat/pool (engine local) and serves all
services of CSI on unix:///run/cleat/csi/csi.sock.

Every flag can also be given in the environment (--pool as CLEAT_POOL; the
endpoint also as CSI_ENDPOINT, as the specification demands) and in a YAML file
(--config) whose keys are the names of the flags. A flag wins over the
environment, and the environment over the file.

--services chooses the deployment of the CSI specification:
  all         one process per node does everything (headless, combined)
  controller  identity, controller, group snapshots and snapshot metadata
  node        identity and node; finds volumes by their locators in the pool
With engine local, controller and node processes share a pool on one machine.

With --addons-endpoint it serves CSI-Addons for the csi-addons sidecar: who this
node is to the storage, and fences. A fenced node is granted and staged nothing
until it is unfenced.

With --registration-dir it registers with the kubelet by itself: no
node-driver-registrar is needed. cleat csi status tells what became of it.`,
		Example: `  sudo cleat csi
  sudo cleat csi --pool /data/cleat --pool-image 200GiB --overprovision-ratio 3
  sudo cleat csi --services node --endpoint unix:///run/cleat/node/csi.sock
  sudo cleat csi --endpoint unix:///var/lib/kubelet/plugins/csi.cleat.dev/csi.sock --registration-dir ` + kubeletRegistry + `
  sudo cleat csi status`,
		Args: cobra.NoArgs,
	}
	c.AddCommand(newCSIStatusCommand())
	f.add(c.Flags())
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := cli.Bind(cmd.Flags(), cli.Sources{File: configFile(cmd.Flags()), LookupEnv: os.LookupEnv}); err != nil {
			return err
		}
		return serveCSI(cmd.Context(), f, cmd.ErrOrStderr())
	}
	return c
}

func (f *csiFlags) add(fs *pflag.FlagSet) {
	host, _ := os.Hostname() // an empty node id is refused with the flag's name
	fs.StringVar(&f.config, "config", "", "YAML file with any of these settings")
	fs.StringVar(&f.endpoint, "endpoint", defaultEndpoint, "UNIX socket to serve, in a directory of its own")
	fs.StringVar(&f.socketGroup, "socket-group", "", "group (name or id) that may use the socket beside root")
	fs.StringVar(&f.engine, "engine", engineLocal, "where volumes are kept: local (files in a pool of this machine)")
	fs.StringVar(&f.pool, "pool", defaultPool, "directory of the pool; XFS or btrfs make snapshots and clones instant")
	fs.Var(&f.poolImage, "pool-image", "keep the pool in an XFS image file of this size beside its directory, as 200GiB")
	fs.Float64Var(&f.overProvision, "overprovision-ratio", 1, "how many bytes of thin volumes may be promised for each byte of the pool")
	fs.StringVar(&f.nodeID, "node-id", host, "id of this node; the host name by default")
	fs.StringVar(&f.driverName, "driver-name", csi.DefaultName, "name of the driver, a domain name")
	fs.StringVar(&f.stateDir, "state-dir", defaultState, "directory for what this process must remember")
	fs.StringVar(&f.services, "services", "all", "services to serve: all, controller or node")
	fs.StringToStringVar(&f.topology, "topology", nil, "more topology segments of this node, as zone=a; "+nodeSegment+" is always there")
	fs.BoolVar(&f.controllerPublish, "controller-publish", false, "offer ControllerPublishVolume, and want it before a volume is used")
	fs.BoolVar(&f.perNode, "per-node", false, "each node runs a controller of its own: expand on the node, announce neither controller expansion nor modification")
	fs.Int64Var(&f.maxVolumes, "max-volumes", 0, "volumes that this node takes at most; 0 is no limit")
	fs.StringVar(&f.addonsEndpoint, "addons-endpoint", "", "UNIX socket on which CSI-Addons (fencing) is served too, as unix:///run/csi-addons/socket; not in the directory of --endpoint")
	fs.StringSliceVar(&f.nodeAddresses, "node-address", nil, "address by which storage knows this node; may be repeated. Those towards the default routes when not given")
	f.fences.add(fs, "fence-")
	fs.StringVar(&f.registrationDir, "registration-dir", "", "register with the kubelet, or another host of plugins, that watches this directory, as "+kubeletRegistry)
	fs.StringVar(&f.announced, "registration-endpoint", "", "the socket of --endpoint as the host sees it, where a container has it at another path")
	fs.StringVar(&f.metricsAddress, "metrics-address", "", "host:port or socket path for /metrics, /healthz, /readyz and /status; empty: none")
	fs.StringVar(&f.logFormat, "log-format", "json", "text or json")
	fs.StringVar(&f.logLevel, "log-level", "info", "debug, info, warn or error; debug shows requests without their secrets")
	cobra.CheckErr(cli.EnvAlias(fs, "endpoint", "CSI_ENDPOINT"))
	cli.DescribeEnv(fs)
}

// configFile is found before the other settings, since it may hold them.
func configFile(fs *pflag.FlagSet) string {
	if f := fs.Lookup("config"); f.Changed {
		return f.Value.String()
	}
	return os.Getenv("CLEAT_CONFIG")
}

// deployment turns the settings into what is served and announced.
func (f csiFlags) deployment() (csi.Deployment, error) {
	d := csi.Deployment{
		ControllerPublish: f.controllerPublish,
		PerNode:           f.perNode,
		Topology:          map[string]string{nodeSegment: f.nodeID},
		Nodes:             []string{f.nodeID},
		MaxVolumes:        f.maxVolumes,
	}
	maps.Copy(d.Topology, f.topology)
	switch f.services {
	case "all":
		d.Services = csi.Services{Controller: true, Node: true}
	case "controller":
		d.Services.Controller = true
	case "node":
		d.Services.Node = true
	default:
		return d, fmt.Errorf("--services %q: use all, controller or node", f.services)
	}
	return d, d.Check()
}

// socketMode lets a group that was named use the socket beside root.
func (f csiFlags) socketMode() fs.FileMode {
	if f.socketGroup != "" {
		return 0o660
	}
	return 0o600
}

// check refuses settings that cannot work together, before anything is touched.
func (f csiFlags) check() error {
	engines := []string{engineLocal}
	switch {
	case !slices.Contains(engines, f.engine):
		return fmt.Errorf("--engine %q is not known: use %s", f.engine, strings.Join(engines, ", "))
	case f.nodeID == "":
		return fmt.Errorf("--node-id is empty: give one; left out it is the host name of the machine")
	case f.maxVolumes < 0:
		return fmt.Errorf("--max-volumes %d is negative: 0 is no limit", f.maxVolumes)
	case f.overProvision < 1:
		return fmt.Errorf("--overprovision-ratio %v is below 1, which promises just what is there", f.overProvision)
	}
	if _, err := unixsock.ParseEndpoint(f.endpoint); err != nil {
		return fmt.Errorf("--endpoint: %w", err)
	}
	if err := csi.CheckName(f.driverName); err != nil {
		return err
	}
	return errors.Join(f.checkRegistration(), f.checkFencing())
}
