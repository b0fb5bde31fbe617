package local

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/crashpoint"
	"github.com/cleatproject/cleat/internal/linux/freeze"
	"github.com/cleatproject/cleat/internal/poolfile"
	"github.com/cleatproject/cleat/internal/store"
	"github.com/cleatproject/cleat/volume"
)

// recover brings pool and records together after whatever ended the engine
// before: first it thaws, then it settles the files that were being made, then
// every object that is not simply ready. Only sums stay in memory.
func (e *Engine) recover(ctx context.Context) error {
	if e.pool.readOnly {
		_, err := e.survey(ctx)
		return err
	}
	if err := e.thawAll(ctx); err != nil {
		return err
	}
	if err := e.settleIncoming(ctx); err != nil {
		return err
	}
	s, err := e.survey(ctx)
	if err != nil {
		return err
	}
	if err := e.measureOverhead(); err != nil {
		return err
	}
	e.settleVolumes(ctx, s.volumes)
	e.settleSnapshots(ctx, s)
	return ctx.Err()
}

// thawAll ends the freezes that were meant or made, and forgets them.
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
				return fmt.Errorf("thaw %s, which an earlier run may have left frozen: %w", mountpoint, err)
			}
			e.logger.Warn("a snapshot was cut off by the end of an earlier run; its file system is not frozen any more", "mountpoint", mountpoint)
		}
		crashpoint.Hit("recover.thawed")
		if err := e.commit(ctx, func(tx *store.Tx) error { return forget(tx, intent.Key) }); err != nil {
			return err
		}
	}
	return nil
}

// settleIncoming finishes the renames that were committed and removes what no
// record knows: nobody was ever told of it. Files of copies stay.
func (e *Engine) settleIncoming(ctx context.Context) error {
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
		case s.filling(), s == pinning, s == deleting:
		default:
			err = e.pool.remove(incomingDir, name)
		}
		if err != nil {
			return fmt.Errorf("settle %s/%s: %w", incomingDir, name, err)
		}
		crashpoint.Hit("recover.incoming")
	}
	return nil
}

// recordedAs tells which object has the id, and where its file belongs; an
// empty state is "none".
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

// unsettled are the records that need more than to be counted.
type unsettled struct {
	volumes   []store.Entry[volumeRecord]
	snapshots []store.Entry[snapshotRecord]
	groups    []store.Entry[groupRecord]
}

// survey goes through all records once, counts them, and picks the unsettled.
func (e *Engine) survey(ctx context.Context) (unsettled, error) {
	var u unsettled
	err := e.store.View(ctx, func(tx *store.Tx) error {
		for entry, err := range volumeBucket.Range(tx, "") {
			if err != nil {
				return err
			}
			e.countVolume(entry.Value)
			if e.unsettledVolume(entry.Key, entry.Value) {
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
		return u, fmt.Errorf("read the records: %w", err)
	}
	return u, nil
}

func (e *Engine) countVolume(r volumeRecord) {
	e.volumes.Add(1)
	e.budget.record(r.Size, r.Settings.thick())
	e.budget.record(r.Promised, true)
	if r.State == copying && r.Settings.thick() {
		e.budget.settle(-r.Size) // its blocks are still to come
	}
}

// unsettledVolume also finds a file that is larger than its record says: an
// expansion was cut off in between. One that does not say its size was made by
// an older cleat.
func (e *Engine) unsettledVolume(id string, r volumeRecord) bool {
	if r.State != ready || r.Becoming != nil {
		return true
	}
	f, err := e.pool.openFile(volumesDir+"/"+id, os.O_RDONLY, 0)
	if err != nil {
		return false // health and the calls that need it say why
	}
	defer f.Close()
	info, err := f.Stat()
	a, attrErr := poolfile.Read(f)
	return err == nil && info.Size() > r.Size || attrErr != nil || a.Size != r.Size
}

// settleVolumes does what it can: one volume whose file is broken must not
// keep the others away. What fails is left for the repeat of its call, or for
// the next start.
func (e *Engine) settleVolumes(ctx context.Context, entries []store.Entry[volumeRecord]) {
	for _, entry := range entries {
		if err := e.settleVolume(ctx, volume.ID(entry.Key), entry.Value); err != nil {
			e.logger.Error("a volume that was left half-way cannot be settled", "volume", entry.Key, "state", entry.Value.State, "error", err)
		}
		crashpoint.Hit("recover.volume")
	}
}

func (e *Engine) settleVolume(ctx context.Context, id volume.ID, r volumeRecord) error {
	switch {
	case r.State == pinning:
		return e.dropVolume(ctx, id, r)
	case r.State == deleting:
		return e.resumeDelete(ctx, id, r)
	case r.State.filling():
		e.startVolumeCopy(id, r)
		return nil
	case r.Becoming != nil:
		return e.resumeModify(ctx, id, r)
	}
	return e.settleSize(ctx, id, r)
}

// settleSize brings the record of a volume to the size of its file, if that is
// larger, and the note on the file to the record.
func (e *Engine) settleSize(ctx context.Context, id volume.ID, r volumeRecord) error {
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

// resumeDelete finishes a deletion, unless somebody managed to attach the
// volume meanwhile: then it was not deleted, and nobody was told so.
func (e *Engine) resumeDelete(ctx context.Context, id volume.ID, r volumeRecord) error {
	err := e.deleteVolume(ctx, id, r)
	if kind := errs.KindOf(err); err == nil || (kind != errs.Precondition && kind != errs.Busy) {
		return err
	}
	e.logger.Warn("a deletion that was cut off is taken back, the volume is in use", "volume", id, "reason", err)
	r.State = ready
	return e.putVolume(ctx, id, r)
}

func (e *Engine) settleSnapshots(ctx context.Context, u unsettled) {
	for _, entry := range u.groups {
		g := &groupRemoval{id: volume.GroupID(entry.Key), name: entry.Value.Name}
		if err := e.dropSnapshots(ctx, entry.Value.Snapshots, g); err != nil {
			e.logger.Error("a group that was left half-way cannot be settled", "group", entry.Key, "state", entry.Value.State, "error", err)
		}
		crashpoint.Hit("recover.group")
	}
	for _, entry := range u.snapshots {
		if err := e.settleSnapshot(ctx, volume.SnapshotID(entry.Key), entry.Value); err != nil {
			e.logger.Error("a snapshot that was left half-way cannot be settled", "snapshot", entry.Key, "state", entry.Value.State, "error", err)
		}
		crashpoint.Hit("recover.snapshot")
	}
}

func (e *Engine) settleSnapshot(ctx context.Context, id volume.SnapshotID, r snapshotRecord) error {
	switch {
	case r.State.filling():
		e.startSnapshotCopy(id, r)
		return nil
	default: // deleting, or never acknowledged; those of a group are gone already
		return e.dropSnapshots(ctx, []volume.SnapshotID{id}, nil)
	}
}
