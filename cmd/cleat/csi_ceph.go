//go:build ceph

package main

import (
	"context"
	"fmt"
	"os"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cleatproject/cleat/engine/ceph"
	"github.com/cleatproject/cleat/engine/ceph/blocklist"
	"github.com/cleatproject/cleat/internal/cephconf"
	"github.com/cleatproject/cleat/internal/store"
	"github.com/cleatproject/cleat/volume"
)

const cephLinked = true

func (e *cephEngine) open(ctx context.Context, d *csiServer) error {
	cluster, credentials, err := e.read()
	if err != nil {
		return err
	}
	engine, err := ceph.Open(ctx, ceph.Config{Cluster: cluster, Credentials: credentials, Pools: e.pools, Logger: d.Logger})
	if err != nil {
		return err
	}
	e.groups = engine.Backend().Groups != nil
	fencer, err := e.serve(ctx, d, engine, "of pool "+e.pools[0])
	d.backend.Fencer = fencer
	return err
}

func (e *cephFSEngine) open(ctx context.Context, d *csiServer) error {
	cluster, credentials, err := e.read()
	if err != nil {
		return err
	}
	engine, err := ceph.OpenFS(ctx, ceph.FSConfig{Cluster: cluster, Credentials: credentials, FS: e.fs, Logger: d.Logger})
	if err != nil {
		return err
	}
	fencer, err := e.serve(ctx, d, engine, "of CephFS "+e.describe())
	d.backend.Fencer = ceph.NewFSFencer(engine, fencer)
	return err
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

// serve sets ledger and backend. All state is in the cluster, as the next
// controller can run on another node.
func (c *cephCluster) serve(ctx context.Context, d *csiServer, engine cephStorage, name string) (*blocklist.Fencer, error) {
	d.OnClose(engine.Close)
	if err := os.MkdirAll(d.StateDir, 0o700); err != nil { // for the status socket
		return nil, fmt.Errorf("--state-dir: %w", err)
	}
	db, err := store.OpenShared(ctx, name, engine, store.Options{Role: "controller", Version: 1})
	if err != nil {
		return nil, err
	}
	if err := d.useLedger(ctx, db); err != nil {
		return nil, err
	}
	if err := c.boots.open(d); err != nil {
		return nil, err
	}
	config := blocklist.Config{Cluster: engine, Grants: d.ledger, Database: db, Logger: d.Logger}
	if d.boots != nil {
		config.Boots = d.boots.All
	}
	fencer := blocklist.New(config)
	if err := fencer.Start(ctx); err != nil {
		return nil, err
	}
	d.backend, d.background = engine.Backend(), fencer.Run
	return fencer, d.Metrics.Register(healthCollector{prometheus.NewDesc("cleat_ceph_health",
		"1 for each adverse condition of the Ceph cluster and the storage of volumes.",
		[]string{"status", "reason"}, prometheus.Labels{"cluster": c.id}), d.backend.Health})
}
