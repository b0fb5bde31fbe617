package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/spf13/pflag"

	"github.com/cleatproject/cleat/csi"
	"github.com/cleatproject/cleat/driver"
	"github.com/cleatproject/cleat/node"
	"github.com/cleatproject/cleat/volume/access"
)

// noEngine serves static volumes, which others create and whose volume_context
// has their locator. There is no controller service.
type noEngine struct {
	nvme    *driver.NVMe
	hostNQN string
}

func (e *noEngine) driver() driver.Engine {
	return driver.Engine{
		Name: engineNone, Flags: e.addFlags, Complete: e.complete, Abilities: func() csi.Abilities { return csi.Abilities{} },
		Describe: func() string { return e.hostNQN }, // a target must admit it
		Node: func(ctx context.Context, p *driver.Process, c *node.Config) error {
			return e.nvme.Attach(ctx, p, c, e.hostNQN)
		},
	}
}

func (e *noEngine) addFlags(fs *pflag.FlagSet) {
	e.nvme.AddFlags(fs)
	fs.StringVar(&e.hostNQN, "nvme-host-nqn", "", "host NQN of this node; by default derived from --cluster-id and --node-id. No other program on this node can use it")
}

func (e *noEngine) complete(p *driver.Process) error {
	d := &p.Deployment
	switch {
	case d.PerNode:
		return errors.New("--per-node is for engine local: engine none has no controller service")
	case len(d.Topology) > 0:
		return errors.New("--topology is for engines local and spdk: engine none has no controller service that places volumes; set nodeAffinity in the PersistentVolume")
	case d.ControllerPublish:
		return errors.New("--controller-publish is not for engine none, which has no controller service; the CSIDriver object has attachRequired: false")
	}
	d.MultiNode, d.Static = true, true
	e.hostNQN = cmp.Or(e.hostNQN, e.nvme.HostNQN(p.NodeID()))
	if err := access.CheckNQN(e.hostNQN); err != nil {
		return fmt.Errorf("--nvme-host-nqn: %w", err)
	}
	return nil
}
