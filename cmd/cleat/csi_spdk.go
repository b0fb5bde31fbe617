package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"

	"github.com/cleatproject/cleat/csi"
	"github.com/cleatproject/cleat/driver"
	"github.com/cleatproject/cleat/engine/spdk"
	"github.com/cleatproject/cleat/internal/spdkconf"
	"github.com/cleatproject/cleat/internal/store"
	"github.com/cleatproject/cleat/node"
	rpc "github.com/cleatproject/cleat/spdk"
	"github.com/cleatproject/cleat/volume"
)

// spdkEngine keeps volumes as lvols of SPDK targets. Nodes attach them as those
// of engine none, with the host NQN that the controller derives from their names.
type spdkEngine struct {
	nvme           *driver.NVMe
	config, secret string
	state          driver.StateFlags // with prefix spdk-
	hostNQN        string            // of this node; set by complete
}

func (e *spdkEngine) driver() driver.Engine {
	return driver.Engine{
		Name: engineSPDK, Flags: e.addFlags, Complete: e.complete, Abilities: e.abilities, Fences: true,
		Describe: func() string { return e.hostNQN }, // of a node, which the targets admit
		Open:     e.open,
		Node: func(ctx context.Context, p *driver.Process, c *node.Config) error {
			return e.nvme.Attach(ctx, p, c, e.hostNQN)
		},
	}
}

func (e *spdkEngine) addFlags(fs *pflag.FlagSet) {
	e.nvme.AddFlags(fs)
	fs.StringVar(&e.config, "spdk-config", "/etc/spdkcsi-config/config.json", "file with the SPDK targets: spdk-csi's config.json, or YAML with further keys")
	fs.StringVar(&e.secret, "spdk-secret", "", "file with user and password of each target that is reached over HTTP: spdk-csi's secret.json")
	e.state.AddFlags(fs)
}

func (e *spdkEngine) complete(p *driver.Process) error {
	d := &p.Deployment
	switch {
	case d.PerNode:
		return errors.New("--per-node is for engine local: with engine spdk one controller serves all nodes")
	case d.Services.Controller && e.config == "":
		return errors.New("--engine spdk requires --spdk-config, the file with the SPDK targets")
	}
	if err := e.state.Check(); err != nil {
		return err
	}
	for key, value := range d.Topology {
		if value == "" { // as from the label of a pod that does not have it
			return fmt.Errorf("--topology %s has no value: set the node's. Pods have the zone and region labels of their node since Kubernetes 1.35", key)
		}
	}
	d.PlacedVolumes = len(d.Topology) > 0
	d.ControllerPublish, d.MultiNode = true, true
	d.StorageGrants, d.PlainNodeIDs = true, true
	e.hostNQN = e.nvme.HostNQN(p.NodeID())
	return nil
}

func (e *spdkEngine) abilities() csi.Abilities {
	return csi.Abilities{Snapshots: true, Clones: true, Modify: true, Health: true}
}

// open does not need the targets to answer.
func (e *spdkEngine) open(ctx context.Context, p *driver.Process) (volume.Backend, error) {
	targets, retired, err := e.targets(p)
	if err != nil {
		return volume.Backend{}, err
	}
	state, err := p.OpenState(ctx, &e.state)
	if err != nil {
		return volume.Backend{}, err
	}
	grants, err := p.UseState(ctx, state)
	if err != nil {
		return volume.Backend{}, err
	}
	engine, err := spdk.New(spdk.Config{
		Targets: targets, Retired: retired, Database: state.(store.Database), Grants: grants, Logger: p.Logger(),
		Owner: p.DriverName() + " " + e.nvme.Cluster(), HostNQN: e.nvme.HostNQN,
	})
	if err != nil {
		return volume.Backend{}, err
	}
	p.Background("engine", engine.Run)
	b := engine.Backend()
	return b, p.ExportHealth("cleat_spdk_health", "1 for each adverse condition of the SPDK targets and their lvol stores.", nil, b.Health)
}

// targets returns a client of each target, and the names of those that are
// retired. It reads the password of a proxy for
// each call, as passwords are rotated. Volumes are placed by topology if a target
// has one.
func (e *spdkEngine) targets(p *driver.Process) (targets []spdk.Target, retired []string, err error) {
	configured, err := spdkconf.Read(e.config, e.secret)
	if err != nil {
		return nil, nil, err
	}
	for _, t := range configured {
		if t.Retired {
			retired = append(retired, t.Name)
			continue
		}
		p.Deployment.PlacedVolumes = p.Deployment.PlacedVolumes || len(t.Topology) > 0
		c := rpc.Config{
			Socket: t.Socket, URL: t.URL, User: t.User, Logger: p.Logger().With("target", t.Name),
			Metrics: prometheus.WrapRegistererWith(prometheus.Labels{"target": t.Name}, p.Metrics()),
		}
		if t.URL != "" {
			c.Password = t.Password.Read
		}
		client, err := rpc.Open(c)
		if err != nil {
			return nil, nil, fmt.Errorf("target %s: %w", t.Name, err)
		}
		p.OnClose(func(context.Context) error { return client.Close() })
		targets = append(targets, spdk.Target{
			Name: t.Name, Client: client, Transport: t.Transport, Addresses: t.Addresses, TLSAddresses: t.TLSAddresses,
			Stores: t.Stores, Forget: t.Forget, Cleared: t.Cleared, Topology: t.Topology,
		})
	}
	return targets, retired, nil
}
