package main

import (
	"context"
	"fmt"

	"github.com/spf13/pflag"

	"github.com/cleatproject/cleat/csi"
	"github.com/cleatproject/cleat/driver"
	"github.com/cleatproject/cleat/engine/local"
	"github.com/cleatproject/cleat/internal/cli"
	"github.com/cleatproject/cleat/internal/linux/freeze"
	"github.com/cleatproject/cleat/node"
	attachfile "github.com/cleatproject/cleat/node/file"
	"github.com/cleatproject/cleat/volume"
)

// localEngine keeps volumes as files in a pool of this machine.
type localEngine struct {
	pool local.Config
}

func (e *localEngine) driver() driver.Engine {
	return driver.Engine{
		Name: engineLocal, Flags: e.addFlags, Complete: e.complete, Abilities: e.abilities,
		Describe: func() string { return e.pool.Pool }, Open: e.open, Node: e.node,
	}
}

func (e *localEngine) addFlags(fs *pflag.FlagSet) {
	fs.StringVar(&e.pool.Pool, "pool", defaultPool, "directory of the pool; XFS or btrfs make snapshots and clones instant")
	fs.Var((*cli.Size)(&e.pool.Image), "pool-image", "keep the pool in an XFS image file of this size next to its directory, for example 200GiB; a larger size grows it")
	fs.Float64Var(&e.pool.OverProvision, "overprovision-ratio", 1, "provisioned bytes of thin volumes allowed per byte of pool capacity")
}

func (e *localEngine) complete(p *driver.Process) error {
	if e.pool.OverProvision < 1 {
		return fmt.Errorf("--overprovision-ratio %v is below the minimum of 1 (no overprovisioning)", e.pool.OverProvision)
	}
	d := &p.Deployment
	if d.Topology == nil {
		d.Topology = map[string]string{}
	}
	if _, given := d.Topology[nodeSegment]; !given {
		d.Topology[nodeSegment] = p.NodeID()
	}
	d.Nodes = []string{p.NodeID()}
	e.pool.StateDir = p.StateDir()
	return nil
}

func (e *localEngine) abilities() csi.Abilities {
	return csi.Abilities{Snapshots: true, Clones: true, Groups: true, Deltas: true, Modify: true, Health: true}
}

func (e *localEngine) open(ctx context.Context, p *driver.Process) (volume.Backend, error) {
	state, err := p.OpenFile(ctx, "grants")
	if err != nil {
		return volume.Backend{}, err
	}
	if _, err := p.UseState(ctx, state); err != nil {
		return volume.Backend{}, err
	}
	e.pool.Guard, e.pool.Logger = freeze.NewGuard(helper(freezeGuardCommand)...), p.Logger()
	engine, err := local.Open(ctx, e.pool)
	if err != nil {
		return volume.Backend{}, err
	}
	p.OnClose(engine.Close)
	if err := engine.ServeTopology(ctx, p.StateDir(), p.Deployment.Topology); err != nil {
		return volume.Backend{}, err
	}
	return engine.Backend(), p.Metrics().Register(engine.Collector())
}

func (e *localEngine) node(_ context.Context, _ *driver.Process, c *node.Config) error {
	c.Private = append(c.Private, e.pool.Pool)
	c.Attachers = map[string]node.Attacher{attachfile.Protocol(): attachfile.New(e.pool.Pool)}
	return nil
}
