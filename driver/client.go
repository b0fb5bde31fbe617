package driver

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/cleatproject/cleat/csi"
	"github.com/cleatproject/cleat/internal/ledger"
	"github.com/cleatproject/cleat/internal/linux/netaddr"
	"github.com/cleatproject/cleat/volume"
)

// self has all addresses that a connection of this node to the storage can have: a
// fence of the node must cover them.
func (d *driver) self() volume.Client {
	return d.clientWith(netaddr.OnLinks)
}

// named has the addresses of the node id, which do not rotate.
func (d *driver) named() volume.Client {
	if len(d.addresses) > 0 {
		return volume.Client{Node: d.nodeID, Addrs: d.addresses}
	}
	return d.clientWith(netaddr.Stable)
}

// clientWith derives addresses from those of --node-address or the default routes.
func (d *driver) clientWith(derive func(sources []netip.Addr) ([]netip.Addr, error)) volume.Client {
	c := volume.Client{Node: d.nodeID, Addrs: d.addresses}
	var err error
	if len(c.Addrs) == 0 {
		c.Addrs, err = netaddr.Preferred()
	}
	if err == nil {
		var derived []netip.Addr
		if derived, err = derive(c.Addrs); err == nil {
			c.Addrs = derived
		}
	}
	switch n := len(c.Addrs); {
	case err != nil:
		d.Logger.Warn("node addresses unknown, set --node-address", "err", err)
	case n > ledger.MaxAddrs:
		d.Logger.Warn("too many node addresses, a fence covers only a part, set --node-address", "count", n, "limit", ledger.MaxAddrs)
		c.Addrs = c.Addrs[:ledger.MaxAddrs]
	}
	return c
}

// checkNodeID refuses names and addresses that cannot be a CSI node id.
func (d *driver) checkNodeID() error {
	p := d.process.Deployment
	if len(d.addresses) == 0 || !p.Services.Node || !p.MultiNode || p.Static {
		return nil
	}
	if _, err := csi.FormatNodeID(d.named()); err != nil {
		return fmt.Errorf("--node-id and --node-address: %w", err)
	}
	return nil
}

func (d *driver) client(ctx context.Context) (volume.Client, error) {
	if err := d.ledger.RecordClient(ctx, d.self()); err != nil {
		return volume.Client{}, err
	}
	c, _, err := d.ledger.Client(ctx, d.nodeID)
	return c, err
}
