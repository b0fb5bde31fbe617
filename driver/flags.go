package driver

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/spf13/pflag"

	"github.com/cleatproject/cleat/csi"
	"github.com/cleatproject/cleat/internal/cli"
	"github.com/cleatproject/cleat/internal/server"
	"github.com/cleatproject/cleat/internal/unixsock"
)

const kubeletRegistry = "/var/lib/kubelet/plugins_registry"

func (d *driver) addFlags(fs *pflag.FlagSet) {
	p := d.program
	host, _ := os.Hostname() // Complete refuses an empty node ID
	fs.StringVar(&d.engineName, "engine", p.Engines[0].Name, "storage engine")
	d.addEngines(fs)
	cli.Enumerate(fs, "engine", d.engineNames()...)
	deployment := &d.process.Deployment
	fs.StringVar(&d.nodeID, "node-id", host, "ID of this node; the host name by default")
	fs.StringVar(&d.driverName, "driver-name", p.DriverName, "driver name, in domain name notation")
	fs.StringVar(&d.services, "services", "all", "services to serve: all, controller or node")
	cli.Enumerate(fs, "services", "all", "controller", "node")
	fs.StringToStringVar(&deployment.Topology, "topology", nil, "topology segments of this node, for example zone=a")
	fs.BoolVar(&deployment.ControllerPublish, "controller-publish", false, "announce ControllerPublishVolume, and require it before a volume is staged")
	fs.BoolVar(&deployment.PerNode, "per-node", false, "each node runs its own controller: expand volumes on the node, announce neither controller expansion nor modification")
	fs.Int64Var(&deployment.MaxVolumes, "max-volumes", 0, "maximum number of volumes on this node; 0 means no limit")
	fs.StringVar(&d.addonsEndpoint, "addons-endpoint", "", "also serve CSI-Addons (fencing) on this UNIX socket, for example unix:///run/csi-addons/socket; not in the directory of --endpoint")
	fs.StringSliceVar(&d.nodeAddresses, "node-address", nil, "address of this node as the storage sees it; can be repeated. By default the addresses of the default routes")
	d.fencing.AddFlags(fs, "fence-")
	d.election.addFlags(fs)
	d.AddAllowUIDs(fs, "addons-allow-uid", "user IDs, besides root, that are allowed to call --addons-endpoint")
	fs.StringVar(&d.registrationDir, "registration-dir", "", "register with the kubelet, or another plugin host, that watches this directory, for example "+kubeletRegistry)
	fs.StringVar(&d.announcedEndpoint, "registration-endpoint", "", "path of the --endpoint socket on the host, if it differs from the path in the container")
	for name, usage := range p.Usage {
		fs.Lookup(name).Usage = usage
	}
	d.AddFlags(fs, server.Defaults{Endpoint: p.Endpoint, SocketGroup: true, StateDir: p.StateDir, Env: map[string]string{"endpoint": "CSI_ENDPOINT"}})
}

// Complete derives the deployment and refuses settings that cannot work together.
func (d *driver) Complete() error {
	if err := d.selectEngine(); err != nil {
		return err
	}
	deployment := &d.process.Deployment
	switch {
	case d.nodeID == "":
		return errors.New("--node-id is empty: set an ID, or omit the flag to use the host name")
	case deployment.MaxVolumes < 0:
		return fmt.Errorf("--max-volumes %d is negative: use 0 for no limit", deployment.MaxVolumes)
	case d.registrationDir == "" && d.announcedEndpoint != "":
		return errors.New("--registration-endpoint requires --registration-dir")
	case d.registrationDir != "" && d.services == "controller":
		return errors.New("--registration-dir requires the node service: the kubelet does not register a driver with --services controller")
	}
	d.fencing.Name, d.fencing.Version = d.driverName, d.program.Version
	if err := errors.Join(csi.CheckName(d.driverName), d.checkFencing()); err != nil {
		return err
	}
	if err := d.selectServices(); err != nil {
		return err
	}
	if d.engine.Complete != nil {
		if err := d.engine.Complete(d.process); err != nil {
			return err
		}
	}
	if err := d.election.check(deployment); err != nil {
		return err
	}
	if deployment.MultiNode && !d.engine.Fences && d.fencesServed() {
		return fmt.Errorf("--addons-endpoint and --fence-listen are not for engine %s, which cannot revoke a node's access to its storage: revoke it at the storage instead", d.engine.Name)
	}
	return errors.Join(d.checkNodeID(), deployment.Check())
}

// selectServices reads --services. An engine without a controller has only the node
// service.
func (d *driver) selectServices() error {
	services, known := map[string]csi.Services{
		"all": {Controller: true, Node: true}, "controller": {Controller: true}, "node": {Node: true},
	}[d.services]
	switch {
	case !known:
		return fmt.Errorf("--services %q is unknown: use all, controller or node", d.services)
	case d.engine.Open != nil:
	case !services.Node:
		return fmt.Errorf("--services controller: engine %s has only the node service, because nothing creates or publishes static volumes; use --services node", d.engine.Name)
	default:
		d.services, services.Controller = "node", false
	}
	d.process.Deployment.Services = services
	return nil
}

func (d *driver) fencesServed() bool { return d.addonsEndpoint != "" || d.fencing.Listen != "" }

func (d *driver) checkFencing() error {
	for _, text := range d.nodeAddresses {
		a, err := netip.ParseAddr(text)
		if err != nil || a.Zone() != "" || a.IsUnspecified() || a.IsLoopback() {
			return fmt.Errorf("--node-address %q is not an IPv4 or IPv6 address by which the storage can reach this node, such as 192.0.2.7", text)
		}
		d.addresses = append(d.addresses, a.Unmap())
	}
	switch {
	case d.addonsEndpoint == "" && len(d.fencing.Peers) > 0:
		return errors.New("--fence-peer requires --addons-endpoint, on which fences are requested")
	case d.addonsEndpoint == "" && len(d.fencing.Secrets) > 0:
		return errors.New("--fence-secret requires --addons-endpoint: peers authenticate with a certificate instead")
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
			return fmt.Errorf("--addons-endpoint %s: the CSI specification allows no other file in the directory of the socket %s; use another directory", addons, own)
		}
	}
	return d.fencing.Check()
}
