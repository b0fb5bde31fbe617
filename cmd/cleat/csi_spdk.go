package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"

	"github.com/cleatproject/cleat/csi"
	"github.com/cleatproject/cleat/engine/spdk"
	"github.com/cleatproject/cleat/internal/configmap"
	"github.com/cleatproject/cleat/internal/spdkconf"
	"github.com/cleatproject/cleat/internal/store"
	"github.com/cleatproject/cleat/node"
	rpc "github.com/cleatproject/cleat/spdk"
)

// spdkEngine keeps volumes as lvols of SPDK targets. Nodes attach them as those
// of engine none, with the host NQN that the controller derives from their names.
type spdkEngine struct {
	nvme                  *nvmeNode
	config, secret, state string
	kubeconfig            string
	hostNQN               string // of this node; set by complete
}

func (e *spdkEngine) addFlags(fs *pflag.FlagSet) {
	e.nvme.addFlags(fs)
	fs.StringVar(&e.config, "spdk-config", "/etc/spdkcsi-config/config.json", "file with the SPDK targets: spdk-csi's config.json, or YAML with further keys")
	fs.StringVar(&e.secret, "spdk-secret", "", "file with user and password of each target that is reached over HTTP: spdk-csi's secret.json")
	fs.StringVar(&e.kubeconfig, "spdk-kubeconfig", "", "kubeconfig file for the ConfigMap of --spdk-state; empty: in-cluster configuration")
	fs.StringVar(&e.state, "spdk-state", "", "ConfigMap with the controller's state, as configmap:NAMESPACE/NAME, so that it can run on any node; empty: controller.db in --state-dir")
}

func (e *spdkEngine) complete(d *csiServer) error {
	switch {
	case d.deployment.PerNode:
		return errors.New("--per-node is for engine local: with engine spdk one controller serves all nodes")
	case d.deployment.Services.Controller && e.config == "":
		return errors.New("--engine spdk requires --spdk-config, the file with the SPDK targets")
	}
	if _, _, err := parseState(e.state); err != nil {
		return err
	}
	for key, value := range d.deployment.Topology {
		if value == "" { // as from the label of a pod that does not have it
			return fmt.Errorf("--topology %s has no value: set the node's. Pods have the zone and region labels of their node since Kubernetes 1.35", key)
		}
	}
	d.deployment.PlacedVolumes = len(d.deployment.Topology) > 0
	d.deployment.ControllerPublish, d.deployment.MultiNode = true, true
	d.deployment.StorageGrants, d.deployment.PlainNodeIDs = true, true
	e.hostNQN = nodeHostNQN(e.nvme.cluster, d.nodeID)
	return d.checkNodeID()
}

func (e *spdkEngine) abilities() csi.Abilities {
	return csi.Abilities{Snapshots: true, Clones: true, Modify: true, Health: true}
}

// describe returns the host NQN of a node, which the targets admit.
func (e *spdkEngine) describe() string { return e.hostNQN }

func (e *spdkEngine) enforcesFences() bool { return true }

// open does not need the targets to answer.
func (e *spdkEngine) open(ctx context.Context, d *csiServer) error {
	targets, retired, err := e.targets(d)
	if err != nil {
		return err
	}
	db, err := e.openDatabase(ctx, d)
	if err != nil {
		return err
	}
	if err := d.useLedger(ctx, db); err != nil {
		return err
	}
	engine, err := spdk.New(spdk.Config{
		Targets: targets, Retired: retired, Database: db, Grants: d.ledger, Logger: d.Logger,
		Owner:   d.driverName + " " + e.nvme.cluster,
		HostNQN: func(node string) string { return nodeHostNQN(e.nvme.cluster, node) },
	})
	if err != nil {
		return err
	}
	d.backend, d.background = engine.Backend(), engine.Run
	return d.Metrics.Register(healthCollector{prometheus.NewDesc("cleat_spdk_health",
		"1 for each adverse condition of the SPDK targets and their lvol stores.", []string{"status", "reason"}, nil), d.backend.Health})
}

// targets returns a client of each target, and the names of those that are
// retired. It reads the password of a proxy for
// each call, as passwords are rotated. Volumes are placed by topology if a target
// has one.
func (e *spdkEngine) targets(d *csiServer) (targets []spdk.Target, retired []string, err error) {
	configured, err := spdkconf.Read(e.config, e.secret)
	if err != nil {
		return nil, nil, err
	}
	for _, t := range configured {
		if t.Retired {
			retired = append(retired, t.Name)
			continue
		}
		d.deployment.PlacedVolumes = d.deployment.PlacedVolumes || len(t.Topology) > 0
		c := rpc.Config{
			Socket: t.Socket, URL: t.URL, User: t.User, Logger: d.Logger.With("target", t.Name),
			Metrics: prometheus.WrapRegistererWith(prometheus.Labels{"target": t.Name}, d.Metrics),
		}
		if t.URL != "" {
			c.Password = t.Password.Read
		}
		client, err := rpc.Open(c)
		if err != nil {
			return nil, nil, fmt.Errorf("target %s: %w", t.Name, err)
		}
		d.OnClose(func(context.Context) error { return client.Close() })
		targets = append(targets, spdk.Target{
			Name: t.Name, Client: client, Transport: t.Transport, Addresses: t.Addresses, TLSAddresses: t.TLSAddresses,
			Stores: t.Stores, Forget: t.Forget, Topology: t.Topology,
		})
	}
	return targets, retired, nil
}

// openDatabase opens the record of volumes, grants and fences.
func (e *spdkEngine) openDatabase(ctx context.Context, d *csiServer) (store.Database, error) {
	o := spdk.StoreOptions()
	namespace, name, err := parseState(e.state)
	if err != nil {
		return nil, err
	}
	if name == "" && e.kubeconfig != "" {
		return nil, fmt.Errorf("--spdk-kubeconfig %q is for a ConfigMap, and --spdk-state names none; set configmap:NAMESPACE/NAME", e.kubeconfig)
	}
	if name == "" {
		return d.OpenStore(ctx, "controller.db", o)
	}
	if err := os.MkdirAll(d.StateDir, 0o700); err != nil { // for the status socket
		return nil, fmt.Errorf("--state-dir: %w", err)
	}
	object, err := configmap.New(configmap.Config{Namespace: namespace, Name: name, Kubeconfig: e.kubeconfig, UserAgent: "cleat/" + release})
	if err != nil {
		return nil, fmt.Errorf("--spdk-state: %w", err)
	}
	return store.OpenShared(ctx, object.String(), object, o)
}

// parseState parses --spdk-state; without a name the state is in a file.
func parseState(s string) (namespace, name string, err error) {
	if s == "" {
		return "", "", nil
	}
	rest, isMap := strings.CutPrefix(s, "configmap:")
	namespace, name, ok := strings.Cut(rest, "/")
	if !isMap || !ok || namespace == "" || name == "" || strings.Contains(name, "/") {
		return "", "", fmt.Errorf("--spdk-state %q does not have the form configmap:NAMESPACE/NAME; leave it empty for a file in --state-dir", s)
	}
	return namespace, name, nil
}

func (e *spdkEngine) node(ctx context.Context, d *csiServer, c *node.Config) error {
	return e.nvme.attach(ctx, d, c, e.hostNQN)
}
