package local

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/crashpoint"
	"github.com/cleatproject/cleat/internal/linux/freeze"
	"github.com/cleatproject/cleat/internal/poolfile"
	"github.com/cleatproject/cleat/internal/store"
	"github.com/cleatproject/cleat/volume"
)

// recover reconciles pool and records after a restart: frozen file systems,
// files in incoming, then every object that is not ready. Only sums stay in
// memory.
func (e *Engine) recover(ctx context.Context) error {
	if e.pool.readOnly {
		_, err := e.scanRecords(ctx)
		return err
	}
	if err := e.thawAll(ctx); err != nil {
		return err
	}
	if err := e.recoverIncoming(ctx); err != nil {
		return err
	}
	s, err := e.scanRecords(ctx)
	if err != nil {
		return err
	}
	if err := e.measureOverhead(); err != nil {
		return err
	}
	e.recoverVolumes(ctx, s.volumes)
	e.recoverSnapshots(ctx, s)
	e.addRecords(ctx)
	return ctx.Err()
}

func (e *Engine) thawAll(ctx context.Context) error {
	var intents []store.Entry[freezeRecord]
	err := e.store.View(ctx, func(tx *store.Tx) error {
		for entry, err := range freezeBucket.Range(tx, "") {
			if err != nil {
				return err
			}
			intents = append(intents, entry)
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, intent := range intents {
		for _, mountpoint := range intent.Value.Mountpoints {
			if err := freeze.ThawPath(mountpoint); err != nil {
				return fmt.Errorf("thaw %s, which an earlier run can have left frozen: %w", mountpoint, err)
			}
			e.logger.Warn("file system of an interrupted snapshot thawed", "path", mountpoint)
		}
		crashpoint.Hit("recover.thawed")
		if err := e.commit(ctx, func(tx *store.Tx) error { return deleteFreezeRecord(tx, intent.Key) }); err != nil {
			return err
		}
	}
	return nil
}

// recoverIncoming completes committed renames and removes unacknowledged files.
// Files of copies stay, and those whose directory cannot grow: a full pool must
// open, so that volumes can be deleted.
func (e *Engine) recoverIncoming(ctx context.Context) error {
	entries, err := fs.ReadDir(e.pool.root.FS(), incomingDir)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		name := entry.Name()
		dir, s, err := e.recordedAs(ctx, name)
		switch {
		case err != nil:
		case s == ready:
			err = e.place(dir, name)
			if errors.Is(err, unix.ENOSPC) {
				e.logger.Error("rename of a complete file failed, pool is full", "path", incomingDir+"/"+name, "err", err)
				err = nil
			}
		case s.filling(), s == pinning, s == deleting:
		default:
			err = e.pool.remove(incomingDir, name)
		}
		if err != nil {
			return fmt.Errorf("recover %s/%s: %w", incomingDir, name, err)
		}
		crashpoint.Hit("recover.incoming")
	}
	return nil
}

// recordedAs returns the state of the object with an id and the directory of
// its file; the state is empty if no record exists.
func (e *Engine) recordedAs(ctx context.Context, id string) (dir string, s state, err error) {
	err = e.store.View(ctx, func(tx *store.Tx) error {
		dir, s, err = recordIn(tx, id)
		return err
	})
	return dir, s, err
}

func recordIn(tx *store.Tx, id string) (dir string, s state, err error) {
	v, found, err := volumeBucket.Get(tx, id)
	if err != nil || found {
		return volumesDir, v.State, err
	}
	r, found, err := snapshotBucket.Get(tx, id)
	if err != nil || found {
		return snapshotsDir, r.State, err
	}
	return "", "", nil
}

type incompleteRecords struct {
	volumes   []store.Entry[volumeRecord]
	snapshots []store.Entry[snapshotRecord]
	groups    []store.Entry[groupRecord]
}

func (e *Engine) scanRecords(ctx context.Context) (incompleteRecords, error) {
	var u incompleteRecords
	err := e.store.View(ctx, func(tx *store.Tx) error {
		for entry, err := range volumeBucket.Range(tx, "") {
			if err != nil {
				return err
			}
			e.countVolume(entry.Value)
			if e.needsRecovery(entry.Key, entry.Value) {
				u.volumes = append(u.volumes, entry)
			}
		}
		for entry, err := range snapshotBucket.Range(tx, "") {
			if err != nil {
				return err
			}
			e.budget.record(entry.Value.Promised, true)
			e.snapshots.Add(1)
			if s := entry.Value.State; s != ready && s != failed {
				u.snapshots = append(u.snapshots, entry)
			}
		}
		for entry, err := range groupBucket.Range(tx, "") {
			if err != nil {
				return err
			}
			if entry.Value.State != ready {
				u.groups = append(u.groups, entry)
			}
		}
		return nil
	})
	if err != nil {
		return u, fmt.Errorf("read records: %w", err)
	}
	return u, nil
}

func (e *Engine) countVolume(r volumeRecord) {
	e.volumes.Add(1)
	e.budget.record(r.Size, r.Settings.thick())
	e.budget.record(r.Promised, true)
	if r.State == copying && r.Settings.thick() {
		e.budget.markAllocated(-r.Size) // not allocated yet
	}
}

// needsRecovery includes a file larger than its record, after an interrupted
// expansion. A file without a recorded size is from an older release.
func (e *Engine) needsRecovery(id string, r volumeRecord) bool {
	if r.State != ready || r.PendingSettings != nil {
		return true
	}
	f, err := e.pool.openFile(volumesDir+"/"+id, os.O_RDONLY, 0)
	if err != nil {
		return false // health reports the error
	}
	defer f.Close()
	info, err := f.Stat()
	a, attrErr := poolfile.Read(f)
	return err == nil && info.Size() > r.Size || attrErr != nil || a.Size != r.Size
}

// recoverVolumes recovers volumes independently, so that one damaged file does
// not affect others. Failures are left for a repeated call or the next start.
func (e *Engine) recoverVolumes(ctx context.Context, entries []store.Entry[volumeRecord]) {
	for _, entry := range entries {
		if err := e.recoverVolume(ctx, volume.ID(entry.Key), entry.Value); err != nil {
			e.logger.Error("volume recovery failed", "volume", entry.Key, "state", entry.Value.State, "err", err)
		}
		crashpoint.Hit("recover.volume")
	}
}

func (e *Engine) recoverVolume(ctx context.Context, id volume.ID, r volumeRecord) error {
	switch {
	case r.State == pinning:
		return e.dropVolume(ctx, id, r)
	case r.State == deleting:
		return e.resumeDelete(ctx, id, r)
	case r.State.filling():
		e.startVolumeCopy(id, r)
		return nil
	case r.PendingSettings != nil:
		return e.resumeModify(ctx, id, r)
	}
	return e.reconcileSize(ctx, id, r)
}

// reconcileSize adopts the size of a larger file, also in its attribute.
func (e *Engine) reconcileSize(ctx context.Context, id volume.ID, r volumeRecord) error {
	f, err := e.pool.openFile(volumesDir+"/"+string(id), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	size := max(info.Size(), r.Size)
	if err := errors.Join(poolfile.WriteSize(f, size), f.Sync()); err != nil || size == r.Size {
		return err
	}
	e.budget.record(size-r.Size, r.Settings.thick())
	r.Size = size
	return e.putVolume(ctx, id, r)
}

// resumeDelete completes a deletion. If the volume was attached meanwhile it
// rolls the deletion back, which was not acknowledged.
func (e *Engine) resumeDelete(ctx context.Context, id volume.ID, r volumeRecord) error {
	err := e.deleteVolume(ctx, id, r)
	if kind := errs.KindOf(err); err == nil || (kind != errs.Precondition && kind != errs.Busy) {
		return err
	}
	e.logger.Warn("interrupted deletion rolled back, volume in use", "volume", id, "err", err)
	r.State = ready
	return e.putVolume(ctx, id, r)
}

func (e *Engine) recoverSnapshots(ctx context.Context, u incompleteRecords) {
	for _, entry := range u.groups {
		g := &groupRemoval{id: volume.GroupID(entry.Key), name: entry.Value.Name}
		if err := e.dropSnapshots(ctx, entry.Value.Snapshots, g); err != nil {
			e.logger.Error("group recovery failed", "group", entry.Key, "state", entry.Value.State, "err", err)
		}
		crashpoint.Hit("recover.group")
	}
	for _, entry := range u.snapshots {
		if err := e.recoverSnapshot(ctx, volume.SnapshotID(entry.Key), entry.Value); err != nil {
			e.logger.Error("snapshot recovery failed", "snapshot", entry.Key, "state", entry.Value.State, "err", err)
		}
		crashpoint.Hit("recover.snapshot")
	}
}

func (e *Engine) recoverSnapshot(ctx context.Context, id volume.SnapshotID, r snapshotRecord) error {
	switch {
	case r.State.filling():
		e.startSnapshotCopy(id, r)
		return nil
	default: // deleting or not acknowledged; a group's members are already removed
		return e.dropSnapshots(ctx, []volume.SnapshotID{id}, nil)
	}
}
