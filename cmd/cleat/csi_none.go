package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/spf13/pflag"

	"github.com/cleatproject/cleat/csi"
	"github.com/cleatproject/cleat/node"
	"github.com/cleatproject/cleat/node/nvme"
	"github.com/cleatproject/cleat/volume/access"
)

// noEngine serves static volumes, which others create and whose volume_context
// has their locator. There is no controller service.
type noEngine struct {
	nvme    *nvmeNode
	hostNQN string
}

// nvmeNode has the flags that all engines with NVMe-oF volumes share.
type nvmeNode struct {
	cluster, keys string
}

func (n *nvmeNode) addFlags(fs *pflag.FlagSet) {
	fs.StringVar(&n.cluster, "cluster-id", "", "name of this cluster, part of the derived host NQNs: set it, alike in all processes, if several clusters use a target")
	fs.StringVar(&n.keys, "nvme-key-dir", "", "directory of DH-HMAC-CHAP and TLS keys, one file each; the dhchapKey and tlsKey of a volume are names of files")
}

// nodeHostNQN derives a host NQN. The controller, the node and the DPU of a
// cluster derive the same one.
func nodeHostNQN(cluster, node string) string {
	if cluster != "" {
		node = cluster + "/" + node
	}
	return access.HostNQN(node)
}

// attach adds the attacher of NVMe volumes, as a host with this NQN.
func (n *nvmeNode) attach(ctx context.Context, d *csiServer, c *node.Config, hostNQN string) error {
	lock, err := nvme.LockHostNQN(ctx, hostNQN)
	if err != nil {
		return err
	}
	d.OnClose(func(context.Context) error { return lock.Close() })
	attacher, err := nvme.New(nvme.Config{Dir: d.StateDir, HostNQN: hostNQN, KeyDir: n.keys, Logger: d.Logger})
	if err != nil {
		return err
	}
	d.OnClose(attacher.Close)
	d.attaching = attacher.Run
	c.Attachers = map[string]node.Attacher{nvme.Protocol(): attacher}
	return d.Metrics.Register(attacher.Collector())
}

func (e *noEngine) addFlags(fs *pflag.FlagSet) {
	e.nvme.addFlags(fs)
	fs.StringVar(&e.hostNQN, "nvme-host-nqn", "", "host NQN of this node; by default derived from --cluster-id and --node-id. No other program on this node can use it")
}

func (e *noEngine) complete(d *csiServer) error {
	switch {
	case d.services == "controller":
		return errors.New("--services controller: engine none has only the node service, because nothing creates or publishes static volumes; use --services node")
	case d.deployment.PerNode:
		return errors.New("--per-node is for engine local: engine none has no controller service")
	case len(d.deployment.Topology) > 0:
		return errors.New("--topology is for engines local and spdk: engine none has no controller service that places volumes; set nodeAffinity in the PersistentVolume")
	case d.deployment.ControllerPublish:
		return errors.New("--controller-publish is not for engine none, which has no controller service; the CSIDriver object has attachRequired: false")
	case d.fencesServed():
		return errors.New("--addons-endpoint and --fence-listen are not for engine none, which cannot revoke access to a target; remove the host at the target instead")
	}
	d.services, d.deployment.Services = "node", csi.Services{Node: true}
	d.deployment.MultiNode, d.deployment.Static = true, true
	e.hostNQN = cmp.Or(e.hostNQN, nodeHostNQN(e.nvme.cluster, d.nodeID))
	if err := access.CheckNQN(e.hostNQN); err != nil {
		return fmt.Errorf("--nvme-host-nqn: %w", err)
	}
	return nil
}

func (e *noEngine) abilities() csi.Abilities { return csi.Abilities{} }

// describe returns the host NQN: a target must admit it.
func (e *noEngine) describe() string { return e.hostNQN }

func (e *noEngine) enforcesFences() bool { return false }

// open is not called: there is no controller service.
func (e *noEngine) open(context.Context, *csiServer) error { return nil }

func (e *noEngine) node(ctx context.Context, d *csiServer, c *node.Config) error {
	return e.nvme.attach(ctx, d, c, e.hostNQN)
}
