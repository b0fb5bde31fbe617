// Package ledger durably records grants, fences and clients, and alone orders
// grants against fences: a grant is decided and recorded in one transaction.
package ledger

import (
	"context"
	"strings"
	"time"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/store"
	"github.com/cleatproject/cleat/volume"
)

// Ledger is safe for concurrent use.
type Ledger struct {
	store     store.Database
	admission admission
}

// New returns a Ledger. Of a database, only one is used at a time: it tracks
// admitted clients in memory.
func New(db store.Database) *Ledger { return &Ledger{store: db} }

// Recent returns a reader that makes no request to the API server while a watch of the
// records shows that they are those of the last request. It serves to find out that there
// is nothing to do: what decides reads the Ledger itself.
func (l *Ledger) Recent() *Ledger {
	if db, ok := l.store.(*store.Shared); ok {
		return New(recent{db})
	}
	return l
}

type recent struct{ *store.Shared }

// View implements store.Database.
func (r recent) View(ctx context.Context, fn func(tx *store.Tx) error) error {
	_, err := r.Recent(ctx, fn)
	return err
}

// separator of the parts of a key sorts before all characters of an ID, so
// grants are sorted by volume ID.
const separator = "\x00"

// grants is keyed by volume and node, byNode by node and volume.
func grants() store.Bucket[volume.Grant] { return store.Bucket[volume.Grant]{Name: "grants"} }

func byNode() store.Bucket[struct{}] { return store.Bucket[struct{}]{Name: "grants-by-node"} }

// Grant records a grant, before it is enforced, and the client. Without
// addresses those of its record apply. It is idempotent: a repeat returns the
// first grant, regardless of addresses. Exists: the node has the volume with
// other parameters. Precondition: the client is fenced, or another node has the
// volume and they cannot share it; the message names the block or the node.
// Invalid: a name is missing.
func (l *Ledger) Grant(ctx context.Context, g volume.Grant) (recorded volume.Grant, err error) {
	if err := errorIn(g); err != nil {
		return volume.Grant{}, err
	}
	if g.Client.Addrs, err = cleanAddrs(g.Client.Addrs); err != nil {
		return volume.Grant{}, err
	}
	requested := g
	err = l.store.Update(ctx, func(tx *store.Tx) error {
		g := requested
		if err := admitClient(tx, &g.Client); err != nil {
			return err
		}
		held, err := store.Values(grants().Prefix(tx, string(g.Volume)+separator))
		if err != nil {
			return err
		}
		var again bool
		if recorded, again, err = admit(g, held); err != nil || again && recorded.Revoking.IsZero() {
			return err
		}
		recorded = g
		if err := grants().Put(tx, key(g.Volume, g.Client.Node), g); err != nil {
			return err
		}
		return byNode().Put(tx, g.Client.Node+separator+string(g.Volume), struct{}{})
	})
	if err != nil {
		return volume.Grant{}, err
	}
	return recorded, nil
}

// admitClient refuses a fenced client, else records it, and adds recorded
// addresses if it has none.
func admitClient(tx *store.Tx, c *volume.Client) error {
	k, _, err := clients().Get(tx, c.Node)
	if err != nil {
		return err
	}
	if err := refuse(tx, *c, k); err != nil {
		return err
	}
	if len(c.Addrs) == 0 {
		c.Addrs = k.Client.Addrs
	}
	return record(tx, *c, k)
}

// admit decides about g, given the volume's grants. It is pure, and the only
// such decision.
func admit(g volume.Grant, held []volume.Grant) (recorded volume.Grant, again bool, err error) {
	for _, h := range held {
		switch {
		case h.Client.Node != g.Client.Node:
		case !same(h, g):
			return volume.Grant{}, false, errs.Errorf(errs.Exists, "volume %s is already granted to node %s with %s; the request has %s",
				g.Volume, h.Client.Node, describe(h), describe(g))
		default:
			return h, true, nil
		}
	}
	for _, h := range held {
		if h.Mode != g.Mode || !IsShared(g.Mode) {
			return volume.Grant{}, false, errs.Errorf(errs.Precondition, "volume %s is granted to node %s since %s with mode %s, the request has mode %s; unpublish it there first, several nodes need the same MULTI_NODE mode",
				g.Volume, h.Client.Node, h.Granted.UTC().Format(time.RFC3339), h.Mode, g.Mode)
		}
	}
	return volume.Grant{}, false, nil
}

// IsShared reports whether several nodes can have a volume with this mode. Each
// of them can be read-only: that limits the node, not the mode.
func IsShared(mode string) bool {
	return strings.HasPrefix(mode, "MULTI_NODE_")
}

func same(a, b volume.Grant) bool {
	return a.ReadOnly == b.ReadOnly && a.Mode == b.Mode && a.Client.HostNQN == b.Client.HostNQN
}

func describe(g volume.Grant) string {
	words := "mode " + g.Mode + ", writable"
	if g.ReadOnly {
		words = "mode " + g.Mode + ", read-only"
	}
	if g.Client.HostNQN != "" {
		words += ", host " + g.Client.HostNQN
	}
	return words
}

// Revoke removes the grant of a volume to a node, or to all nodes if node is
// empty. It is idempotent. If enforce is not nil, the grant is recorded as being
// revoked, enforce makes the storage shut the client out, and only then is the
// grant removed: until then no other node gets the volume, and a fence looks for
// sessions of the client. Otherwise nothing but the record admits the client, or
// the caller has shut it out before.
func (l *Ledger) Revoke(ctx context.Context, id volume.ID, node string, enforce func(context.Context) error) error {
	if enforce == nil {
		return l.changeGrants(ctx, id, node, removeGrant)
	}
	begun := map[string]time.Time{} // by node; a repeat shares it, a new grant clears it
	err := l.changeGrants(ctx, id, node, func(tx *store.Tx, g volume.Grant) error {
		if g.Revoking.IsZero() {
			g.Revoking = time.Now().UTC()
		}
		begun[g.Client.Node] = g.Revoking
		return grants().Put(tx, key(id, g.Client.Node), g)
	})
	if err != nil {
		return err
	}
	if err := enforce(ctx); err != nil {
		return err
	}
	return l.changeGrants(ctx, id, node, func(tx *store.Tx, g volume.Grant) error {
		if g.Revoking.IsZero() || !g.Revoking.Equal(begun[g.Client.Node]) { // granted again meanwhile
			return nil
		}
		return removeGrant(tx, g)
	})
}

func removeGrant(tx *store.Tx, g volume.Grant) error {
	if err := noteRevoked(tx, g); err != nil {
		return err
	}
	if err := grants().Delete(tx, key(g.Volume, g.Client.Node)); err != nil {
		return err
	}
	return byNode().Delete(tx, g.Client.Node+separator+string(g.Volume))
}

// changeGrants calls change for the grants of a volume to a node, or to all.
func (l *Ledger) changeGrants(ctx context.Context, id volume.ID, node string, change func(*store.Tx, volume.Grant) error) error {
	return l.store.Update(ctx, func(tx *store.Tx) error {
		held, err := store.Values(grants().Prefix(tx, string(id)+separator))
		if err != nil {
			return err
		}
		for _, h := range held {
			if node != "" && h.Client.Node != node {
				continue
			}
			if err := change(tx, h); err != nil {
				return err
			}
		}
		return nil
	})
}

// Of returns a volume's grants, sorted by node.
func (l *Ledger) Of(ctx context.Context, id volume.ID) (held []volume.Grant, err error) {
	err = l.store.View(ctx, func(tx *store.Tx) error {
		held, err = store.Values(grants().Prefix(tx, string(id)+separator))
		return err
	})
	return held, err
}

// ByNode returns a node's grants, sorted by volume.
func (l *Ledger) ByNode(ctx context.Context, node string) (held []volume.Grant, err error) {
	err = l.store.View(ctx, func(tx *store.Tx) error {
		for e, err := range byNode().Prefix(tx, node+separator) {
			if err != nil {
				return err
			}
			id := volume.ID(strings.TrimPrefix(e.Key, node+separator))
			g, ok, err := grants().Get(tx, key(id, node))
			if err != nil {
				return err
			}
			if !ok {
				return errs.Errorf(errs.Internal, "the ledger lists volume %s for node %s but has no grant of it", id, node)
			}
			held = append(held, g)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return held, nil
}

// All returns grants sorted by volume and node, of volume IDs greater than
// after. A page ends after limit grants (0: no limit), but never within a
// volume: its last volume is the next after.
func (l *Ledger) All(ctx context.Context, after volume.ID, limit int) (page []volume.Grant, err error) {
	from := ""
	if after != "" {
		from = string(after) + "\x01" // after every node of that volume
	}
	err = l.store.View(ctx, func(tx *store.Tx) error {
		for e, err := range grants().Range(tx, from) {
			if err != nil {
				return err
			}
			if limit > 0 && len(page) >= limit && page[len(page)-1].Volume != e.Value.Volume {
				return nil
			}
			page = append(page, e.Value)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return page, nil
}

func key(id volume.ID, node string) string { return string(id) + separator + node }

// errorIn refuses names that are ambiguous in a key.
func errorIn(g volume.Grant) error {
	for what, name := range map[string]string{"volume id": string(g.Volume), "node": g.Client.Node} {
		if isBadName(name) {
			return errs.Errorf(errs.Invalid, "the %s %q of a grant is empty or contains control characters", what, name)
		}
	}
	return nil
}
