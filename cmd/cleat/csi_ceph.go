//go:build ceph

package main

import (
	"context"
	"fmt"
	"os"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cleatproject/cleat/driver"
	"github.com/cleatproject/cleat/engine/ceph"
	"github.com/cleatproject/cleat/engine/ceph/blocklist"
	"github.com/cleatproject/cleat/internal/cephconf"
	"github.com/cleatproject/cleat/internal/store"
	"github.com/cleatproject/cleat/volume"
)

const cephLinked = true

func (e *cephEngine) open(ctx context.Context, p *driver.Process) (volume.Backend, error) {
	cluster, credentials, err := e.read()
	if err != nil {
		return volume.Backend{}, err
	}
	engine, err := ceph.Open(ctx, ceph.Config{Cluster: cluster, Credentials: credentials, Pools: e.pools, Logger: p.Logger()})
	if err != nil {
		return volume.Backend{}, err
	}
	e.groups = engine.Backend().Groups != nil
	b, fencer, err := e.serve(ctx, p, engine, "of pool "+e.pools[0])
	b.Fencer = fencer
	return b, err
}

func (e *cephFSEngine) open(ctx context.Context, p *driver.Process) (volume.Backend, error) {
	cluster, credentials, err := e.read()
	if err != nil {
		return volume.Backend{}, err
	}
	engine, err := ceph.OpenFS(ctx, ceph.FSConfig{Cluster: cluster, Credentials: credentials, FS: e.fs, Logger: p.Logger()})
	if err != nil {
		return volume.Backend{}, err
	}
	b, fencer, err := e.serve(ctx, p, engine, "of CephFS "+e.describe())
	b.Fencer = ceph.NewFSFencer(engine, fencer)
	return b, err
}

func (c *cephCluster) read() (cluster cephconf.Cluster, credentials cephconf.Credentials, err error) {
	clusters, err := c.clusters()
	if err != nil {
		return cluster, credentials, err
	}
	if cluster, err = clusters.Find(c.id); err != nil {
		return cluster, credentials, err
	}
	credentials, err = cephconf.ReadCredentials(c.secret)
	return cluster, credentials, err
}

type cephStorage interface {
	store.Object
	blocklist.Cluster
	Backend() volume.Backend
	Close(ctx context.Context) error
}

// serve opens the state and the fencer. All state is in the cluster, as the next
// controller can run on another node.
func (c *cephCluster) serve(ctx context.Context, p *driver.Process, engine cephStorage, name string) (b volume.Backend, fencer *blocklist.Fencer, err error) {
	p.OnClose(engine.Close)
	if err := os.MkdirAll(p.StateDir(), 0o700); err != nil { // for the status socket
		return b, nil, fmt.Errorf("--state-dir: %w", err)
	}
	db, err := store.OpenShared(ctx, name, engine, store.Options{Role: "controller", Version: 1})
	if err != nil {
		return b, nil, err
	}
	grants, err := p.UseState(ctx, db)
	if err != nil {
		return b, nil, err
	}
	leases, err := c.boots.open(p)
	if err != nil {
		return b, nil, err
	}
	config := blocklist.Config{Cluster: engine, Grants: grants, Database: db, Logger: p.Logger()}
	if leases != nil {
		config.Boots, p.Boots = leases.All, leases.All
	}
	fencer = blocklist.New(config)
	if err := fencer.Start(ctx); err != nil {
		return b, nil, err
	}
	p.Background("engine", fencer.Run)
	b = engine.Backend()
	return b, fencer, p.ExportHealth("cleat_ceph_health",
		"1 for each adverse condition of the Ceph cluster and the storage of volumes.", prometheus.Labels{"cluster": c.id}, b.Health)
}
