package driver

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/cleatproject/cleat/csi"
	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/ledger"
	"github.com/cleatproject/cleat/internal/linux/netaddr"
	"github.com/cleatproject/cleat/volume"
)

// self has all addresses that a connection of this node to the storage can have: a
// fence of the node must cover them. Only where fences are served do they matter.
func (d *driver) self() (volume.Client, error) {
	c, err := d.clientWith(netaddr.OnLinks)
	switch n := len(c.Addrs); {
	case err != nil && !d.fencesServed():
		d.Logger.Warn("node addresses unknown, set --node-address", "err", err)
		return volume.Client{Node: d.nodeID}, nil
	case n > ledger.MaxAddrs:
		d.Logger.Warn("too many node addresses, a fence covers only a part, set --node-address", "count", n, "limit", ledger.MaxAddrs)
		c.Addrs = c.Addrs[:ledger.MaxAddrs]
	}
	return c, err
}

// named has the addresses of the node id, which do not rotate.
func (d *driver) named() (volume.Client, error) {
	if len(d.addresses) > 0 {
		return volume.Client{Node: d.nodeID, Addrs: d.addresses}, nil
	}
	return d.clientWith(netaddr.Stable)
}

// clientWith derives addresses from those of --node-address or the default routes.
// Unavailable: they cannot be read, or not all of them.
func (d *driver) clientWith(derive func(sources []netip.Addr) ([]netip.Addr, error)) (volume.Client, error) {
	addrs, err := d.addresses, error(nil)
	if len(addrs) == 0 {
		addrs, err = netaddr.Preferred()
	}
	if err == nil {
		addrs, err = derive(addrs)
	}
	if err != nil {
		return volume.Client{}, errs.Errorf(errs.Unavailable, "the addresses of node %s are not known: %w", d.nodeID, err)
	}
	return volume.Client{Node: d.nodeID, Addrs: addrs}, nil
}

// checkNodeID refuses names and addresses that cannot be a CSI node id.
func (d *driver) checkNodeID() error {
	p := d.process.Deployment
	if len(d.addresses) == 0 || !p.Services.Node || !p.MultiNode || p.Static {
		return nil
	}
	named, err := d.named()
	if err == nil {
		_, err = csi.FormatNodeID(named)
	}
	if err != nil {
		return fmt.Errorf("--node-id and --node-address: %w", err)
	}
	return nil
}

// client is what the orchestrator fences: all addresses or none.
func (d *driver) client(ctx context.Context) (volume.Client, error) {
	self, err := d.clientWith(netaddr.OnLinks)
	if err != nil {
		return volume.Client{}, err
	}
	if n := len(self.Addrs); n > ledger.MaxAddrs {
		return volume.Client{}, errs.Errorf(errs.Precondition, "node %s has %d addresses on the interfaces to the storage, a fence covers at most %d: remove addresses", d.nodeID, n, ledger.MaxAddrs)
	}
	if err := d.ledger.RecordClient(ctx, self); err != nil {
		return volume.Client{}, err
	}
	c, _, err := d.ledger.Client(ctx, d.nodeID)
	return c, err
}
