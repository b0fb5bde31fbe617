package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/cleatproject/cleat/csi"
	"github.com/cleatproject/cleat/engine/ceph"
	"github.com/cleatproject/cleat/internal/cephconf"
	"github.com/cleatproject/cleat/internal/linux/krbd"
	"github.com/cleatproject/cleat/node"
	"github.com/cleatproject/cleat/node/rbd"
	"github.com/cleatproject/cleat/volume"
)

// cephEngine keeps volumes as RBD images of a Ceph cluster. The controller
// needs Ceph's libraries (build tag ceph), nodes only the kernel.
type cephEngine struct {
	cluster, config, secret string
	pools                   []string
}

func (e *cephEngine) addFlags(fs *pflag.FlagSet) {
	fs.StringVar(&e.cluster, "ceph-cluster", "", "clusterID of the Ceph cluster in --ceph-config; with Rook its namespace")
	fs.StringVar(&e.config, "ceph-config", "/etc/ceph-csi-config/config.json", "file with the monitors of each cluster, in the format of ceph-csi's config.json")
	fs.StringSliceVar(&e.pools, "ceph-pool", nil, "RBD pool that a StorageClass can name; can be repeated. The first one also holds the controller's state")
	fs.StringVar(&e.secret, "ceph-secret", "", "directory with the files userID and userKey: the controller's Ceph user. On nodes it serves requests without a node-stage secret")
}

func (e *cephEngine) complete(d *csiServer) error {
	switch {
	case d.deployment.PerNode:
		return errors.New("--per-node is for engine local: with engine ceph one controller serves all nodes")
	case len(d.deployment.Topology) > 0:
		return errors.New("--topology is for engines local and spdk: all nodes reach the volumes of engine ceph")
	case d.deployment.Services.Controller:
		if err := e.completeController(); err != nil {
			return err
		}
	}
	d.deployment.ControllerPublish, d.deployment.MultiNode = true, true
	return d.checkNodeID()
}

func (e *cephEngine) completeController() error {
	switch {
	case !cephLinked:
		return errors.New("--engine ceph: this program is built without a Ceph client, which the controller service needs; use the image cleat-ceph, or build one with make build-ceph. The node service (--services node) works without")
	case e.cluster == "":
		return errors.New("--engine ceph requires --ceph-cluster, the clusterID in --ceph-config")
	case len(e.pools) == 0:
		return errors.New("--engine ceph requires --ceph-pool, the RBD pool of the volumes")
	case e.secret == "":
		return errors.New("--engine ceph requires --ceph-secret, the directory of a mounted Secret with userID and userKey")
	}
	for i, pool := range e.pools {
		if pool == "" || strings.ContainsAny(pool, "/@ \t\n") || slices.Contains(e.pools[:i], pool) {
			return fmt.Errorf("--ceph-pool %q is given twice, or is not the name of a pool", pool)
		}
	}
	return nil
}

func (e *cephEngine) abilities() csi.Abilities {
	return csi.Abilities{Snapshots: true, Clones: true, Deltas: true, Health: true}
}

func (e *cephEngine) describe() string {
	if len(e.pools) == 0 {
		return e.cluster
	}
	return e.cluster + "/" + strings.Join(e.pools, ",")
}

func (e *cephEngine) enforcesFences() bool { return true }

func (e *cephEngine) node(_ context.Context, d *csiServer, c *node.Config) error {
	attacher := rbd.New(rbd.Config{
		Driver: d.driverName, Dir: d.StateDir,
		Clusters:    func() (cephconf.Clusters, error) { return cephconf.Read(e.config) },
		Credentials: e.nodeCredentials(),
		VolumeID:    func(d krbd.Device) volume.ID { return ceph.VolumeID(d.PoolID, d.Image, d.ImageID) },
	})
	d.OnClose(attacher.Close)
	c.Attachers = map[string]node.Attacher{rbd.Protocol(): attacher}
	return nil
}

// nodeCredentials is nil without --ceph-secret. It reads them for each call, as
// keys are rotated.
func (e *cephEngine) nodeCredentials() func() (cephconf.Credentials, error) {
	if e.secret == "" {
		return nil
	}
	return func() (cephconf.Credentials, error) { return cephconf.ReadCredentials(e.secret) }
}
