package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"

	"github.com/cleatproject/cleat/csi"
	"github.com/cleatproject/cleat/fence/enforce"
	"github.com/cleatproject/cleat/fence/service"
	"github.com/cleatproject/cleat/internal/ledger"
	"github.com/cleatproject/cleat/internal/linux/netaddr"
	"github.com/cleatproject/cleat/internal/store"
	"github.com/cleatproject/cleat/internal/unixsock"
	"github.com/cleatproject/cleat/volume"
)

// fencesServed reports whether anybody can ask this process for a fence.
func (f csiFlags) fencesServed() bool { return f.addonsEndpoint != "" || f.fences.listen != "" }

func (f csiFlags) checkFencing() error {
	if _, err := f.addresses(); err != nil {
		return err
	}
	switch {
	case f.addonsEndpoint == "" && len(f.fences.peers) > 0:
		return errors.New("--fence-peer is of no use without --addons-endpoint, where fences are asked for")
	case f.addonsEndpoint == "" && len(f.fences.secrets) > 0:
		return errors.New("--fence-secret guards nothing without --addons-endpoint; peers show a certificate instead")
	case !f.fencesServed():
		return nil
	}
	if f.addonsEndpoint != "" {
		addons, err := unixsock.ParseEndpoint(f.addonsEndpoint)
		if err != nil {
			return fmt.Errorf("--addons-endpoint: %w", err)
		}
		own, err := unixsock.ParseEndpoint(f.endpoint)
		if err == nil && filepath.Dir(own) == filepath.Dir(addons) {
			return fmt.Errorf("--addons-endpoint %s: the CSI specification wants nothing else beside the socket %s; use another directory", addons, own)
		}
	}
	return f.fences.check()
}

// addresses are those of --node-address.
func (f csiFlags) addresses() (all []netip.Addr, err error) {
	for _, text := range f.nodeAddresses {
		a, err := netip.ParseAddr(text)
		if err != nil || a.Zone() != "" || a.IsUnspecified() || a.IsLoopback() {
			return nil, fmt.Errorf("--node-address %q: an IPv4 or IPv6 address by which others reach this node is needed, as 192.0.2.7", text)
		}
		all = append(all, a.Unmap())
	}
	return all, nil
}

// fenceOffer says what is served on the socket for sidecars. Fences are offered
// only where every process that could use a volume hears of them.
func (f csiFlags) fenceOffer(s csi.Services) service.Offer {
	o := service.Offer{Clients: s.Node}
	switch {
	case !s.Controller:
		o.Why = "this process has the node service alone; ask the controller's"
	case len(f.fences.peers) > 0:
		o.Fence = true
	case !s.Node:
		o.Why = "the process with the node service would not hear of the fence; name it with --fence-peer, and give it --fence-listen"
	case f.perNode:
		o.Why = "each node runs a driver of its own (--per-node), and the others would not hear of the fence; name them with --fence-peer"
	default:
		o.Fence = true
	}
	return o
}

// openLedger opens the record of grants and fences. A process without the
// controller service keeps one of its own, of fences alone.
func (d *driver) openLedger(ctx context.Context) error {
	name, role := "grants.db", "grants"
	if !d.deployment.Services.Controller {
		name, role = "fences.db", "fences"
	}
	var err error
	if d.grants, err = store.Open(ctx, filepath.Join(d.flags.stateDir, name), store.Options{Role: role, Version: 1}); err != nil {
		return err
	}
	d.ledger = ledger.New(d.grants)
	self := d.self()
	if len(self.Addrs) == 0 && d.flags.fencesServed() {
		d.logger.Warn("no address of this node is known, so no fence can be for it: it has no default route; name its addresses with --node-address")
	}
	return d.ledger.RecordClient(ctx, self)
}

// self is who this node is to the storage, as far as it can be told now.
func (d *driver) self() volume.Client {
	c := volume.Client{Node: d.flags.nodeID}
	var err error
	if c.Addrs, err = d.flags.addresses(); err == nil && len(c.Addrs) == 0 {
		c.Addrs, err = netaddr.Preferred()
	}
	if err != nil {
		d.logger.Warn("the addresses of this node cannot be told; name them with --node-address", "error", err)
	}
	return c
}

// client is who this node is on record.
func (d *driver) client(ctx context.Context) (volume.Client, error) {
	if err := d.ledger.RecordClient(ctx, d.self()); err != nil {
		return volume.Client{}, err
	}
	c, _, err := d.ledger.Client(ctx, d.flags.nodeID)
	return c, err
}

// restoreFences puts in force what is on record. Files of this machine have
// nothing remote to cut: there the list alone refuses.
func (d *driver) restoreFences(ctx context.Context) error {
	if !d.flags.fencesServed() {
		return nil
	}
	var locals []enforce.Local
	if d.backend.Fencer != nil {
		locals = append(locals, enforce.Local{Name: d.flags.engine, Fencer: d.backend.Fencer})
	}
	return d.fencing.restore(ctx, d.ledger, locals, nil)
}

// serveFences adds what fencing is served on.
func (d *driver) serveFences() {
	if d.flags.addonsEndpoint != "" {
		d.fencing.serveSidecars(d.flags.addonsEndpoint, service.Config{Offer: d.flags.fenceOffer(d.deployment.Services), Client: d.client})
	}
	d.fencing.servePeers()
}
