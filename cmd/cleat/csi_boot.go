package main

import (
	"context"
	"fmt"

	"github.com/cleatproject/cleat/driver"
	"github.com/cleatproject/cleat/internal/bootlease"
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

// open returns the Leases, or nil if nodes do not report their boots.
func (b *bootFlags) open(p *driver.Process) (*bootlease.Leases, error) {
	if b.leases == "" {
		return nil, nil
	}
	namespace, prefix, err := bootlease.ParseName(b.leases, "")
	if err != nil {
		return nil, err
	}
	leases, err := bootlease.New(bootlease.Config{Kubeconfig: b.kubeconfig, Namespace: namespace, Prefix: prefix, UserAgent: p.UserAgent()})
	if err != nil {
		return nil, fmt.Errorf("--ceph-boot-leases: %w", err)
	}
	return leases, nil
}

// report has this node report its boot, and admits it to stage and publish once the
// boot is reported, or could not be for some seconds.
func (b *bootFlags) report(p *driver.Process) error {
	r, err := b.reporter(p, p.IsUsed)
	if err == nil && r != nil {
		p.Admit = r.Admit
		p.Background("boot report", r.Run)
	}
	return err
}

func (b *bootFlags) reporter(p *driver.Process, isUsed func(context.Context) (bool, error)) (*bootlease.Reporter, error) {
	leases, err := b.open(p)
	if err != nil || leases == nil {
		return nil, err
	}
	return bootlease.NewReporter(bootlease.ReporterConfig{Leases: leases, Node: p.NodeID(), IsUsed: isUsed, Dir: p.StateDir(), Logger: p.Logger()})
}
