package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/cleatproject/cleat/csi"
	"github.com/cleatproject/cleat/driver"
	"github.com/cleatproject/cleat/engine/ceph"
	"github.com/cleatproject/cleat/internal/cephconf"
	"github.com/cleatproject/cleat/internal/linux/krbd"
	"github.com/cleatproject/cleat/node"
	"github.com/cleatproject/cleat/node/rbd"
	"github.com/cleatproject/cleat/volume"
)

// cephCluster has the flags that the engines of Ceph share. Their controllers need
// Ceph's libraries (build tag ceph), nodes only the kernel.
type cephCluster struct {
	id, config, secret string
	boots              bootFlags
}

func (c *cephCluster) addFlags(fs *pflag.FlagSet) {
	fs.StringVar(&c.id, "ceph-cluster", "", "clusterID of the Ceph cluster in --ceph-config; with Rook its namespace")
	fs.StringVar(&c.config, "ceph-config", "/etc/ceph-csi-config/config.json", "file with the monitors of each cluster, in the format of ceph-csi's config.json")
	fs.StringVar(&c.secret, "ceph-secret", "", "directory with the files userID and userKey, or adminID and adminKey: the controller's Ceph user. On nodes it serves requests without a node-stage secret")
	fs.StringVar(&c.boots.leases, "ceph-boot-leases", "", "Leases in which nodes report their boots, as NAMESPACE/PREFIX, for all processes: a fenced node is then unfenced after a reboot without confirmation; empty: none")
	fs.StringVar(&c.boots.kubeconfig, "ceph-kubeconfig", "", "kubeconfig file for --ceph-boot-leases; empty: in-cluster configuration")
}

func (c *cephCluster) complete(p *driver.Process, engine string) error {
	d := &p.Deployment
	switch {
	case d.PerNode:
		return fmt.Errorf("--per-node is for engine local: with engine %s one controller serves all nodes", engine)
	case len(d.Topology) > 0:
		return fmt.Errorf("--topology is for engines local and spdk: all nodes reach the volumes of engine %s", engine)
	case !d.Services.Controller:
	case !cephLinked:
		return fmt.Errorf("--engine %s: this program is built without a Ceph client, which the controller service needs; use the image cleat-ceph, or build one with make build-ceph. The node service (--services node) works without", engine)
	case c.id == "":
		return fmt.Errorf("--engine %s requires --ceph-cluster, the clusterID in --ceph-config", engine)
	case c.secret == "":
		return fmt.Errorf("--engine %s requires --ceph-secret, the directory of a mounted Secret with a user and its key", engine)
	}
	d.ControllerPublish, d.MultiNode = true, true
	return c.boots.check(p.NodeID())
}

func (c *cephCluster) clusters() (cephconf.Clusters, error) { return cephconf.Read(c.config) }

// nodeCredentials is nil without --ceph-secret. It reads them for each call, as
// keys are rotated.
func (c *cephCluster) nodeCredentials() func() (cephconf.Credentials, error) {
	if c.secret == "" {
		return nil
	}
	return func() (cephconf.Credentials, error) { return cephconf.ReadCredentials(c.secret) }
}

// cephEngine keeps volumes as RBD images of a Ceph cluster.
type cephEngine struct {
	*cephCluster
	pools []string
	// groups: the controller's librbd can restore members of groups. A process
	// with the node service alone does not know it, and announces no groups.
	groups bool
}

func (e *cephEngine) driver() driver.Engine {
	return driver.Engine{
		Name: engineCeph, Flags: e.addFlags, Complete: e.complete, Abilities: e.abilities, Fences: true,
		Describe: e.describe, Open: e.open, Node: e.node,
	}
}

func (e *cephEngine) addFlags(fs *pflag.FlagSet) {
	e.cephCluster.addFlags(fs)
	fs.StringSliceVar(&e.pools, "ceph-pool", nil, "RBD pool that a StorageClass can name; can be repeated. The first one also holds the controller's state")
}

func (e *cephEngine) complete(p *driver.Process) error {
	if err := e.cephCluster.complete(p, engineCeph); err != nil {
		return err
	}
	if p.Deployment.Services.Controller && len(e.pools) == 0 {
		return errors.New("--engine ceph requires --ceph-pool, the RBD pool of the volumes")
	}
	for i, pool := range e.pools {
		if pool == "" || strings.ContainsAny(pool, "/@ \t\n") || slices.Contains(e.pools[:i], pool) {
			return fmt.Errorf("--ceph-pool %q is given twice, or is not the name of a pool", pool)
		}
	}
	return nil
}

func (e *cephEngine) abilities() csi.Abilities {
	return csi.Abilities{Snapshots: true, Clones: true, Groups: e.groups, Deltas: true, Health: true}
}

func (e *cephEngine) describe() string {
	if len(e.pools) == 0 {
		return e.id
	}
	return e.id + "/" + strings.Join(e.pools, ",")
}

func (e *cephEngine) node(_ context.Context, p *driver.Process, c *node.Config) error {
	attacher := rbd.New(rbd.Config{
		Driver: p.DriverName(), Dir: p.StateDir(),
		Clusters: e.clusters, Credentials: e.nodeCredentials(),
		VolumeID: func(d krbd.Device) volume.ID { return ceph.VolumeID(d.PoolID, d.Image, d.ImageID) },
	})
	p.OnClose(attacher.Close)
	c.Attachers = map[string]node.Attacher{rbd.Protocol(): attacher}
	return e.boots.report(p)
}
