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
)

const cephLinked = true

// open keeps all state in the cluster, as the next controller can run on another
// node.
func (e *cephEngine) open(ctx context.Context, d *csiServer) error {
	clusters, err := cephconf.Read(e.config)
	if err != nil {
		return err
	}
	cluster, err := clusters.Find(e.cluster)
	if err != nil {
		return err
	}
	credentials, err := cephconf.ReadCredentials(e.secret)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(d.StateDir, 0o700); err != nil { // for the status socket
		return fmt.Errorf("--state-dir: %w", err)
	}
	engine, err := ceph.Open(ctx, ceph.Config{Cluster: cluster, Credentials: credentials, Pools: e.pools, Logger: d.Logger})
	if err != nil {
		return err
	}
	d.OnClose(engine.Close)
	db, err := store.OpenShared(ctx, "of pool "+e.pools[0], engine, store.Options{Role: "controller", Version: 1})
	if err != nil {
		return err
	}
	if err := d.useLedger(ctx, db); err != nil {
		return err
	}
	fencer := blocklist.New(blocklist.Config{Cluster: engine, Ledger: d.ledger, Database: db, Logger: d.Logger})
	d.backend = engine.Backend()
	d.backend.Fencer, d.background = fencer, fencer.Run
	return d.Metrics.Register(healthCollector{prometheus.NewDesc("cleat_ceph_health",
		"1 for each adverse condition of the Ceph cluster and the pools of volumes.",
		[]string{"status", "reason"}, prometheus.Labels{"cluster": e.cluster}), d.backend.Health})
}
