package spdk

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/cleatproject/cleat/errs"
	rpc "github.com/cleatproject/cleat/spdk"
	"github.com/cleatproject/cleat/volume"
)

// errLost is in the chain of errors about an object that has a record, and whose
// lvol is not in its store.
var errLost = errors.New("if it is gone for good, add its UUID to forget of the target, and delete it")

func lostError(t *target, what, id, uuid, storeName string) error {
	return errs.Errorf(errs.Precondition, "%s %s is lost: lvol store %s of target %s is loaded without lvol %s; look for it in the log of SPDK, and restore it; %w",
		what, id, storeName, t.Name, uuid, errLost)
}

// shown returns an lvol that a record has. NotFound: the store is there, and all
// its lvols are loaded, without this one. Unavailable: this is not known yet.
//
// A target that has restarted answers before it has its stores, and shows a store
// before the lvols. Neither a socket nor a proxy shows whether the process is
// still the same between two answers, so the order decides: the store is there,
// examination has ended, the lvol is not there, and the same again. A restart
// between two of these steps shows in the second round.
func (e *Engine) shown(ctx context.Context, t *target, store, storeName, name string) (rpc.Bdev, error) {
	return t.loaded(ctx, name, func() error { return t.hasStore(ctx, store, storeName) })
}

// loaded returns the bdev of a name. NotFound: it is missing although hasStores
// returns nil, and examination has ended.
func (t *target) loaded(ctx context.Context, name string, hasStores func() error) (rpc.Bdev, error) {
	bdev, err := t.Client.Bdev(ctx, name)
	for range 2 {
		if !errors.Is(err, rpc.NotFound) {
			return bdev, err
		}
		if missing := hasStores(); missing != nil {
			return rpc.Bdev{}, missing
		}
		bdev, err = t.Client.LoadedBdev(ctx, name)
	}
	return bdev, err
}

// hasStore returns Unavailable if a store is missing, as when the target has
// restarted without the bdev of the store.
func (t *target) hasStore(ctx context.Context, store, storeName string) error {
	_, err := t.Client.LvolStore(ctx, store)
	if errors.Is(err, rpc.NotFound) {
		return errs.Errorf(errs.Unavailable, "target %s does not have lvol store %s (%s) now; check that its configuration has the bdev of the store: %v", t.Name, storeName, store, err)
	}
	return err
}

// missing explains NotFound of a call that needs the lvol of a volume. Unavailable:
// the target is loading it, or has it now. It has errLost if the lvol is lost.
func (e *Engine) missing(ctx context.Context, t *target, r record, err error) error {
	if !errors.Is(err, rpc.NotFound) {
		return err
	}
	switch _, now := e.shown(ctx, t, r.Store, r.StoreName, r.UUID); {
	case errors.Is(now, rpc.NotFound):
		if _, err := e.find(ctx, r.id()); err != nil { // another controller deletes it
			return err
		}
		return lostError(t, "volume", string(r.id()), r.UUID, r.StoreName)
	case now != nil:
		return now
	}
	return errs.Errorf(errs.Unavailable, "target %s was loading its lvols, repeat the call: %v", t.Name, err)
}

func (t *target) isForgotten(uuid string) bool { return slices.Contains(t.Forget, uuid) }

// incomplete returns Unavailable if a target has not answered, or if its answer
// lacks a store that was there before: one with recorded objects, or one of the
// configuration. Another question would not do: the target can have loaded the
// store since.
func (e *Engine) incomplete(ctx context.Context, answers []storesOf, s settings) error {
	volumes, err := e.records(ctx)
	if err != nil {
		return err
	}
	snaps, err := e.snapshotRecords(ctx, snapshots())
	if err != nil {
		return err
	}
	var missing []string
	var unreachable error
	for _, a := range answers {
		if unreachable = errors.Join(unreachable, a.err); a.err != nil {
			continue
		}
		has := func(uuid, name string) bool {
			return slices.ContainsFunc(a.stores, func(x rpc.LvolStore) bool { return x.UUID == uuid || uuid == "" && x.Name == name })
		}
		note := func(uuid, name string) {
			if text := (place{a.target, rpc.LvolStore{Name: name}}).String(); !has(uuid, name) && (s.store == "" || s.store == name) && !slices.Contains(missing, text) {
				missing = append(missing, text)
			}
		}
		for _, name := range a.target.Stores {
			note("", name)
		}
		for _, r := range volumes {
			if r.Target == a.target.Name {
				note(r.Store, r.StoreName)
			}
		}
		for _, r := range snaps {
			if r.Target == a.target.Name {
				note(r.Store, r.StoreName)
			}
		}
	}
	switch {
	case unreachable != nil:
		return errs.Errorf(errs.Unavailable, "not all targets have answered: %w", unreachable)
	case len(missing) == 0:
		return nil
	}
	return errs.Errorf(errs.Unavailable, "lvol store %s is missing now; do not create it again, but check that the configuration of the target has its bdev", strings.Join(missing, ", "))
}

// object is what a record says about an lvol.
type object struct {
	kind, id, uuid, store, storeName string
}

func (o object) String() string { return o.kind + " " + o.id }

func (t *target) hasLost(o object) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Contains(t.lost, o.String())
}

func (r record) object() object {
	return object{"volume", string(r.id()), r.UUID, r.Store, r.StoreName}
}

func (r snapRecord) object() object {
	return object{"snapshot", formatID(r.Target, r.UUID), r.UUID, r.Store, r.StoreName}
}

// objects returns the complete volumes and snapshots of a target, by UUID.
func (e *Engine) objects(ctx context.Context, t *target) (map[string]object, error) {
	volumes, err := e.records(ctx)
	if err != nil {
		return nil, err
	}
	snaps, err := e.snapshotRecords(ctx, snapshots())
	if err != nil {
		return nil, err
	}
	all := map[string]object{}
	for _, r := range volumes {
		if r.Target == t.Name && r.isVolume() {
			all[r.UUID] = r.object()
		}
	}
	for _, r := range snaps {
		if r.Target == t.Name && r.UUID != "" && !r.Removing {
			all[r.UUID] = r.object()
		}
	}
	return all, nil
}

// noteLost notes the objects whose lvols are lost: those recorded before and after
// the lvols were listed, which the list does not have.
func (e *Engine) noteLost(ctx context.Context, t *target, before map[string]object, listed map[string]bool) error {
	after, err := e.objects(ctx, t)
	if err != nil {
		return err
	}
	var lost []string
	for uuid, o := range before {
		if after[uuid] != o || listed[uuid] {
			continue
		}
		_, err := e.shown(ctx, t, o.store, o.storeName, uuid)
		if errors.Is(err, rpc.NotFound) {
			lost = append(lost, o.String())
		} else if err != nil {
			return err
		}
	}
	slices.Sort(lost)
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(lost) > 0 && !slices.Equal(lost, t.lost) {
		e.config.Logger.Error("lvols of a target are lost", "target", t.Name, "objects", lost)
	}
	t.lost = lost
	return nil
}

func lostCondition(t *target, lost []string) string {
	return fmt.Sprintf("%s has lost the lvols of %d objects, such as %s", t.Name, len(lost), lost[0])
}

func volumeLost(message string) []volume.Condition {
	return []volume.Condition{volume.NewCondition(volume.Inaccessible, volume.ReasonLvolLost, message)}
}
