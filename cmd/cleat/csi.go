package main

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cleatproject/cleat/csi"
	"github.com/cleatproject/cleat/internal/cli"
	"github.com/cleatproject/cleat/internal/server"
	"github.com/cleatproject/cleat/internal/unixsock"
)

const (
	defaultEndpoint = "unix:///run/cleat/csi/csi.sock"
	defaultPool     = "/var/lib/cleat/pool"
	defaultState    = "/var/lib/cleat/csi"
	engineLocal     = "local"
	kubeletRegistry = "/var/lib/kubelet/plugins_registry"
	// nodeSegment is the topology key that pins a volume to its machine.
	nodeSegment = "topology.cleat.dev/node"
)

func newCSICommand() *cobra.Command {
	c := serving(&cobra.Command{
		Use:   "csi",
		Short: "Serve the CSI 1.13 storage driver",
		Long: `Serves the Container Storage Interface 1.13 on a UNIX socket. Without a flag it
keeps volumes as files in /var/lib/cleat/pool (engine local) and serves all
services of CSI on unix:///run/cleat/csi/csi.sock.

--services chooses the deployment of the CSI specification:
  all         one process per node does everything (headless, combined)
  controller  identity, controller, group snapshots and snapshot metadata
  node        identity and node; finds volumes by their locators in the pool
With engine local, controller and node processes share a pool on one machine.

With --addons-endpoint it serves CSI-Addons for the csi-addons sidecar: the
node's identity as a storage client, and fences. A fenced node is granted and
staged nothing until it is unfenced.

With --registration-dir it registers with the kubelet by itself: no
node-driver-registrar is needed. cleat csi status shows the registration.`,
		Example: `  sudo cleat csi
  sudo cleat csi --pool /data/cleat --pool-image 200GiB --overprovision-ratio 3
  sudo cleat csi --services node --endpoint unix:///run/cleat/node/csi.sock
  sudo cleat csi --endpoint unix:///var/lib/kubelet/plugins/csi.cleat.dev/csi.sock --registration-dir ` + kubeletRegistry + `
  sudo cleat csi status`,
		Args: cobra.NoArgs,
	}, &csiServer{})
	c.AddCommand(newCSIStatusCommand())
	return c
}

func (d *csiServer) addFlags(fs *pflag.FlagSet) {
	host, _ := os.Hostname() // an empty node id is refused with the flag's name
	fs.StringVar(&d.engine, "engine", engineLocal, "where volumes are kept: local (files in a pool of this machine)")
	fs.StringVar(&d.pool.Pool, "pool", defaultPool, "directory of the pool; XFS or btrfs make snapshots and clones instant")
	fs.Var((*cli.Size)(&d.pool.Image), "pool-image", "keep the pool in an XFS image file of this size beside its directory, as 200GiB")
	fs.Float64Var(&d.pool.OverProvision, "overprovision-ratio", 1, "how many bytes of thin volumes may be promised for each byte of the pool")
	fs.StringVar(&d.nodeID, "node-id", host, "id of this node; the host name by default")
	fs.StringVar(&d.driverName, "driver-name", csi.DefaultName, "name of the driver, a domain name")
	fs.StringVar(&d.services, "services", "all", "services to serve: all, controller or node")
	fs.StringToStringVar(&d.deployment.Topology, "topology", nil, "more topology segments of this node, as zone=a; "+nodeSegment+" is always there")
	fs.BoolVar(&d.deployment.ControllerPublish, "controller-publish", false, "offer ControllerPublishVolume, and require it before a volume is used")
	fs.BoolVar(&d.deployment.PerNode, "per-node", false, "each node runs a controller of its own: expand on the node, announce neither controller expansion nor modification")
	fs.Int64Var(&d.deployment.MaxVolumes, "max-volumes", 0, "volumes that this node takes at most; 0 is no limit")
	fs.StringVar(&d.addonsEndpoint, "addons-endpoint", "", "UNIX socket on which CSI-Addons (fencing) is served too, as unix:///run/csi-addons/socket; not in the directory of --endpoint")
	fs.StringSliceVar(&d.nodeAddresses, "node-address", nil, "address by which storage knows this node; may be repeated. Those towards the default routes when not given")
	d.fencing.addFlags(fs, "fence-")
	d.AddAllowUIDs(fs, "addons-allow-uid", "these users may call --addons-endpoint besides root")
	fs.StringVar(&d.registrationDir, "registration-dir", "", "register with the kubelet, or another host of plugins, that watches this directory, as "+kubeletRegistry)
	fs.StringVar(&d.announcedEndpoint, "registration-endpoint", "", "the socket of --endpoint as the host sees it, where a container has it at another path")
	d.AddFlags(fs, server.Defaults{Endpoint: defaultEndpoint, SocketGroup: true, StateDir: defaultState, Env: map[string]string{"endpoint": "CSI_ENDPOINT"}})
}

// Complete derives the deployment and refuses settings that cannot work together.
func (d *csiServer) Complete() error {
	switch {
	case d.engine != engineLocal:
		return fmt.Errorf("--engine %q is not known: use %s", d.engine, engineLocal)
	case d.nodeID == "":
		return fmt.Errorf("--node-id is empty: give one; left out it is the host name of the machine")
	case d.deployment.MaxVolumes < 0:
		return fmt.Errorf("--max-volumes %d is negative: 0 is no limit", d.deployment.MaxVolumes)
	case d.pool.OverProvision < 1:
		return fmt.Errorf("--overprovision-ratio %v is below 1, which promises just what is there", d.pool.OverProvision)
	case d.registrationDir == "" && d.announcedEndpoint != "":
		return errors.New("--registration-endpoint is of no use without --registration-dir")
	case d.registrationDir != "" && d.services == "controller":
		return errors.New("--registration-dir is for a process with the node service, which a kubelet calls; this one has --services controller")
	}
	d.fencing.name = d.driverName
	if err := errors.Join(csi.CheckName(d.driverName), d.checkFencing()); err != nil {
		return err
	}
	services, known := map[string]csi.Services{
		"all": {Controller: true, Node: true}, "controller": {Controller: true}, "node": {Node: true},
	}[d.services]
	if !known {
		return fmt.Errorf("--services %q: use all, controller or node", d.services)
	}
	if d.deployment.Topology == nil {
		d.deployment.Topology = map[string]string{}
	}
	if _, given := d.deployment.Topology[nodeSegment]; !given {
		d.deployment.Topology[nodeSegment] = d.nodeID
	}
	d.deployment.Services, d.deployment.Nodes = services, []string{d.nodeID}
	d.pool.StateDir = d.StateDir
	var err error
	if d.StatusSocket, err = statusSocket(d.StateDir); err != nil {
		return fmt.Errorf("--state-dir: %w", err)
	}
	return d.deployment.Check()
}

// fencesServed reports whether fences can be requested of this process.
func (d *csiServer) fencesServed() bool { return d.addonsEndpoint != "" || d.fencing.listen != "" }

// checkFencing parses --node-address and refuses settings that cannot work together.
func (d *csiServer) checkFencing() error {
	for _, text := range d.nodeAddresses {
		a, err := netip.ParseAddr(text)
		if err != nil || a.Zone() != "" || a.IsUnspecified() || a.IsLoopback() {
			return fmt.Errorf("--node-address %q: an IPv4 or IPv6 address by which others reach this node is needed, as 192.0.2.7", text)
		}
		d.addresses = append(d.addresses, a.Unmap())
	}
	switch {
	case d.addonsEndpoint == "" && len(d.fencing.peers) > 0:
		return errors.New("--fence-peer is of no use without --addons-endpoint, where fences are requested")
	case d.addonsEndpoint == "" && len(d.fencing.secrets) > 0:
		return errors.New("--fence-secret guards nothing without --addons-endpoint; peers show a certificate instead")
	case !d.fencesServed():
		return nil
	}
	if d.addonsEndpoint != "" {
		addons, err := unixsock.ParseEndpoint(d.addonsEndpoint)
		if err != nil {
			return fmt.Errorf("--addons-endpoint: %w", err)
		}
		own, err := unixsock.ParseEndpoint(d.Endpoint)
		if err == nil && filepath.Dir(own) == filepath.Dir(addons) {
			return fmt.Errorf("--addons-endpoint %s: the CSI specification wants nothing else beside the socket %s; use another directory", addons, own)
		}
	}
	return d.fencing.check()
}
