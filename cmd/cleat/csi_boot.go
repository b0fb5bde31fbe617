package main

import (
	"context"
	"fmt"

	"github.com/cleatproject/cleat/csi"
	"github.com/cleatproject/cleat/internal/bootlease"
	"github.com/cleatproject/cleat/node"
	"github.com/cleatproject/cleat/volume"
)

// bootFlags name the Leases in which nodes report their boots.
type bootFlags struct {
	leases, kubeconfig string
}

func (b *bootFlags) check(node string) error {
	switch {
	case b.leases != "":
		_, _, err := bootlease.ParseName(b.leases, node)
		if err != nil {
			return fmt.Errorf("--ceph-boot-leases: %w", err)
		}
	case b.kubeconfig != "":
		return fmt.Errorf("--ceph-kubeconfig %q is for the Leases of --ceph-boot-leases, which is not set", b.kubeconfig)
	}
	return nil
}

// open sets the server's Leases, if any.
func (b *bootFlags) open(d *csiServer) error {
	if b.leases == "" || d.boots != nil {
		return nil
	}
	namespace, prefix, err := bootlease.ParseName(b.leases, "")
	if err != nil {
		return err
	}
	d.boots, err = bootlease.New(bootlease.Config{
		Kubeconfig: b.kubeconfig, Namespace: namespace, Prefix: prefix, UserAgent: "cleat/" + release,
	})
	if err != nil {
		return fmt.Errorf("--ceph-boot-leases: %w", err)
	}
	return nil
}

// bootAdmission admits this node to stage and publish once its boot is reported,
// or could not be for some seconds.
type bootAdmission struct {
	csi.Admission
	reporter *bootlease.Reporter
}

// Enter implements csi.Admission.
func (a bootAdmission) Enter(ctx context.Context, c volume.Client) (leave func(), err error) {
	if err := a.reporter.Admit(ctx); err != nil {
		return nil, err
	}
	return a.Admission.Enter(ctx, c)
}

func (d *csiServer) bootAdmission(manager *node.Manager) (csi.Admission, error) {
	if d.boots == nil {
		return d.ledger, nil
	}
	r, err := bootlease.NewReporter(bootlease.ReporterConfig{
		Leases: d.boots, Node: d.nodeID, IsUsed: manager.IsUsed, Dir: d.StateDir, Logger: d.Logger,
	})
	if err != nil {
		return nil, err
	}
	d.reporting = r.Run
	return bootAdmission{d.ledger, r}, nil
}
