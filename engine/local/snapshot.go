package local

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/cleatproject/cleat/engine/newvolume"
	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/store"
	"github.com/cleatproject/cleat/volume"
)

// CreateSnapshot implements volume.Snapshots. In a pool without shared blocks
// the volume must be detached (Precondition), and the snapshot is ready after
// its copy.
func (e *Engine) CreateSnapshot(ctx context.Context, req volume.SnapshotRequest) (volume.Snapshot, error) {
	if err := newvolume.CheckName(req.Name); err != nil {
		return volume.Snapshot{}, err
	}
	if err := noParameters(req.Parameters); err != nil {
		return volume.Snapshot{}, err
	}
	for {
		id, err := e.createSnapshotOnce(ctx, req)
		switch {
		case errors.Is(err, errLeftover):
			if err := e.removeSnapshot(ctx, id); err != nil {
				return volume.Snapshot{}, fmt.Errorf("delete the incomplete previous snapshot %q: %w", req.Name, err)
			}
		case err != nil:
			return volume.Snapshot{}, err
		default:
			return e.GetSnapshot(ctx, id)
		}
	}
}

func (e *Engine) createSnapshotOnce(ctx context.Context, req volume.SnapshotRequest) (volume.SnapshotID, error) {
	unlock, err := e.locks.Lock(ctx, "snapname:"+req.Name, "vol:"+string(req.Source))
	if err != nil {
		return "", err
	}
	defer unlock()
	id, r, found, err := e.snapshotNamed(ctx, req.Name)
	if err != nil {
		return "", err
	}
	if found {
		return id, e.sameSnapshot(id, r, req)
	}
	if err := e.writable(ctx); err != nil {
		return "", err
	}
	b, err := e.newBatch(ctx, []volume.ID{req.Source})
	if err != nil {
		return "", err
	}
	m := b.members[0]
	m.record.Name = req.Name
	b.allowCrashConsistent = true
	b.commitHook = func(tx *store.Tx) error { return snapshotNameBucket.Put(tx, req.Name, m.snapshot) }
	if err := e.takeSnapshots(ctx, b); err != nil {
		return "", fmt.Errorf("create snapshot %q: %w", req.Name, e.explain(err))
	}
	return m.snapshot, nil
}

func (e *Engine) sameSnapshot(id volume.SnapshotID, r snapshotRecord, req volume.SnapshotRequest) error {
	switch {
	case !r.State.visible():
		return errLeftover
	case r.Source != req.Source:
		return errs.Errorf(errs.Exists, "snapshot %s already has the name %q, with source volume %s; the request has source volume %s", id, req.Name, r.Source, req.Source)
	case r.State == failed:
		return errs.Errorf(errs.Exhausted, "the copy into snapshot %s failed: %s; delete the snapshot and create another one", id, r.Reason)
	case r.State == ready && !e.pool.readOnly:
		return e.place(snapshotsDir, string(id))
	}
	return nil
}

func (e *Engine) snapshotNamed(ctx context.Context, name string) (id volume.SnapshotID, r snapshotRecord, found bool, err error) {
	err = e.store.View(ctx, func(tx *store.Tx) error {
		if id, found, err = snapshotNameBucket.Get(tx, name); err != nil || !found {
			return err
		}
		r, found, err = snapshotBucket.Get(tx, string(id))
		return err
	})
	return id, r, found, err
}

// GetSnapshot implements volume.Snapshots.
func (e *Engine) GetSnapshot(ctx context.Context, id volume.SnapshotID) (volume.Snapshot, error) {
	r, err := e.snapshotRecord(ctx, id)
	if err != nil {
		return volume.Snapshot{}, err
	}
	return e.snapshot(id, r), nil
}

// ListSnapshots implements volume.Snapshots.
func (e *Engine) ListSnapshots(ctx context.Context, query volume.SnapshotQuery) ([]volume.Snapshot, error) {
	var all []volume.Snapshot
	add := func(id volume.SnapshotID, r snapshotRecord) (more bool) {
		if r.State.visible() {
			all = append(all, e.snapshot(id, r))
		}
		return query.Limit == 0 || len(all) < query.Limit
	}
	err := e.store.View(ctx, func(tx *store.Tx) error {
		if query.Source != "" {
			return eachSnapshotOf(tx, query.Source, query.After, add)
		}
		for entry, err := range snapshotBucket.Range(tx, string(query.After)) {
			if err != nil {
				return err
			}
			if !add(volume.SnapshotID(entry.Key), entry.Value) {
				return nil
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list snapshots: %w", err)
	}
	return all, nil
}

func eachSnapshotOf(tx *store.Tx, source volume.ID, after volume.SnapshotID, add func(volume.SnapshotID, snapshotRecord) bool) error {
	prefix := string(source) + "/"
	for entry, err := range snapshotsOfBucket.Prefix(tx, prefix) {
		if err != nil {
			return err
		}
		id := strings.TrimPrefix(entry.Key, prefix)
		if id <= string(after) {
			continue
		}
		r, found, err := snapshotBucket.Get(tx, id)
		if err != nil {
			return err
		}
		if found && !add(volume.SnapshotID(id), r) {
			return nil
		}
	}
	return nil
}
