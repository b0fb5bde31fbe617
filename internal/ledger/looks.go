package ledger

import (
	"context"
	"net/netip"
	"strings"
	"time"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/cidr"
	"github.com/cleatproject/cleat/internal/store"
	"github.com/cleatproject/cleat/volume"
)

// Unseen is a use of a volume by a node of which some client instance was
// possibly not recorded: no look has listed the instances since, or the next one
// was too late. An instance that is not recorded is not fenced by its nonce.
type Unseen struct {
	Volume volume.ID `json:"volume"`
	Node   string    `json:"node"`
	Since  time.Time `json:"since"` // the last look, or the grant if that is later
	// Released is when the grant was revoked, perhaps while the volume was in use.
	Released time.Time `json:"released,omitzero"`
	// Machine is the one that had reported for the node at Since, see Boot; empty:
	// none. Fenced is the boot under a fence; nil: not recorded.
	Machine string      `json:"machine,omitempty"`
	Fenced  *FencedBoot `json:"fenced,omitempty"`
}

// unseen is keyed by node and volume.
func unseen() store.Bucket[Unseen] { return store.Bucket[Unseen]{Name: "unseen"} }

func (u Unseen) key() string { return u.Node + separator + string(u.Volume) }

// looks has the time of the last look at all volumes that are granted, except
// for those that are unseen since an earlier one. A ledger of storage without
// client instances has none.
func looks() store.Bucket[time.Time] { return store.Bucket[time.Time]{Name: "looks"} }

const lastLook = "last"

type look struct{ volume.Look }

// Watched implements volume.Instances.
func (l *Ledger) Watched(ctx context.Context, nodes ...string) (map[volume.ID]bool, error) {
	ids := map[volume.ID]bool{}
	prefixes := []string{""}
	if len(nodes) > 0 {
		prefixes = nil
		for _, n := range nodes {
			prefixes = append(prefixes, n+separator)
		}
	}
	err := l.store.View(ctx, func(tx *store.Tx) error {
		for _, p := range prefixes {
			for e, err := range byNode().Prefix(tx, p) {
				if err != nil {
					return err
				}
				_, id, _ := strings.Cut(e.Key, separator)
				ids[volume.ID(id)] = true
			}
			for e, err := range unseen().Prefix(tx, p) {
				if err != nil {
					return err
				}
				ids[e.Value.Volume] = true
			}
		}
		return nil
	})
	return ids, err
}

// RecordLook implements volume.Instances.
func (l *Ledger) RecordLook(ctx context.Context, o volume.Look) (missed []volume.MissedUse, err error) {
	err = l.store.Update(ctx, func(tx *store.Tx) error {
		missed, err = look{o}.record(tx, time.Now().UTC())
		return err
	})
	return missed, err
}

func (o look) record(tx *store.Tx, now time.Time) (missed []volume.MissedUse, err error) {
	last, tracked, err := looks().Get(tx, lastLook)
	if err != nil {
		return nil, err
	}
	granted, err := store.Values(grants().Range(tx, ""))
	if err != nil {
		return nil, err
	}
	held := map[string]bool{}
	for _, g := range granted {
		u := Unseen{Volume: g.Volume, Node: g.Client.Node, Since: later(last, g.Granted)}
		held[u.key()] = true
		listed, covered := o.Volumes[g.Volume]
		late := o.isLate(u.Since, now)
		if !covered || listed && !late {
			continue
		}
		_, known, err := unseen().Get(tx, u.key())
		if err != nil {
			return nil, err
		}
		if blocked, err := o.isBlocked(tx, u.Node); known || blocked || err != nil {
			if err != nil {
				return nil, err
			}
			continue
		}
		if late {
			missed = append(missed, volume.MissedUse{Volume: u.Volume, Node: u.Node, Since: u.Since})
		}
		if u.Machine, _, err = machines().Get(tx, u.Node); err != nil {
			return nil, err
		}
		if err := unseen().Put(tx, u.key(), u); err != nil {
			return nil, err
		}
	}
	if err := o.recordMachines(tx); err != nil {
		return nil, err
	}
	left, err := o.settle(tx, held, now)
	if err != nil {
		return nil, err
	}
	// Without a use of a volume nothing is written.
	if o.All && (left || len(granted) > 0) || !tracked {
		err = looks().Put(tx, lastLook, o.Begun.UTC())
	}
	return missed, err
}

// settle removes entries whose instances this look has listed in time, and those
// of grants that ended long ago. It reports whether others are left.
func (o look) settle(tx *store.Tx, held map[string]bool, now time.Time) (left bool, err error) {
	all, err := store.Values(unseen().Range(tx, ""))
	if err != nil {
		return false, err
	}
	for _, u := range all {
		if !held[u.key()] && u.Released.IsZero() { // revoked by an earlier build
			u.Released = now
			if err := unseen().Put(tx, u.key(), u); err != nil {
				return false, err
			}
		}
		blocked, err := o.isBlocked(tx, u.Node)
		if err != nil {
			return false, err
		}
		// An instance of before the revocation could be later than the list.
		seen := o.Volumes[u.Volume] && !blocked && !o.isLate(u.Since, now) && u.Released.Before(o.Begun)
		old := !held[u.key()] && now.Sub(u.Released) >= keepInstance
		if old {
			k, _, err := clients().Get(tx, u.Node)
			if err != nil {
				return false, err
			}
			d, err := denialOf(tx, volume.Client{Node: u.Node}, k)
			if err != nil {
				return false, err
			}
			old = d == nil
		}
		if !seen && !old {
			left = true
			continue
		}
		if err := unseen().Delete(tx, u.key()); err != nil {
			return false, err
		}
	}
	return left, nil
}

// isLate reports whether an instance that came after a look can have gone from
// the cluster's list before now. A clock that was set back hides no time.
func (o look) isLate(since, now time.Time) bool { return now.Sub(since).Abs() > o.Expiry }

func (o look) isBlocked(tx *store.Tx, node string) (bool, error) {
	k, _, err := clients().Get(tx, node)
	return err == nil && o.Blocked != nil && o.Blocked(k.Client), err
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// noteRevoked keeps a use in view until the next look, unless a fence of the node
// is complete: nothing new can have come since.
func noteRevoked(tx *store.Tx, g volume.Grant) error {
	last, tracked, err := looks().Get(tx, lastLook)
	if err != nil || !tracked {
		return err
	}
	u := Unseen{Volume: g.Volume, Node: g.Client.Node}
	known, exists, err := unseen().Get(tx, u.key())
	if err != nil {
		return err
	}
	if exists {
		u = known
	} else {
		u.Since = later(last, g.Granted)
		k, _, err := clients().Get(tx, u.Node)
		if err != nil {
			return err
		}
		if d, err := denialOf(tx, g.Client, k); err != nil || d != nil && d.fence.Phase == volume.Fenced {
			return err
		}
		if u.Machine, _, err = machines().Get(tx, u.Node); err != nil {
			return err
		}
	}
	u.Released = time.Now().UTC()
	return unseen().Put(tx, u.key(), u)
}

// Unseen returns the uses of volumes by clients with an address, also a former
// one, in the blocks, of which an instance was possibly not recorded, sorted by
// node.
func (l *Ledger) Unseen(ctx context.Context, blocks []netip.Prefix) (all []Unseen, err error) {
	err = l.store.View(ctx, func(tx *store.Tx) error {
		all, err = unseenIn(tx, blocks)
		return err
	})
	return all, err
}

// ForgetUnseen removes what Unseen returns: the clients were restarted, so none
// of their instances is left.
func (l *Ledger) ForgetUnseen(ctx context.Context, blocks []netip.Prefix) error {
	return l.store.Update(ctx, func(tx *store.Tx) error {
		all, err := unseenIn(tx, blocks)
		if err != nil {
			return err
		}
		for _, u := range all {
			if err := unseen().Delete(tx, u.key()); err != nil {
				return err
			}
		}
		return nil
	})
}

func unseenIn(tx *store.Tx, blocks []netip.Prefix) (all []Unseen, err error) {
	set, err := cidr.Set(blocks)
	if err != nil {
		return nil, err
	}
	for e, err := range unseen().Range(tx, "") {
		if err != nil {
			return nil, err
		}
		k, found, err := clients().Get(tx, e.Value.Node)
		if err != nil {
			return nil, err
		}
		if !found {
			return nil, errs.Errorf(errs.Internal, "the ledger has volume %s of node %s, but no record of the node", e.Value.Volume, e.Value.Node)
		}
		if k.isIn(set) {
			all = append(all, e.Value)
		}
	}
	return all, nil
}
