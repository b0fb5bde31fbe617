package ledger

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/store"
	"github.com/cleatproject/cleat/volume"
)

const (
	// keepInstance is how long an instance stays after its volume's last grant
	// and its own last sighting. A volume that is taken from a node by force is
	// fenced within minutes; after a day its next user would be unprotected
	// anyway.
	keepInstance = 24 * time.Hour
	// seenStep limits the writes for an instance that stays.
	seenStep = time.Hour
)

// instances is keyed by volume, address and nonce.
func instances() store.Bucket[volume.Instance] {
	return store.Bucket[volume.Instance]{Name: "instances"}
}

func instanceKey(i volume.Instance) string {
	return string(i.Volume) + separator + i.Addr.String() + separator + fmt.Sprint(i.Nonce)
}

// RecordInstances implements volume.Instances.
func (l *Ledger) RecordInstances(ctx context.Context, seen []volume.Instance) error {
	seen, err := cleanInstances(seen, time.Now())
	if err != nil {
		return err
	}
	var isChange bool
	err = l.store.View(ctx, func(tx *store.Tx) error {
		put, remove, err := instanceChanges(tx, seen)
		isChange = len(put)+len(remove) > 0
		return err
	})
	if err != nil || !isChange {
		return err
	}
	return l.store.Update(ctx, func(tx *store.Tx) error {
		put, remove, err := instanceChanges(tx, seen)
		if err != nil {
			return err
		}
		for _, key := range remove {
			if err := instances().Delete(tx, key); err != nil {
				return err
			}
		}
		for _, i := range put {
			if err := instances().Put(tx, instanceKey(i), i); err != nil {
				return err
			}
		}
		return nil
	})
}

func cleanInstances(list []volume.Instance, at time.Time) ([]volume.Instance, error) {
	clean := make([]volume.Instance, len(list))
	for n, i := range list {
		addrs, err := cleanAddrs([]netip.Addr{i.Addr})
		if err != nil {
			return nil, err
		}
		if isBadName(string(i.Volume)) {
			return nil, errs.Errorf(errs.Invalid, "the volume id %q of a client instance is empty or contains control characters", i.Volume)
		}
		clean[n] = i
		clean[n].Addr, clean[n].Seen = addrs[0], at
	}
	return clean, nil
}

// instanceChanges returns which of seen to record, and the keys to remove.
func instanceChanges(tx *store.Tx, seen []volume.Instance) (put []volume.Instance, remove []string, err error) {
	isSeen := map[string]bool{}
	for _, i := range seen {
		isSeen[instanceKey(i)] = true
		known, ok, err := instances().Get(tx, instanceKey(i))
		if err != nil {
			return nil, nil, err
		}
		if !ok || i.Seen.Sub(known.Seen) >= seenStep || i.Client != known.Client {
			put = append(put, i)
		}
	}
	for e, err := range instances().Range(tx, "") {
		if err != nil {
			return nil, nil, err
		}
		if isSeen[e.Key] || time.Since(e.Value.Seen) < keepInstance {
			continue
		}
		needed, err := isInstanceNeeded(tx, e.Value)
		if err != nil {
			return nil, nil, err
		}
		if !needed {
			remove = append(remove, e.Key)
		}
	}
	return put, remove, nil
}

// isInstanceNeeded reports whether the instance's volume has a grant, or a fence
// covers its address or a client with that address.
func isInstanceNeeded(tx *store.Tx, i volume.Instance) (bool, error) {
	for _, err := range grants().Prefix(tx, string(i.Volume)+separator) {
		return true, err
	}
	over, err := fencesOver(tx, i.Addr)
	if err != nil || len(over) > 0 {
		return true, err
	}
	for e, err := range clients().Range(tx, "") {
		if err != nil {
			return true, err
		}
		k := e.Value
		if !slices.ContainsFunc(addresses(k.Client, k), func(f former) bool { return f.Addr == i.Addr }) {
			continue
		}
		if d, err := denialOf(tx, k.Client, k); err != nil || d != nil {
			return true, err
		}
	}
	return false, nil
}
