package local

import (
	"context"
	"errors"
	"fmt"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/crashpoint"
	"github.com/cleatproject/cleat/internal/store"
	"github.com/cleatproject/cleat/volume"
)

// DeleteSnapshot implements volume.Snapshots. It stops a copy into the
// snapshot. Precondition: a copy reads it.
func (e *Engine) DeleteSnapshot(ctx context.Context, id volume.SnapshotID) error {
	r, found, err := read(ctx, e.store, snapshotBucket, string(id))
	if err != nil || !found {
		return err
	}
	if r.Group != "" {
		return errs.Errorf(errs.Invalid, "snapshot %s is a member of group %s: it is deleted with the group", id, r.Group)
	}
	if err := e.removeSnapshot(ctx, id); err != nil {
		return fmt.Errorf("delete snapshot %s: %w", id, e.explain(err))
	}
	return nil
}

func (e *Engine) removeSnapshot(ctx context.Context, id volume.SnapshotID) error {
	if err := e.writable(ctx); err != nil {
		return err
	}
	unlock, err := e.locks.Lock(ctx, "snap:"+string(id))
	if err != nil {
		return err
	}
	defer unlock()
	return e.removeSnapshots(ctx, []volume.SnapshotID{id}, nil)
}

// removeSnapshots deletes all or none, with locks held, and updates their
// group. Missing snapshots are no error.
func (e *Engine) removeSnapshots(ctx context.Context, ids []volume.SnapshotID, group *groupRemoval) error {
	for _, id := range ids {
		if reader := e.copies.readerOf(snapshotsDir + "/" + string(id)); reader != "" {
			return errs.Errorf(errs.Precondition, "volume %s is being copied from snapshot %s; wait for the copy, or delete the volume", reader, id)
		}
	}
	for _, id := range ids {
		if err := e.copies.stop(ctx, string(id)); err != nil {
			return err
		}
	}
	if err := e.markSnapshots(ctx, ids, group); err != nil {
		return err
	}
	if group != nil {
		crashpoint.Hit("delete-group.marked")
	} else {
		crashpoint.Hit("delete-snapshot.marked")
	}
	return e.dropSnapshots(ctx, ids, group)
}

func (e *Engine) markSnapshots(ctx context.Context, ids []volume.SnapshotID, group *groupRemoval) error {
	return e.commit(ctx, func(tx *store.Tx) error {
		for _, id := range ids {
			r, found, err := snapshotBucket.Get(tx, string(id))
			if err != nil {
				return err
			}
			if !found {
				continue
			}
			r.State = deleting
			if err := snapshotBucket.Put(tx, string(id), r); err != nil {
				return err
			}
		}
		return group.mark(tx)
	})
}

// dropSnapshots removes files, then records, of deleting or unacknowledged
// snapshots. Pins come after the files, whose blocks their removal can need.
func (e *Engine) dropSnapshots(ctx context.Context, ids []volume.SnapshotID, group *groupRemoval) error {
	records := map[volume.SnapshotID]snapshotRecord{}
	for _, id := range ids {
		r, found, err := read(ctx, e.store, snapshotBucket, string(id))
		if err != nil {
			return err
		}
		if !found {
			continue
		}
		records[id] = r
		if err := e.dropSnapshotFile(id); err != nil {
			return err
		}
		if err := e.unpin(ctx, r.Source, string(id)); err != nil {
			return err
		}
	}
	crashpoint.Hit("delete-snapshot.removed")
	err := e.commit(ctx, func(tx *store.Tx) error {
		for id, r := range records {
			if err := deleteSnapshotRecord(tx, id, r); err != nil {
				return err
			}
		}
		return group.deleteRecords(tx)
	})
	if err != nil {
		return err
	}
	crashpoint.Hit("delete-snapshot.recorded")
	for _, r := range records {
		e.budget.release(r.Promised, true)
	}
	e.snapshots.Add(-int64(len(records)))
	return nil
}

func (e *Engine) dropSnapshotFile(id volume.SnapshotID) error {
	name := snapshotsDir + "/" + string(id)
	if info, err := e.pool.root.Lstat(name); err == nil {
		defer e.budget.freed(blocksOf(info))
	}
	return errors.Join(e.pool.remove(snapshotsDir, string(id)), e.pool.remove(incomingDir, string(id)))
}

func deleteSnapshotRecord(tx *store.Tx, id volume.SnapshotID, r snapshotRecord) error {
	if err := snapshotBucket.Delete(tx, string(id)); err != nil {
		return err
	}
	if err := snapshotsOfBucket.Delete(tx, string(r.Source)+"/"+string(id)); err != nil {
		return err
	}
	if r.Name == "" || r.Group != "" {
		return nil
	}
	return snapshotNameBucket.Delete(tx, r.Name)
}
