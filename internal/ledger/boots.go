package ledger

import (
	"context"
	"time"

	"github.com/cleatproject/cleat/internal/store"
	"github.com/cleatproject/cleat/volume"
)

// FencedBoot is the boot that a node had reported when a fence was in force.
type FencedBoot struct {
	Fence string      `json:"fence"` // its key
	Since time.Time   `json:"since"` // when it was confirmed
	Boot  volume.Boot `json:"boot"`
}

// IsEndedBy reports whether no instance of the use is left in the kernel, given a
// report of the node from after that in Fenced. All instances are of boots up to
// the one reported under the fence: it lets no new one begin, and every boot is
// reported before it attaches a volume. now is a later boot of the same machine,
// which alone has reported for the node since before the use. A late report is no
// proof: what was attached before it can be of a boot that was never reported.
func (u Unseen) IsEndedBy(now volume.Boot) bool {
	return u.isAwaited() && now.Machine == u.Machine && now.ID != "" && now.ID != u.Fenced.Boot.ID && !now.Late
}

// isAwaited reports whether a later report of the node can end the use.
func (u Unseen) isAwaited() bool {
	return u.Fenced != nil && u.Machine != "" && u.Fenced.Boot.Machine == u.Machine && u.Fenced.Boot.ID != ""
}

// machines has the machine of each node at the last look or earlier, see
// Boot.Machine.
func machines() store.Bucket[string] { return store.Bucket[string]{Name: "machines"} }

// recordMachines follows the entries that the look adds: those are of before it.
func (o look) recordMachines(tx *store.Tx) error {
	if o.Boots == nil || !o.All {
		return nil
	}
	known := map[string]string{}
	for e, err := range machines().Range(tx, "") {
		if err != nil {
			return err
		}
		known[e.Key] = e.Value
	}
	for node := range known {
		if o.Boots[node].Machine == "" {
			if err := machines().Delete(tx, node); err != nil {
				return err
			}
		}
	}
	for node, b := range o.Boots {
		if b.Machine == "" || b.Machine == known[node] || isBadName(node) {
			continue
		}
		if err := machines().Put(tx, node, b.Machine); err != nil {
			return err
		}
	}
	return nil
}

// AwaitingBoots returns the uses by fenced clients for which no boot is recorded,
// each with its fence. A report that is read afterwards is from a time at which
// the fence was in force.
func (l *Ledger) AwaitingBoots(ctx context.Context) (all []Unseen, err error) {
	err = l.store.View(ctx, func(tx *store.Tx) error {
		all = nil
		for e, err := range unseen().Range(tx, "") {
			if err != nil {
				return err
			}
			u := e.Value
			if u.Machine == "" {
				continue
			}
			if u, err = withFence(tx, u); err != nil {
				return err
			}
			if u.Fenced != nil && u.Fenced.Boot.ID == "" {
				all = append(all, u)
			}
		}
		return nil
	})
	return all, err
}

// withFence returns a use without the boot of a fence that has ended. Fenced then
// has a fence of the node that is in force, if any, without a boot.
func withFence(tx *store.Tx, u Unseen) (Unseen, error) {
	if u.Fenced != nil {
		f, found, err := fences().Get(tx, u.Fenced.Fence)
		if err != nil {
			return u, err
		}
		if found && f.Phase == volume.Fenced && f.Since.Equal(u.Fenced.Since) {
			return u, nil
		}
		u.Fenced = nil
	}
	k, _, err := clients().Get(tx, u.Node)
	if err != nil {
		return u, err
	}
	for _, a := range addresses(k.Client, k) {
		over, err := fencesOver(tx, a.Addr)
		if err != nil {
			return u, err
		}
		for _, f := range over {
			if f.Phase == volume.Fenced {
				u.Fenced = &FencedBoot{Fence: fenceKey(f), Since: f.Since}
				return u, nil
			}
		}
	}
	return u, nil
}

// RecordBoots records the reports of the nodes of AwaitingBoots that were read
// after it.
func (l *Ledger) RecordBoots(ctx context.Context, awaiting []Unseen, boots map[string]volume.Boot) error {
	return l.changeUnseen(ctx, awaiting, func(tx *store.Tx, u Unseen) error {
		under := *u.Fenced
		under.Boot = boots[u.Node]
		if u.Fenced = &under; !u.isAwaited() {
			return nil
		}
		return unseen().Put(tx, u.key(), u)
	})
}

// ForgetRestarted removes uses, as returned by Unseen, that reports of the nodes
// from after that end.
func (l *Ledger) ForgetRestarted(ctx context.Context, uses []Unseen, boots map[string]volume.Boot) error {
	return l.changeUnseen(ctx, uses, func(tx *store.Tx, u Unseen) error {
		if !u.IsEndedBy(boots[u.Node]) {
			return nil
		}
		return unseen().Delete(tx, u.key())
	})
}

// changeUnseen calls change for the uses that were not changed since they were
// read, and whose fence is still in force.
func (l *Ledger) changeUnseen(ctx context.Context, uses []Unseen, change func(*store.Tx, Unseen) error) error {
	return l.store.Update(ctx, func(tx *store.Tx) error {
		for _, u := range uses {
			now, found, err := unseen().Get(tx, u.key())
			if err == nil && found {
				now, err = withFence(tx, now)
			}
			if err != nil {
				return err
			}
			if !found || u.Fenced == nil || now.Fenced == nil || !now.Since.Equal(u.Since) || now.Machine != u.Machine ||
				now.Fenced.Fence != u.Fenced.Fence || !now.Fenced.Since.Equal(u.Fenced.Since) || now.Fenced.Boot != u.Fenced.Boot {
				continue
			}
			if err := change(tx, now); err != nil {
				return err
			}
		}
		return nil
	})
}
