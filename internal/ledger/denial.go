package ledger

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/store"
	"github.com/cleatproject/cleat/volume"
)

// denial is a fence and the client's address that it covers.
type denial struct {
	node   string
	addr   netip.Addr
	until  time.Time // when first seen without the address; zero: it has the address
	fence  volume.Fence
	others int // further fences over the client
}

// refuse returns Precondition for a fenced client.
func refuse(tx *store.Tx, c volume.Client, k known) error {
	d, err := denialOf(tx, c, k)
	if err != nil || d == nil {
		return err
	}
	return d.refusal()
}

// Admitted implements volume.Grants.
func (l *Ledger) Admitted(ctx context.Context, id volume.ID) (admitted []volume.Client, err error) {
	err = l.store.View(ctx, func(tx *store.Tx) error {
		admitted = nil
		held, err := recordedGrants(tx, string(id)+separator)
		for _, g := range held {
			if g.IsAdmitted() {
				admitted = append(admitted, g.Client)
			}
		}
		return err
	})
	return admitted, err
}

// Records implements volume.Grants.
func (l *Ledger) Records(ctx context.Context) (r volume.Records, err error) {
	err = l.store.View(ctx, func(tx *store.Tx) error {
		r = volume.Records{}
		all, err := allFences(tx)
		if err != nil {
			return err
		}
		for _, f := range all {
			if f.IsDesired() && !slices.Contains(r.Fenced, f.Block) {
				r.Fenced = append(r.Fenced, f.Block)
			}
		}
		if r.Grants, err = recordedGrants(tx, ""); err != nil {
			return err
		}
		for e, err := range clients().Range(tx, "") {
			if err != nil {
				return err
			}
			c := volume.RecordedClient{Client: e.Value.Client}
			for _, f := range e.Value.Former {
				c.Former = append(c.Former, f.Addr)
			}
			r.Clients = append(r.Clients, c)
		}
		r.Instances, err = store.Values(instances().Range(tx, ""))
		return err
	})
	return r, err
}

// recordedGrants reads the grants whose keys have a prefix, and decides alone whom
// the storage admits.
func recordedGrants(tx *store.Tx, prefix string) (all []volume.RecordedGrant, err error) {
	held, err := store.Values(grants().Prefix(tx, prefix))
	if err != nil {
		return nil, err
	}
	for _, g := range held {
		k, _, err := clients().Get(tx, g.Client.Node)
		if err != nil {
			return nil, err
		}
		r := volume.RecordedGrant{Grant: g}
		for _, a := range addresses(g.Client, k) {
			over, err := fencesOver(tx, a.Addr)
			if err != nil {
				return nil, err
			}
			for _, f := range over {
				if f.IsDesired() && !slices.Contains(r.Fenced, f.Block) {
					r.Fenced = append(r.Fenced, f.Block)
				}
			}
		}
		switch {
		case len(r.Fenced) > 0:
			r.Client.Addrs = slices.Concat(g.Client.Addrs, k.Client.Addrs)
		case g.NameOnly || len(g.Client.Addrs) == 0:
			r.Client.Addrs = k.Client.Addrs
		}
		all = append(all, r)
	}
	return all, nil
}

// denialOf returns nil for a client that is not fenced.
func denialOf(tx *store.Tx, c volume.Client, k known) (*denial, error) {
	var all []denial
	blocks := map[string]bool{}
	for _, a := range addresses(c, k) {
		over, err := fencesOver(tx, a.Addr)
		if err != nil {
			return nil, err
		}
		for _, f := range over {
			all = append(all, denial{node: c.Node, addr: a.Addr, until: a.Until, fence: f})
			blocks[fenceKey(f)] = true
		}
	}
	if len(all) == 0 {
		return nil, nil
	}
	first := slices.MinFunc(all, func(a, b denial) int {
		return cmp.Or(
			cmp.Compare(rank(a.fence.IsDesired()), rank(b.fence.IsDesired())),
			cmp.Compare(rank(a.until.IsZero()), rank(b.until.IsZero())),
			cmp.Compare(b.fence.Block.Bits(), a.fence.Block.Bits()),
		)
	})
	first.others = len(blocks) - 1
	return &first, nil
}

func rank(has bool) int {
	if has {
		return 0
	}
	return 1
}

// addresses returns all addresses, the current ones first, with zero Until.
func addresses(c volume.Client, k known) (all []former) {
	listed := map[netip.Addr]bool{}
	add := func(a former) {
		if !listed[a.Addr] {
			listed[a.Addr] = true
			all = append(all, a)
		}
	}
	for _, a := range slices.Concat(c.Addrs, k.Client.Addrs) {
		add(former{Addr: a})
	}
	for _, a := range k.Former {
		add(a)
	}
	return all
}

// refusal is shown in pod events.
func (d *denial) refusal() error {
	block, since := d.fence.Block, stamp(d.fence.Since)
	address := fmt.Sprintf("its address %s", d.addr)
	if !d.until.IsZero() {
		address = fmt.Sprintf("%s, its address until %s,", d.addr, stamp(d.until))
	}
	if d.fence.Phase == volume.Lifting {
		return errs.Errorf(errs.Precondition, "node %s is not yet unfenced: %s is in block %s, which is being unfenced since %s; repeat UnfenceClusterNetwork (cleat fence rm %s) until it succeeds (%s)",
			d.node, address, block, since, block, d.owners())
	}
	how := "is fenced since"
	if d.fence.Phase == volume.Fencing {
		how = "is being fenced since"
	}
	return errs.Errorf(errs.Precondition, "node %s is fenced: %s is in block %s, which %s %s; it gets no volume until the block is unfenced with UnfenceClusterNetwork (cleat fence rm %s), which is safe after the node was restarted or powered off (%s)",
		d.node, address, block, how, since, block, d.owners())
}

// owners returns the parameters that unfence the block.
func (d *denial) owners() string {
	text := "fenced without parameters, unfence it without parameters"
	if keys := d.fence.Owner.Keys; len(keys) > 0 {
		text = "fenced with parameters " + strings.Join(keys, ", ") + ", unfence it with the same"
	}
	switch d.others {
	case 0:
		return text
	case 1:
		return text + "; one more fence covers the node"
	}
	return fmt.Sprintf("%s; %d more fences cover the node", text, d.others)
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }
