package spdk

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/crashpoint"
	"github.com/cleatproject/cleat/internal/store"
	rpc "github.com/cleatproject/cleat/spdk"
	"github.com/cleatproject/cleat/volume"
)

// Delete implements volume.Engine. Snapshots are lvols of their own, and stay.
func (e *Engine) Delete(ctx context.Context, id volume.ID) error {
	err := e.locked(ctx, id, func(r record) error {
		var present *rpc.Bdev
		var lost error
		var reads sync.WaitGroup
		reads.Go(func() { present, lost = e.present(ctx, r) })
		used := e.unused(ctx, r)
		if reads.Wait(); used != nil || lost != nil {
			return cmp.Or(used, lost)
		}
		marked := r
		marked.Deleting = true
		if err := e.put(ctx, &r, marked); err != nil {
			return err
		}
		crashpoint.Hit("delete.recorded")
		return e.finishDelete(ctx, marked, present)
	})
	if errs.KindOf(err) == errs.NotFound {
		return e.continueDelete(ctx, id)
	}
	return err
}

// continueDelete continues an interrupted deletion.
func (e *Engine) continueDelete(ctx context.Context, id volume.ID) error {
	all, err := e.records(ctx)
	if err != nil {
		return err
	}
	for _, r := range all {
		if r.Deleting && r.id() == id {
			unlock, err := e.lock(ctx, volumeKey(r.Name))
			if err != nil {
				return err
			}
			defer unlock()
			return e.finishDelete(ctx, r, nil)
		}
	}
	return nil
}

// present returns the lvol of a volume: none if it is lost, and the configuration
// forgets it. Otherwise the error has errLost.
func (e *Engine) present(ctx context.Context, r record) (*rpc.Bdev, error) {
	if e.isRetired(r.Target) {
		return nil, nil
	}
	t, err := e.target(r.Target)
	if err != nil {
		return nil, err
	}
	bdev, err := e.shown(ctx, t, r.Store, r.StoreName, r.UUID)
	if errors.Is(err, rpc.NotFound) && t.isForgotten(r.UUID) {
		t.unswept.Store(true) // the condition ends
		return nil, nil
	}
	return &bdev, t.explain(e.missing(ctx, t, r, err), "delete volume %s", r.id())
}

// unused returns Precondition for a volume that a client is connected to, and
// Unavailable if a host admitted before the adoption can still come back.
func (e *Engine) unused(ctx context.Context, r record) error {
	if e.isRetired(r.Target) {
		return nil
	}
	t, err := e.target(r.Target)
	if err != nil {
		return err
	}
	sessions, err := t.sessions(ctx, r.nqn())
	if err != nil {
		return t.explain(err, "list the clients of volume %s", r.id())
	}
	var hosts []string
	for _, c := range sessions {
		hosts = append(hosts, c.HostNQN)
	}
	if slices.Sort(hosts); len(hosts) > 0 {
		return errs.Errorf(errs.Precondition, "volume %s is in use: connected is %s; detach it there first", r.id(), strings.Join(slices.Compact(hosts), ", "))
	}
	gone := t.gone(e.returnTime)
	for _, host := range slices.Sorted(maps.Keys(r.Hosts)) {
		if !gone[hostAt{r.nqn(), host}] {
			return errs.Errorf(errs.Unavailable, "whether host %s still uses volume %s is not known yet: it was admitted before the adoption, and can come back, as after a restart of target %s; repeat the call until it was not connected for %s",
				host, r.id(), t.Name, e.returnTime)
		}
	}
	return nil
}

// finishDelete deletes a volume, or what an interrupted creation left, whose
// record says so. present is its lvol, if the caller has read it.
func (e *Engine) finishDelete(ctx context.Context, r record, present *rpc.Bdev) error {
	if e.isRetired(r.Target) {
		return e.drop(ctx, r)
	}
	t, err := e.target(r.Target)
	if err != nil {
		return err
	}
	if r.UUID == "" {
		if err := e.endZeros(ctx, t, r); err != nil {
			return t.explain(err, "remove an interrupted creation of volume %s", errs.Quote(r.Name))
		}
		if err := e.deleteLvol(ctx, t, r.Store, r.StoreName, alias(r.StoreName, lvolName(r.Name)), nil); err != nil {
			return t.explain(err, "remove the lvol of an interrupted creation of volume %s", errs.Quote(r.Name))
		}
		return e.dropDeleted(ctx, t, r)
	}
	if err := t.Client.DeleteSubsystem(ctx, r.nqn()); err != nil && !errors.Is(err, rpc.NotFound) {
		if _, there := t.Client.Subsystem(ctx, r.nqn()); !errors.Is(there, rpc.NotFound) {
			return t.explain(err, "delete the export of volume %s", r.id())
		}
	}
	crashpoint.Hit("delete.unexported")
	if err := e.deleteLvol(ctx, t, r.Store, r.StoreName, r.UUID, present); err != nil {
		return t.explain(err, "delete volume %s", r.id())
	}
	crashpoint.Hit("delete.deleted")
	return e.dropDeleted(ctx, t, r)
}

// dropDeleted removes the record of a volume whose lvol is deleted. The snapshot
// from which the volume was cloned is recorded as deleted if SPDK cannot remove it
// yet: without a record that names it nothing removes it.
func (e *Engine) dropDeleted(ctx context.Context, t *target, r record) error {
	if !r.hasSource() {
		return e.drop(ctx, r)
	}
	name := alias(r.StoreName, r.source())
	e.reap(ctx, t, name)
	bdev, err := e.shown(ctx, t, r.Store, r.StoreName, name)
	if errors.Is(err, rpc.NotFound) {
		return e.drop(ctx, r)
	}
	if err != nil {
		return t.explain(err, "read the snapshot of volume %s", errs.Quote(r.Name))
	}
	left := snapRecord{Name: r.source(), Target: r.Target, Store: r.Store, StoreName: r.StoreName, UUID: bdev.UUID}
	if err := e.putDeleted(ctx, left); err != nil {
		return err
	}
	return e.drop(ctx, r)
}

// putDeleted records that a snapshot is deleted, but still has clones.
func (e *Engine) putDeleted(ctx context.Context, r snapRecord) error {
	return e.config.Database.Update(ctx, func(tx *store.Tx) error { return deleted().Put(tx, formatID(r.Target, r.UUID), r) })
}

// deleteLvol deletes an lvol, and the deleted snapshots that only it needed.
// present is the lvol, if the caller has read it. Unavailable: the whole store is
// missing.
func (e *Engine) deleteLvol(ctx context.Context, t *target, store, storeName, name string, present *rpc.Bdev) error {
	var err error
	if present == nil {
		var bdev rpc.Bdev
		bdev, err = e.shown(ctx, t, store, storeName, name)
		present = &bdev
	}
	if err == nil {
		if d := present.Driver.Lvol; d != nil {
			if _, err := e.unmaps(ctx, t, d.StoreUUID, d.BaseBdev); err != nil {
				return err
			}
		}
		if err = e.alone(ctx, store, func() error { return t.Client.DeleteLvol(ctx, present.UUID) }); err != nil {
			t.unswept.Store(true) // if it is deleted, a repeat does not find its snapshot
		}
		if errors.Is(err, rpc.NotFound) { // deleted meanwhile, or not loaded yet after a restart
			if _, err = e.shown(ctx, t, store, storeName, present.UUID); err == nil {
				return errs.Errorf(errs.Unavailable, "the target was loading lvol %s, repeat the call", present.UUID)
			}
		}
	}
	if errors.Is(err, rpc.Denied) {
		return errs.Errorf(errs.Unavailable, "the target does not delete an lvol that it is loading, or that has several clones; repeat the call: %w", err)
	}
	if errors.Is(err, rpc.NotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	if d := present.Driver.Lvol; d != nil && d.BaseSnapshot != "" {
		e.reap(ctx, t, alias(storeName, d.BaseSnapshot))
	}
	return nil
}

// alone runs a request that changes the snapshots and clones of a store, while no other
// one does. SPDK answers the second of two that concern the same blob as busy; if it
// was to delete an lvol, the lvol is not shown any more, and is back after a restart.
func (e *Engine) alone(ctx context.Context, store string, request func() error) error {
	unlock, err := e.locks.Lock(ctx, "chain:"+store)
	if err != nil {
		return errs.Errorf(errs.Unavailable, "wait for other changes of the lvol store: %w", context.Cause(ctx))
	}
	defer unlock()
	return request()
}

// reap removes a snapshot that belongs to nothing any more, if a record says so
// and SPDK allows, and then those below. After an error Run sweeps the stores
// again.
func (e *Engine) reap(ctx context.Context, t *target, bdevName string) {
	for {
		bdev, err := t.Client.LoadedBdev(ctx, bdevName)
		if err != nil && !errors.Is(err, rpc.NotFound) {
			t.unswept.Store(true)
		}
		if err != nil || bdev.Driver.Lvol == nil || len(bdev.Driver.Lvol.Clones) > 1 || len(bdev.Aliases) == 0 {
			return
		}
		store, name, _ := strings.Cut(bdev.Aliases[0], "/")
		gone, err := e.isDeleted(ctx, t, bdev.UUID)
		if err == nil && !gone {
			var unused bool
			if unused, err = e.isUnusedSource(ctx, t, bdev, name); err == nil && !unused {
				return
			}
		}
		if err == nil {
			_, err = e.unmaps(ctx, t, bdev.Driver.Lvol.StoreUUID, bdev.Driver.Lvol.BaseBdev)
		}
		if err == nil && slices.Contains(bdev.Driver.Lvol.Clones, zerosName) { // the zeros are written
			err = e.releaseZeros(ctx, t, store, name)
		}
		if err == nil {
			err = e.alone(ctx, bdev.Driver.Lvol.StoreUUID, func() error { return t.Client.DeleteLvol(ctx, bdev.UUID) })
		}
		if err == nil && gone {
			err = e.forgetDeleted(ctx, t, bdev.UUID)
		}
		if err != nil {
			t.unswept.Store(true)
			e.config.Logger.Debug("snapshot not removed yet", "target", t.Name, "lvol", bdev.Aliases[0], "err", err)
			return
		}
		if bdev.Driver.Lvol.BaseSnapshot == "" {
			return
		}
		bdevName = alias(store, bdev.Driver.Lvol.BaseSnapshot)
	}
}

// isUnusedSource reports whether a snapshot was taken for a copy, whose record says
// that it is complete, or being deleted.
func (e *Engine) isUnusedSource(ctx context.Context, t *target, bdev rpc.Bdev, name string) (bool, error) {
	if !isSource(name) {
		return false, nil
	}
	all, err := e.records(ctx)
	return slices.ContainsFunc(all, func(r record) bool {
		return r.Target == t.Name && r.Store == bdev.Driver.Lvol.StoreUUID && r.source() == name && (r.UUID != "" || r.Deleting)
	}), err
}

// isDeleted reports whether a deleted snapshot has the lvol.
func (e *Engine) isDeleted(ctx context.Context, t *target, uuid string) (found bool, err error) {
	err = e.config.Database.View(ctx, func(tx *store.Tx) error {
		_, found, err = deleted().Get(tx, formatID(t.Name, uuid))
		return err
	})
	return found, err
}

func (e *Engine) forgetDeleted(ctx context.Context, t *target, uuid string) error {
	return e.config.Database.Update(ctx, func(tx *store.Tx) error { return deleted().Delete(tx, formatID(t.Name, uuid)) })
}

// sweep removes what interrupted calls left in the stores of a target.
func (e *Engine) sweep(ctx context.Context, t *target) error {
	if err := t.Client.WaitForExamine(ctx); err != nil { // an lvol that is not open yet is not listed
		return t.explain(err, "wait for the lvol stores")
	}
	places, answers := e.stores(ctx, settings{target: t.Name})
	if err := e.incomplete(ctx, answers, settings{target: t.Name}); err != nil {
		return err
	}
	before, err := e.objects(ctx, t)
	if err != nil {
		return err
	}
	listed := map[string]bool{}
	gone, err := e.snapshotRecords(ctx, deleted()) // first: the lvol of a later one would not be listed
	if err != nil {
		return err
	}
	for _, p := range places {
		if err := e.noteStore(ctx, p); err != nil {
			return err
		}
		lvols, err := t.Client.Lvols(ctx, p.store.UUID)
		if err != nil {
			return t.explain(err, "list the lvols of store %s", p.store.Name)
		}
		for _, l := range lvols {
			listed[l.UUID] = true
		}
		if err := e.sweepSnapshots(ctx, p, lvols, gone); err != nil {
			return err
		}
		for _, r := range gone {
			if r.Store != p.store.UUID || listed[r.UUID] {
				continue
			}
			// A target that has restarted since lists the lvols that it has opened so far.
			if _, err := e.shown(ctx, t, r.Store, r.StoreName, r.UUID); err == nil {
				return errs.Errorf(errs.Unavailable, "target %s was loading its lvols", t.Name)
			} else if !errors.Is(err, rpc.NotFound) {
				return t.explain(err, "look for the lvol of a deleted snapshot")
			}
			if err := e.forgetDeleted(ctx, t, r.UUID); err != nil {
				return err
			}
		}
	}
	return e.noteLost(ctx, t, before, listed)
}

// sweepSnapshots removes the deleted snapshots of a store, and those taken for
// copies. It reports copies' snapshots that no record names.
func (e *Engine) sweepSnapshots(ctx context.Context, p place, lvols []rpc.Lvol, gone []snapRecord) error {
	all, err := e.records(ctx) // after the lvols: a new creation is recorded before its snapshot
	if err != nil {
		return err
	}
	named := map[string]bool{}
	for _, r := range all {
		if r.hasSource() {
			named[r.source()] = true
		}
	}
	var unknown []string
	for _, l := range lvols {
		isGone := slices.ContainsFunc(gone, func(r snapRecord) bool { return r.Target == p.target.Name && r.UUID == l.UUID })
		switch { // after a restart, SPDK shows a snapshot without clones as none
		case isGone || named[l.Name]:
			e.reap(ctx, p.target, l.UUID)
		case isSource(l.Name):
			unknown = append(unknown, l.Name)
		}
	}
	p.target.mu.Lock()
	defer p.target.mu.Unlock()
	if len(unknown) > 0 && !slices.Equal(unknown, p.target.sources[p.store.UUID]) {
		e.config.Logger.Warn("an lvol store has snapshots of copies that no record has, and they are left alone", "target", p.target.Name, "store", p.store.Name, "lvols", unknown)
	}
	if p.target.sources == nil {
		p.target.sources = map[string][]string{}
	}
	p.target.sources[p.store.UUID] = unknown
	return nil
}
