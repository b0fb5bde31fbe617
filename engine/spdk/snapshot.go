package spdk

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/cleatproject/cleat/engine/newvolume"
	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/crashpoint"
	"github.com/cleatproject/cleat/internal/store"
	rpc "github.com/cleatproject/cleat/spdk"
	"github.com/cleatproject/cleat/volume"
)

// CreateSnapshot implements volume.Snapshots. The steps: record the source,
// take the snapshot, record its UUID.
func (e *Engine) CreateSnapshot(ctx context.Context, req volume.SnapshotRequest) (volume.Snapshot, error) {
	if err := newvolume.CheckName(req.Name); err != nil {
		return volume.Snapshot{}, err
	}
	for _, key := range slices.Sorted(maps.Keys(req.Parameters)) {
		return volume.Snapshot{}, errs.Errorf(errs.Invalid, "parameter %s is not known; snapshots have none", errs.Quote(key))
	}
	unlock, err := e.lock(ctx, snapshotKey(req.Name))
	if err != nil {
		return volume.Snapshot{}, err
	}
	defer unlock()
	r, found, err := e.snapshotNamed(ctx, req.Name)
	switch {
	case err != nil:
		return volume.Snapshot{}, err
	case found && r.UUID != "" && r.Source != req.Source:
		return volume.Snapshot{}, errs.Errorf(errs.Exists, "snapshot %s already has the name %s, of volume %s", r.snapshot().ID, errs.Quote(req.Name), r.Source)
	case found && r.UUID != "":
		return r.snapshot(), nil
	case found && (r.Discarded || r.Source != req.Source):
		// No call has returned the snapshot.
		if err := e.discardSnapshot(ctx, r); err != nil {
			return volume.Snapshot{}, err
		}
		found = false
	}
	v, err := e.find(ctx, req.Source)
	if err != nil {
		if found && errs.KindOf(err) == errs.NotFound { // no repeat can complete it
			err = e.abandonSnapshot(ctx, r, err)
		}
		return volume.Snapshot{}, err
	}
	if !found {
		r = snapRecord{
			Name: req.Name, Source: v.id(), Target: v.Target, Store: v.Store, StoreName: v.StoreName,
			Content: v.Content, FSType: v.FSType, Created: time.Now().UTC().Truncate(time.Millisecond),
		}
		if err := e.spare(ctx); err != nil {
			return volume.Snapshot{}, err
		}
		if err := e.putSnapshot(ctx, nil, r); err != nil {
			return volume.Snapshot{}, err
		}
		crashpoint.Hit("snapshot.recorded")
	}
	return e.takeSnapshot(ctx, r, v, !found)
}

// takeSnapshot continues the creation of a snapshot. A new one has no lvol yet.
func (e *Engine) takeSnapshot(ctx context.Context, r snapRecord, v record, isNew bool) (volume.Snapshot, error) {
	t, err := e.target(r.Target)
	if err != nil {
		return volume.Snapshot{}, err
	}
	name := alias(r.StoreName, r.lvol())
	var bdev rpc.Bdev
	err = rpc.NotFound
	if !isNew {
		bdev, err = t.Client.Bdev(ctx, name)
	}
	if errors.Is(err, rpc.NotFound) {
		err = e.alone(ctx, r.Store, func() error { return second(t.Client.SnapshotLvol(ctx, v.UUID, r.lvol())) })
		if err == nil || errors.Is(err, rpc.Exists) {
			bdev, err = t.appearing(ctx, name, err)
		}
	}
	if err != nil {
		err = t.explain(e.missing(ctx, t, v, err), "snapshot volume %s", r.Source)
		if errors.Is(err, errLost) || errs.KindOf(err) == errs.Exhausted { // no repeat can complete it
			return volume.Snapshot{}, e.abandonSnapshot(ctx, r, err)
		}
		return volume.Snapshot{}, incompleteSnapshot(r, err)
	}
	crashpoint.Hit("snapshot.taken")
	done := r
	done.UUID, done.Size = bdev.UUID, bdev.Size()
	if err := e.putSnapshot(ctx, &r, done); err != nil {
		return volume.Snapshot{}, incompleteSnapshot(r, err)
	}
	return done.snapshot(), nil
}

// abandonSnapshot discards a snapshot that has failed, and returns why it failed.
func (e *Engine) abandonSnapshot(ctx context.Context, r snapRecord, failure error) error {
	if err := e.discardSnapshot(context.WithoutCancel(ctx), r); err != nil {
		return incompleteSnapshot(r, errors.Join(failure, err))
	}
	return failure
}

func incompleteSnapshot(r snapRecord, err error) error {
	return errs.Errorf(errs.Unavailable, "the creation of snapshot %s is not complete, repeat the call: %w", errs.Quote(r.Name), err)
}

// discardSnapshot removes an interrupted snapshot, which no call has returned.
// The record says so first: another controller cannot complete it any more.
func (e *Engine) discardSnapshot(ctx context.Context, r snapRecord) error {
	if e.isRetired(r.Target) {
		return e.dropSnapshot(ctx, r, false)
	}
	t, err := e.target(r.Target)
	if err != nil {
		return err
	}
	marked := r
	marked.Discarded = true
	if err := e.putSnapshot(ctx, &r, marked); err != nil {
		return err
	}
	if err := e.deleteLvol(ctx, t, r.Store, r.StoreName, alias(r.StoreName, r.lvol()), nil); err != nil {
		return t.explain(err, "remove the interrupted snapshot %s", errs.Quote(r.Name))
	}
	return e.dropSnapshot(ctx, marked, false)
}

// DeleteSnapshot implements volume.Snapshots. With several clones the snapshot
// is recorded as deleted, and removed with all but the last of them.
func (e *Engine) DeleteSnapshot(ctx context.Context, id volume.SnapshotID) error {
	r, err := e.findSnapshot(ctx, id)
	if errs.KindOf(err) == errs.NotFound {
		return nil
	}
	if err != nil {
		return err
	}
	unlock, err := e.lock(ctx, snapshotKey(r.Name))
	if err != nil {
		return err
	}
	defer unlock()
	if e.isRetired(r.Target) {
		return e.dropSnapshot(ctx, r, false)
	}
	if r, err = e.findSnapshot(ctx, id); errs.KindOf(err) == errs.NotFound { // deleted meanwhile
		return nil
	}
	if err != nil {
		return err
	}
	t, err := e.target(r.Target)
	if err != nil {
		return err
	}
	var present *rpc.Bdev
	bdev, err := e.shown(ctx, t, r.Store, r.StoreName, r.UUID)
	if err == nil {
		present = &bdev
	}
	if errors.Is(err, rpc.NotFound) && !r.Removing && !t.isForgotten(r.UUID) {
		return lostError(t, "snapshot", string(id), r.UUID, r.StoreName)
	}
	if err != nil && !errors.Is(err, rpc.NotFound) {
		return t.explain(err, "delete snapshot %s", id)
	}
	if present != nil && bdev.Driver.Lvol != nil && len(bdev.Driver.Lvol.Clones) > 1 {
		if err := e.dropSnapshot(ctx, r, true); err != nil {
			return err
		}
		crashpoint.Hit("unsnap.recorded")
		e.reap(ctx, t, r.UUID) // a clone can have been deleted since
	} else if r, err = e.removeSnapshot(ctx, t, r, present); err != nil {
		return t.explain(err, "delete snapshot %s", id)
	}
	crashpoint.Hit("unsnap.deleted")
	return e.dropSnapshot(ctx, r, false)
}

// removeSnapshot deletes the lvol of a snapshot, whose record says so first: that
// a repeat does not find the lvol is no loss. One of spdk-csi has no record.
func (e *Engine) removeSnapshot(ctx context.Context, t *target, r snapRecord, present *rpc.Bdev) (snapRecord, error) {
	if _, recorded, err := e.snapshotNamed(ctx, r.Name); err != nil {
		return r, err
	} else if recorded && !r.Removing {
		marked := r
		marked.Removing = true
		if err := e.putSnapshot(ctx, &r, marked); err != nil {
			return r, err
		}
		r = marked
	}
	crashpoint.Hit("unsnap.marked")
	return r, e.deleteLvol(ctx, t, r.Store, r.StoreName, r.UUID, present)
}

// GetSnapshot implements volume.Snapshots.
func (e *Engine) GetSnapshot(ctx context.Context, id volume.SnapshotID) (volume.Snapshot, error) {
	r, err := e.findSnapshot(ctx, id)
	if err != nil {
		return volume.Snapshot{}, err
	}
	return r.snapshot(), nil
}

// ListSnapshots implements volume.Snapshots.
func (e *Engine) ListSnapshots(ctx context.Context, query volume.SnapshotQuery) (page []volume.Snapshot, err error) {
	records, err := e.snapshotRecords(ctx, snapshots())
	var all []volume.Snapshot
	for _, r := range records {
		if r.UUID != "" && (query.Source == "" || r.Source == query.Source) {
			all = append(all, r.snapshot())
		}
	}
	slices.SortFunc(all, func(a, b volume.Snapshot) int { return cmp.Compare(a.ID, b.ID) })
	for _, s := range all {
		if s.ID > query.After && (query.Limit == 0 || len(page) < query.Limit) {
			page = append(page, s)
		}
	}
	return page, err
}

// snapshotRecords returns all records of snapshots, or of deleted ones.
func (e *Engine) snapshotRecords(ctx context.Context, of store.Bucket[snapRecord]) (all []snapRecord, err error) {
	err = e.config.Database.View(ctx, func(tx *store.Tx) (err error) {
		all, err = store.Values(of.Range(tx, ""))
		return err
	})
	return all, err
}

func (e *Engine) snapshotNamed(ctx context.Context, name string) (r snapRecord, found bool, err error) {
	err = e.config.Database.View(ctx, func(tx *store.Tx) error {
		r, found, err = snapshots().Get(tx, name)
		return err
	})
	return r, found, err
}

// findSnapshot returns the record of a snapshot, or one for a snapshot of
// spdk-csi. NotFound: it does not exist.
func (e *Engine) findSnapshot(ctx context.Context, id volume.SnapshotID) (r snapRecord, err error) {
	var found bool
	err = e.config.Database.View(ctx, func(tx *store.Tx) error {
		var name string
		if name, found, err = names().Get(tx, string(id)); err != nil || !found {
			return err
		}
		r, found, err = snapshots().Get(tx, name)
		found = found && r.UUID != "" && formatID(r.Target, r.UUID) == string(id)
		return err
	})
	if err != nil || found {
		return r, err
	}
	t, uuid, err := e.targetOf("snapshot", string(id))
	if err != nil {
		return snapRecord{}, err
	}
	l, err := e.foreignLvol(ctx, t, uuid)
	if err != nil || !l.snapshot {
		return snapRecord{}, cmp.Or(err, errs.Errorf(errs.NotFound, "snapshot %s does not exist", errs.Quote(string(id))))
	}
	return snapRecord{
		Name: l.name, Target: t.Name, Store: l.store, StoreName: l.storeName, UUID: uuid, Size: l.size, Content: volume.Filesystem,
	}, nil
}

func (e *Engine) putSnapshot(ctx context.Context, before *snapRecord, r snapRecord) error {
	return e.config.Database.Update(ctx, func(tx *store.Tx) error {
		if err := replace(tx, snapshots(), r.Name, before, r); err != nil || r.UUID == "" {
			return err
		}
		return names().Put(tx, formatID(r.Target, r.UUID), r.Name)
	})
}

// dropSnapshot removes the record of a snapshot, and can leave that it is
// deleted.
func (e *Engine) dropSnapshot(ctx context.Context, r snapRecord, remains bool) error {
	return e.config.Database.Update(ctx, func(tx *store.Tx) error {
		if remains {
			if err := deleted().Put(tx, formatID(r.Target, r.UUID), r); err != nil {
				return err
			}
		}
		now, found, err := snapshots().Get(tx, r.Name)
		if err != nil || !found || now.UUID != r.UUID || now.Source != r.Source {
			return err
		}
		if r.UUID != "" {
			if err := names().Delete(tx, formatID(r.Target, r.UUID)); err != nil {
				return err
			}
		}
		return snapshots().Delete(tx, r.Name)
	})
}

// foreignLvol is an lvol without a record.
type foreignLvol struct {
	name, store, storeName string
	size                   int64
	snapshot               bool
}

// foreignLvol reads an lvol of spdk-csi. NotFound: it does not exist, or it
// belongs to something that is deleted. Unavailable: its store is perhaps
// missing.
func (e *Engine) foreignLvol(ctx context.Context, t *target, uuid string) (foreignLvol, error) {
	bdev, err := t.loaded(ctx, uuid, func() error { return e.missesStore(ctx, t) })
	if err != nil && !errors.Is(err, rpc.NotFound) {
		return foreignLvol{}, t.explain(err, "look for lvol %s", uuid)
	}
	d := bdev.Driver.Lvol
	if err != nil || d == nil || bdev.UUID != uuid || len(bdev.Aliases) == 0 {
		return foreignLvol{}, errs.Errorf(errs.NotFound, "target %s has no lvol %s", t.Name, uuid)
	}
	storeName, name, _ := strings.Cut(bdev.Aliases[0], "/")
	gone, err := e.isDeleted(ctx, t, uuid)
	if err != nil {
		return foreignLvol{}, err
	}
	if gone || isSource(name) {
		return foreignLvol{}, errs.Errorf(errs.NotFound, "lvol %s of target %s is being deleted", uuid, t.Name)
	}
	return foreignLvol{name: name, store: d.StoreUUID, storeName: storeName, size: bdev.Size(), snapshot: d.Snapshot}, nil
}

// missesStore returns Unavailable if the target has no lvol store, or not all that are
// configured or have recorded objects, as when it has restarted without a bdev.
func (e *Engine) missesStore(ctx context.Context, t *target) error {
	stores, err := t.Client.LvolStores(ctx)
	if err != nil {
		return err
	}
	if len(stores) == 0 {
		return errs.Errorf(errs.Unavailable, "the target has no lvol store now; check that its configuration has the bdevs of its stores")
	}
	return e.incomplete(ctx, []storesOf{{target: t, stores: stores}}, settings{})
}
