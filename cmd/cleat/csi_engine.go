package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/pflag"

	"github.com/cleatproject/cleat/csi"
	"github.com/cleatproject/cleat/node"
)

// csiEngine is the part of cleat csi that depends on the storage engine.
type csiEngine interface {
	addFlags(fs *pflag.FlagSet)
	// complete checks the flags, and derives the rest of the deployment.
	complete(d *csiServer) error
	// abilities are announced by all processes, also by one without the
	// controller service, which opens no engine.
	abilities() csi.Abilities
	// describe names the storage in the log and in the status.
	describe() string
	// enforcesFences reports whether the backend fences a client on all nodes.
	enforcesFences() bool
	// open sets ledger and backend for the controller service.
	open(ctx context.Context, d *csiServer) error
	// node completes the configuration of the node service.
	node(ctx context.Context, d *csiServer, c *node.Config) error
}

// namedEngine has its flags, so that those of other engines are refused.
type namedEngine struct {
	name string
	csiEngine
	flags *pflag.FlagSet
}

func (d *csiServer) addEngines(fs *pflag.FlagSet) {
	nvme, ceph := &nvmeNode{}, &cephCluster{}
	d.engines = []namedEngine{
		{name: engineLocal, csiEngine: &localEngine{}},
		{name: engineCeph, csiEngine: &cephEngine{cephCluster: ceph}}, {name: engineCephFS, csiEngine: &cephFSEngine{cephCluster: ceph}},
		{name: engineNone, csiEngine: &noEngine{nvme: nvme}}, {name: engineSPDK, csiEngine: &spdkEngine{nvme: nvme}},
	}
	for i := range d.engines {
		e := &d.engines[i]
		e.flags = pflag.NewFlagSet(e.name, pflag.ContinueOnError)
		e.addFlags(e.flags)
		fs.AddFlagSet(e.flags) // without flags that an earlier engine has, too
	}
}

func (d *csiServer) engineNames() (names []string) {
	for _, e := range d.engines {
		names = append(names, e.name)
	}
	return names
}

func (d *csiServer) selectEngine() error {
	var selected namedEngine
	for _, e := range d.engines {
		if e.name == d.engine {
			selected, d.storage = e, e.csiEngine
		}
	}
	if d.storage == nil {
		return fmt.Errorf("--engine %q is unknown: use one of %s", d.engine, strings.Join(d.engineNames(), ", "))
	}
	var err error
	for _, e := range d.engines {
		e.flags.VisitAll(func(f *pflag.Flag) {
			if !f.Changed || selected.flags.Lookup(f.Name) != nil {
				return
			}
			err = fmt.Errorf("--%s is a setting of engine %s, and this is engine %s: remove it, or set --engine %[2]s", f.Name, e.name, d.engine)
		})
	}
	return err
}
