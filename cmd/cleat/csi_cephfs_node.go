package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/pflag"

	"github.com/cleatproject/cleat/csi"
	"github.com/cleatproject/cleat/driver"
	"github.com/cleatproject/cleat/node"
	"github.com/cleatproject/cleat/node/cephfs"
)

// cephFSEngine keeps volumes as subvolumes of a CephFS file system.
type cephFSEngine struct {
	*cephCluster
	fs string
}

func (e *cephFSEngine) driver() driver.Engine {
	return driver.Engine{
		Name: engineCephFS, Flags: e.addFlags, Complete: e.complete, Abilities: e.abilities, Fences: true,
		Describe: e.describe, Open: e.open, Node: e.node,
	}
}

func (e *cephFSEngine) addFlags(fs *pflag.FlagSet) {
	e.cephCluster.addFlags(fs)
	fs.StringVar(&e.fs, "cephfs-name", "", "CephFS file system of the volumes; empty: the only one of the cluster. Its metadata pool also holds the controller's state")
}

func (e *cephFSEngine) complete(p *driver.Process) error {
	if strings.ContainsAny(e.fs, "/@=, \t\n") {
		return fmt.Errorf("--cephfs-name %q is not the name of a file system", e.fs)
	}
	p.Deployment.SharedFS = "ceph"
	return e.cephCluster.complete(p, engineCephFS)
}

func (e *cephFSEngine) abilities() csi.Abilities {
	return csi.Abilities{Snapshots: true, Clones: true, Health: true}
}

func (e *cephFSEngine) describe() string {
	if e.fs == "" {
		return e.id
	}
	return e.id + "/" + e.fs
}

func (e *cephFSEngine) node(_ context.Context, p *driver.Process, c *node.Config) error {
	attacher := cephfs.New(cephfs.Config{Driver: p.DriverName(), Dir: p.StateDir(), Clusters: e.clusters, Credentials: e.nodeCredentials()})
	p.OnClose(attacher.Close)
	c.Attachers = map[string]node.Attacher{cephfs.Protocol(): attacher}
	return e.boots.report(p)
}
