package main

import (
	"github.com/spf13/cobra"

	"github.com/cleatproject/cleat/csi"
	"github.com/cleatproject/cleat/driver"
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
	c := csiProgram().Command()
	c.AddCommand(newCSIStatusCommand(), newPlacementCommand())
	return c
}

// csiProgram is cleat csi. Its engines have the settings of one process.
func csiProgram() driver.Program {
	nvme, ceph := &driver.NVMe{}, &cephCluster{}
	spdk := &spdkEngine{nvme: nvme, state: driver.StateFlags{Prefix: "spdk-"}}
	return driver.Program{
		Name: "cleat", Version: release, DriverName: csi.DefaultName, Endpoint: defaultEndpoint, StateDir: defaultState,
		Engines: []driver.Engine{
			(&localEngine{}).driver(), (&cephEngine{cephCluster: ceph}).driver(), (&cephFSEngine{cephCluster: ceph}).driver(),
			(&noEngine{nvme: nvme}).driver(), spdk.driver(),
		},
		Usage: map[string]string{
			"engine":             "storage engine: local (volumes are files in a pool of this machine), ceph (RBD images of a Ceph cluster), cephfs (directories of a CephFS file system), spdk (lvols of SPDK targets) or none (static volumes: NVMe/TCP namespaces of any target)",
			"topology":           "topology segments of this node, for example zone=a: with engine spdk they select targets; engine local adds " + nodeSegment,
			"controller-publish": "announce ControllerPublishVolume, and require it before a volume is staged; always with engines ceph, cephfs and spdk",
		},
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
	}
}
