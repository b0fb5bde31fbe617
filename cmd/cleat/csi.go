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
	engineCeph      = "ceph"
	engineCephFS    = "cephfs"
	engineNone      = "none"
	engineSPDK      = "spdk"
	kubeletRegistry = "/var/lib/kubelet/plugins_registry"
	// nodeSegment is the topology key that pins a volume to its machine.
	nodeSegment = "topology.cleat.dev/node"
)

func newCSICommand() *cobra.Command {
	c := serving(&cobra.Command{
		Use:   "csi",
		Short: "Run the CSI driver (CSI 1.13)",
		Long: `Runs the Container Storage Interface 1.13 driver on a UNIX socket. By default it
keeps volumes as files in /var/lib/cleat/pool (engine local) and serves all
services of CSI on unix:///run/cleat/csi/csi.sock.

--services selects the deployment model of the CSI specification:
  all         one process per node runs all services (headless, combined)
  controller  identity, controller, group snapshots and snapshot metadata
  node        identity and node; finds volumes by their locators in the pool
With engine local, controller and node processes share a pool on one machine.

With --engine ceph volumes are RBD images of a Ceph cluster, which all nodes reach.
One controller (image cleat-ceph) serves the cluster, and keeps its state there; the
node service runs on every node. Clusters and credentials are configured as for
ceph-csi and Rook: --ceph-config is the config.json of their ConfigMap, --ceph-secret
a mounted Secret with userID and userKey. With --ceph-boot-leases nodes report their
boots, so that a fence can end with a reboot.

With --engine cephfs volumes are directories (subvolumes) of a CephFS file system, which
several nodes can write at once. It is another driver beside that of --engine ceph, with
the same flags, except for --ceph-pool and --cephfs-name.

With --engine spdk volumes are lvols of SPDK targets, which hosts and DPUs reach over
NVMe-oF. One controller serves the cluster: --spdk-config and --spdk-secret are the
config.json and secret.json of spdk-csi, whose volumes it adopts; --spdk-state is a
ConfigMap that has its state. A target admits exactly the nodes to which a volume is
published. The node service runs on every host, cleat dpu on every DPU, with the
same --cluster-id.

With --engine none it serves only the node service, for static volumes: namespaces of
any NVMe/TCP target, which the volume_context of a PersistentVolume describes
(targetType, targetAddr, nqn, uuid, ...). Nothing creates or publishes them.

With --addons-endpoint it also serves CSI-Addons for the csi-addons sidecar:
network fencing, and this node's identity as a storage client. A fenced node is
granted no volume, and stages none, until it is unfenced.

With --registration-dir it registers with the kubelet itself: no
node-driver-registrar is needed. "cleat csi status" shows the registration.`,
		Example: `  sudo cleat csi
  sudo cleat csi --pool /data/cleat --pool-image 200GiB --overprovision-ratio 3
  sudo cleat csi --services node --endpoint unix:///run/cleat/node/csi.sock
  sudo cleat csi --endpoint unix:///var/lib/kubelet/plugins/csi.cleat.dev/csi.sock --registration-dir ` + kubeletRegistry + `
  cleat csi --engine ceph --services controller --ceph-cluster rook-ceph --ceph-pool replicapool --ceph-secret /etc/ceph-secret
  sudo cleat csi --engine ceph --services node
  cleat csi --engine cephfs --services controller --ceph-cluster rook-ceph --cephfs-name myfs --ceph-secret /etc/cephfs-secret
  cleat csi --engine spdk --services controller --cluster-id east --spdk-secret /etc/spdk-secret/secret.json --spdk-state configmap:storage/cleat-state
  sudo cleat csi --engine spdk --services node --cluster-id east
  sudo cleat csi --engine none --cluster-id east --nvme-key-dir /etc/cleat/nvme-keys
  sudo cleat csi status`,
		Args: cobra.NoArgs,
	}, &csiServer{})
	c.AddCommand(newCSIStatusCommand(), newPlacementCommand())
	return c
}

func (d *csiServer) addFlags(fs *pflag.FlagSet) {
	host, _ := os.Hostname() // Complete refuses an empty node ID
	fs.StringVar(&d.engine, "engine", engineLocal, "storage engine: local (volumes are files in a pool of this machine), ceph (RBD images of a Ceph cluster), cephfs (directories of a CephFS file system), spdk (lvols of SPDK targets) or none (static volumes: NVMe/TCP namespaces of any target)")
	d.addEngines(fs)
	cli.Enumerate(fs, "engine", d.engineNames()...)
	fs.StringVar(&d.nodeID, "node-id", host, "ID of this node; the host name by default")
	fs.StringVar(&d.driverName, "driver-name", csi.DefaultName, "driver name, in domain name notation")
	fs.StringVar(&d.services, "services", "all", "services to serve: all, controller or node")
	cli.Enumerate(fs, "services", "all", "controller", "node")
	fs.StringToStringVar(&d.deployment.Topology, "topology", nil, "topology segments of this node, for example zone=a: with engine spdk they select targets; engine local adds "+nodeSegment)
	fs.BoolVar(&d.deployment.ControllerPublish, "controller-publish", false, "announce ControllerPublishVolume, and require it before a volume is staged; always with engines ceph, cephfs and spdk")
	fs.BoolVar(&d.deployment.PerNode, "per-node", false, "each node runs its own controller: expand volumes on the node, announce neither controller expansion nor modification")
	fs.Int64Var(&d.deployment.MaxVolumes, "max-volumes", 0, "maximum number of volumes on this node; 0 means no limit")
	fs.StringVar(&d.addonsEndpoint, "addons-endpoint", "", "also serve CSI-Addons (fencing) on this UNIX socket, for example unix:///run/csi-addons/socket; not in the directory of --endpoint")
	fs.StringSliceVar(&d.nodeAddresses, "node-address", nil, "address of this node as the storage sees it; can be repeated. By default the addresses of the default routes")
	d.fencing.addFlags(fs, "fence-")
	d.AddAllowUIDs(fs, "addons-allow-uid", "user IDs, besides root, that are allowed to call --addons-endpoint")
	fs.StringVar(&d.registrationDir, "registration-dir", "", "register with the kubelet, or another plugin host, that watches this directory, for example "+kubeletRegistry)
	fs.StringVar(&d.announcedEndpoint, "registration-endpoint", "", "path of the --endpoint socket on the host, if it differs from the path in the container")
	d.AddFlags(fs, server.Defaults{Endpoint: defaultEndpoint, SocketGroup: true, StateDir: defaultState, Env: map[string]string{"endpoint": "CSI_ENDPOINT"}})
}

// Complete derives the deployment and refuses settings that cannot work together.
func (d *csiServer) Complete() error {
	if err := d.selectEngine(); err != nil {
		return err
	}
	switch {
	case d.nodeID == "":
		return fmt.Errorf("--node-id is empty: set an ID, or omit the flag to use the host name")
	case d.deployment.MaxVolumes < 0:
		return fmt.Errorf("--max-volumes %d is negative: use 0 for no limit", d.deployment.MaxVolumes)
	case d.registrationDir == "" && d.announcedEndpoint != "":
		return errors.New("--registration-endpoint requires --registration-dir")
	case d.registrationDir != "" && d.services == "controller":
		return errors.New("--registration-dir requires the node service: the kubelet does not register a driver with --services controller")
	}
	d.fencing.name = d.driverName
	if err := errors.Join(csi.CheckName(d.driverName), d.checkFencing()); err != nil {
		return err
	}
	services, known := map[string]csi.Services{
		"all": {Controller: true, Node: true}, "controller": {Controller: true}, "node": {Node: true},
	}[d.services]
	if !known {
		return fmt.Errorf("--services %q is unknown: use all, controller or node", d.services)
	}
	d.deployment.Services = services
	if err := d.storage.complete(d); err != nil {
		return err
	}
	return d.deployment.Check()
}

func (d *csiServer) fencesServed() bool { return d.addonsEndpoint != "" || d.fencing.listen != "" }

func (d *csiServer) checkFencing() error {
	for _, text := range d.nodeAddresses {
		a, err := netip.ParseAddr(text)
		if err != nil || a.Zone() != "" || a.IsUnspecified() || a.IsLoopback() {
			return fmt.Errorf("--node-address %q is not an IPv4 or IPv6 address by which the storage can reach this node, such as 192.0.2.7", text)
		}
		d.addresses = append(d.addresses, a.Unmap())
	}
	switch {
	case d.addonsEndpoint == "" && len(d.fencing.peers) > 0:
		return errors.New("--fence-peer requires --addons-endpoint, on which fences are requested")
	case d.addonsEndpoint == "" && len(d.fencing.secrets) > 0:
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
	return d.fencing.check()
}
