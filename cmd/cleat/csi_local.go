package main

import (
	"context"
	"fmt"

	"github.com/spf13/pflag"

	"github.com/cleatproject/cleat/csi"
	"github.com/cleatproject/cleat/engine/local"
	"github.com/cleatproject/cleat/internal/cli"
	"github.com/cleatproject/cleat/internal/linux/freeze"
	"github.com/cleatproject/cleat/node"
	attachfile "github.com/cleatproject/cleat/node/file"
)

// localEngine keeps volumes as files in a pool of this machine.
type localEngine struct {
	pool local.Config
}

func (e *localEngine) addFlags(fs *pflag.FlagSet) {
	fs.StringVar(&e.pool.Pool, "pool", defaultPool, "directory of the pool; XFS or btrfs make snapshots and clones instant")
	fs.Var((*cli.Size)(&e.pool.Image), "pool-image", "keep the pool in an XFS image file of this size next to its directory, for example 200GiB; a larger size grows it")
	fs.Float64Var(&e.pool.OverProvision, "overprovision-ratio", 1, "provisioned bytes of thin volumes allowed per byte of pool capacity")
}

func (e *localEngine) complete(d *csiServer) error {
	if e.pool.OverProvision < 1 {
		return fmt.Errorf("--overprovision-ratio %v is below the minimum of 1 (no overprovisioning)", e.pool.OverProvision)
	}
	if d.deployment.Topology == nil {
		d.deployment.Topology = map[string]string{}
	}
	if _, given := d.deployment.Topology[nodeSegment]; !given {
		d.deployment.Topology[nodeSegment] = d.nodeID
	}
	d.deployment.Nodes = []string{d.nodeID}
	e.pool.StateDir = d.StateDir
	return nil
}

func (e *localEngine) abilities() csi.Abilities {
	return csi.Abilities{Snapshots: true, Clones: true, Groups: true, Deltas: true, Modify: true, Health: true}
}

func (e *localEngine) describe() string { return e.pool.Pool }

func (e *localEngine) enforcesFences() bool { return false }

func (e *localEngine) open(ctx context.Context, d *csiServer) error {
	if err := d.openLedger(ctx, "grants"); err != nil {
		return err
	}
	e.pool.Guard, e.pool.Logger = freeze.NewGuard(helper(freezeGuardCommand)...), d.Logger
	engine, err := local.Open(ctx, e.pool)
	if err != nil {
		return err
	}
	d.OnClose(engine.Close)
	d.backend = engine.Backend()
	if err := engine.ServeTopology(ctx, d.StateDir, d.deployment.Topology); err != nil {
		return err
	}
	return d.Metrics.Register(engine.Collector())
}

func (e *localEngine) node(_ context.Context, _ *csiServer, c *node.Config) error {
	c.Private = append(c.Private, e.pool.Pool)
	c.Attachers = map[string]node.Attacher{attachfile.Protocol(): attachfile.New(e.pool.Pool)}
	return nil
}
