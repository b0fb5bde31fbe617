package ledger

import (
	"context"
	"net/netip"
	"slices"
	"strings"
	"time"

	"go4.org/netipx"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/cidr"
	"github.com/cleatproject/cleat/internal/store"
	"github.com/cleatproject/cleat/volume"
)

const (
	// MaxAddrs is per client.
	MaxAddrs = 64
	// maxFormer, besides those that a fence covers, holds at least all
	// addresses before the last change.
	maxFormer = MaxAddrs
)

type known struct {
	Client volume.Client `json:"client"` // as last seen
	Former []former      `json:"former,omitempty"`
}

// former is a former address of a client: a node fenced by it remains fenced
// when it returns with another one.
type former struct {
	Addr  netip.Addr `json:"addr"`
	Until time.Time  `json:"until"` // when first seen without the address
}

// clients is keyed by node.
func clients() store.Bucket[known] { return store.Bucket[known]{Name: "clients"} }

// RecordClient records a client durably. Empty fields keep their values.
// Invalid: no node, or an invalid address.
func (l *Ledger) RecordClient(ctx context.Context, c volume.Client) error {
	c, err := cleanClient(c)
	if err != nil {
		return err
	}
	return l.see(ctx, c, func(*store.Tx, known) error { return nil })
}

// maxLearnt addresses of a client are its present ones.
const maxLearnt = 16

// Learn implements volume.Grants. If the addresses are too many, as of a client that
// got new ones again and again, the earlier ones become former ones, which fences
// cover as well.
func (l *Ledger) Learn(ctx context.Context, node string, addrs []netip.Addr) error {
	learnt, err := cleanClient(volume.Client{Node: node, Addrs: addrs})
	if err != nil {
		return err
	}
	return l.store.Update(ctx, func(tx *store.Tx) error {
		k, _, err := clients().Get(tx, node)
		if err != nil {
			return err
		}
		c := learnt
		c.Addrs = slices.Concat(k.Client.Addrs, learnt.Addrs)
		slices.SortFunc(c.Addrs, netip.Addr.Compare)
		switch c.Addrs = slices.Compact(c.Addrs); {
		case len(c.Addrs) == len(k.Client.Addrs):
			return nil
		case len(c.Addrs) > maxLearnt:
			c.Addrs = learnt.Addrs
		}
		return record(tx, c, k)
	})
}

// see records a client if check admits it. It writes only changes, which are
// rare.
func (l *Ledger) see(ctx context.Context, c volume.Client, check func(tx *store.Tx, k known) error) error {
	var news bool
	look := func(tx *store.Tx) (k known, err error) {
		if k, _, err = clients().Get(tx, c.Node); err == nil {
			err = check(tx, k)
		}
		return k, err
	}
	err := l.store.View(ctx, func(tx *store.Tx) error {
		k, err := look(tx)
		_, news = k.seen(c, time.Now())
		return err
	})
	if err != nil || !news {
		return err
	}
	return l.store.Update(ctx, func(tx *store.Tx) error {
		k, err := look(tx)
		if err != nil {
			return err
		}
		return record(tx, c, k)
	})
}

// Client returns the record of a node as last seen.
func (l *Ledger) Client(ctx context.Context, node string) (c volume.Client, ok bool, err error) {
	if node == "" {
		return volume.Client{}, false, nil
	}
	err = l.store.View(ctx, func(tx *store.Tx) error {
		k, found, err := clients().Get(tx, node)
		c, ok = k.Client, found
		return err
	})
	return c, ok, err
}

// Clients returns all clients as last seen, sorted by node.
func (l *Ledger) Clients(ctx context.Context) ([]volume.Client, error) {
	return l.clientsWhere(ctx, func(known) bool { return true })
}

// ClientsIn returns the clients with an address, also a former one, in the
// blocks, sorted by node, with their last addresses.
func (l *Ledger) ClientsIn(ctx context.Context, blocks []netip.Prefix) ([]volume.Client, error) {
	set, err := cidr.Set(blocks)
	if err != nil {
		return nil, err
	}
	return l.clientsWhere(ctx, func(k known) bool { return k.isIn(set) })
}

func (k known) isIn(set *netipx.IPSet) bool {
	return slices.ContainsFunc(k.Client.Addrs, set.Contains) ||
		slices.ContainsFunc(k.Former, func(f former) bool { return set.Contains(f.Addr) })
}

func (l *Ledger) clientsWhere(ctx context.Context, fits func(known) bool) (all []volume.Client, err error) {
	err = l.store.View(ctx, func(tx *store.Tx) error {
		for e, err := range clients().Range(tx, "") {
			if err != nil {
				return err
			}
			if fits(e.Value) {
				all = append(all, e.Value.Client)
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return all, nil
}

func record(tx *store.Tx, c volume.Client, k known) error {
	next, news := k.seen(c, time.Now())
	if !news {
		return nil
	}
	var err error
	next.Former, err = keepFormer(tx, next.Former, func(i int, _ former) bool { return i < maxFormer })
	if err != nil {
		return err
	}
	if err := clients().Put(tx, c.Node, next); err != nil {
		return err
	}
	gained := slices.DeleteFunc(slices.Clone(next.Client.Addrs), func(a netip.Addr) bool { return slices.Contains(k.Client.Addrs, a) })
	return takeOver(tx, c.Node, gained)
}

// seen returns the new record, and whether it changed.
func (k known) seen(c volume.Client, at time.Time) (next known, news bool) {
	if len(c.Addrs) == 0 {
		c.Addrs = k.Client.Addrs
	}
	if c.HostNQN == "" {
		c.HostNQN = k.Client.HostNQN
	}
	if c.Node == k.Client.Node && c.HostNQN == k.Client.HostNQN && slices.Equal(c.Addrs, k.Client.Addrs) {
		return k, false
	}
	next.Client = c
	for _, a := range k.Client.Addrs {
		if !slices.Contains(c.Addrs, a) {
			next.Former = append(next.Former, former{Addr: a, Until: at})
		}
	}
	for _, f := range k.Former {
		if !slices.Contains(c.Addrs, f.Addr) {
			next.Former = append(next.Former, f)
		}
	}
	return next, true
}

// takeOver removes this node's addresses from the former addresses of other
// nodes: later fences of them apply to this node. Addresses covered by a fence
// are kept, since it can apply to the other nodes.
func takeOver(tx *store.Tx, node string, addrs []netip.Addr) error {
	if len(addrs) == 0 {
		return nil
	}
	for e, err := range clients().Range(tx, "") {
		if err != nil {
			return err
		}
		if e.Key == node {
			continue
		}
		left, err := keepFormer(tx, e.Value.Former, func(_ int, f former) bool { return !slices.Contains(addrs, f.Addr) })
		if err != nil {
			return err
		}
		if len(left) == len(e.Value.Former) {
			continue
		}
		e.Value.Former = left
		if err := clients().Put(tx, e.Key, e.Value); err != nil {
			return err
		}
	}
	return nil
}

// keepFormer keeps entries, newest first, that fit or that a fence covers.
func keepFormer(tx *store.Tx, list []former, fits func(i int, f former) bool) (kept []former, err error) {
	for i, f := range list {
		if fits(i, f) {
			kept = append(kept, f)
			continue
		}
		over, err := fencesOver(tx, f.Addr)
		if err != nil {
			return nil, err
		}
		if len(over) > 0 {
			kept = append(kept, f)
		}
	}
	return kept, nil
}

// cleanClient normalizes a client.
func cleanClient(c volume.Client) (volume.Client, error) {
	if isBadName(c.Node) {
		return c, errs.Errorf(errs.Invalid, "the client's node %q is empty or contains control characters", c.Node)
	}
	var err error
	c.Addrs, err = cleanAddrs(c.Addrs)
	return c, err
}

// cleanAddrs sorts, and removes duplicates, zones and IPv4-mapped form.
func cleanAddrs(addrs []netip.Addr) ([]netip.Addr, error) {
	if len(addrs) == 0 {
		return nil, nil
	}
	clean := make([]netip.Addr, 0, len(addrs))
	for _, a := range addrs {
		if !a.IsValid() || a.IsUnspecified() {
			return nil, errs.Errorf(errs.Invalid, "%q is not the address of a client", a.String())
		}
		clean = append(clean, a.WithZone("").Unmap())
	}
	slices.SortFunc(clean, netip.Addr.Compare)
	if clean = slices.Compact(clean); len(clean) > MaxAddrs {
		return nil, errs.Errorf(errs.Invalid, "the client has %d addresses, the maximum is %d", len(clean), MaxAddrs)
	}
	return clean, nil
}

// isBadName: the name would be ambiguous in a key.
func isBadName(name string) bool {
	return name == "" || strings.ContainsFunc(name, func(r rune) bool { return r < ' ' })
}
