package local

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/crashpoint"
	"github.com/cleatproject/cleat/internal/linux/retry"
	"github.com/cleatproject/cleat/internal/store"
	"github.com/cleatproject/cleat/volume"
)

// batch is a set of snapshots (a group's, or one) taken at one moment and
// committed together.
type batch struct {
	members              []*member
	allowCrashConsistent bool                     // members that cannot be frozen
	commitHook           func(tx *store.Tx) error // runs in every commit of the records
	onCreated            func(at time.Time)       // of the snapshots
	group                *groupRemoval            // removes an incomplete group
}

type member struct {
	source   volume.ID
	snapshot volume.SnapshotID
	record   snapshotRecord
}

func (m *member) file() string { return volumesDir + "/" + string(m.source) }

// newBatch returns a batch for sources, whose locks the caller holds.
func (e *Engine) newBatch(ctx context.Context, sources []volume.ID) (*batch, error) {
	b := &batch{}
	for _, source := range sources {
		r, err := e.readyVolume(ctx, source)
		if err != nil {
			return nil, err
		}
		m := &member{source: source, snapshot: volume.NewSnapshotID(e.pool.uuid), record: snapshotRecord{
			State: ready, Source: source, Size: r.Size, Content: r.Content, FSType: r.FSType,
		}}
		if r.Settings.thick() && e.pool.reflink {
			// Later writes to the thick source need new blocks.
			m.record.Promised = r.Size
		}
		b.members = append(b.members, m)
	}
	return b, nil
}

func (b *batch) promised() (sum int64) {
	for _, m := range b.members {
		sum += m.record.Promised
	}
	return sum
}

// takeSnapshots returns Exhausted if the pool is nearly full.
func (e *Engine) takeSnapshots(ctx context.Context, b *batch) error {
	if err := e.awaitSpace(ctx); err != nil {
		return err
	}
	promised := b.promised()
	undo, err := e.promise(ctx, promised, true)
	if err != nil {
		return fmt.Errorf("reserve space for the %s source, whose writes need new blocks after a snapshot: %w", thick, err)
	}
	if e.pool.reflink {
		err = e.takeByClone(ctx, b)
	} else {
		err = e.takeByCopy(ctx, b)
	}
	if err != nil {
		undo()
		return err
	}
	e.markAllocated(promised, true)
	e.snapshots.Add(int64(len(b.members)))
	return nil
}

func (e *Engine) awaitSpace(ctx context.Context) error {
	return retry.For(ctx, e.budget.reclaimDelay(), func() (again bool, err error) {
		s, err := e.pool.space()
		if err != nil || !s.full() {
			return false, err
		}
		return true, errs.Errorf(errs.Exhausted, "pool %s has %d bytes free, less than its reserve of %d, which a snapshot needs for changed blocks; delete volumes or snapshots, or enlarge the pool", e.pool.path, s.free, s.reserve())
	})
}

// takeByClone clones all files while writes are paused.
func (e *Engine) takeByClone(ctx context.Context, b *batch) error {
	var requests []cloneRequest
	defer func() {
		for _, c := range requests {
			_ = c.clone.Close() // already synced, or discarded
		}
	}()
	for _, m := range b.members {
		f, err := e.pool.root.OpenFile(incomingDir+"/"+string(m.snapshot), os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
		if err != nil {
			return errors.Join(err, e.removeIncoming(b))
		}
		requests = append(requests, cloneRequest{name: m.file(), size: m.record.Size, clone: f})
	}
	crashpoint.Hit("snapshot.begun")
	intent, at, err := e.cloneFrozen(ctx, requests, b.allowCrashConsistent)
	if err != nil {
		return errors.Join(err, e.removeIncoming(b))
	}
	b.setCreated(at)
	for i, c := range requests {
		m := b.members[i]
		if err = errors.Join(err, e.measure(m, c.clone)); err == nil {
			err = e.sealSnapshot(c.clone, m.record)
		}
	}
	if err := errors.Join(err, e.pool.syncDir(incomingDir)); err != nil {
		return errors.Join(err, e.removeIncoming(b))
	}
	crashpoint.Hit("snapshot.filled")
	if err := e.commitBatch(ctx, b, ready, func(tx *store.Tx) error { return deleteFreezeRecord(tx, intent) }); err != nil {
		return err
	}
	crashpoint.Hit("snapshot.recorded")
	for _, m := range b.members {
		err = errors.Join(err, e.place(snapshotsDir, string(m.snapshot)))
	}
	return err
}

// measure sets the size from the file, which is larger than the record after an
// interrupted expansion.
func (e *Engine) measure(m *member, clone *os.File) error {
	info, err := clone.Stat()
	if err != nil {
		return err
	}
	if err := truncated(m.file(), info.Size(), m.record.Size); err != nil {
		return err
	}
	m.record.Size = info.Size()
	return nil
}

// sealSnapshot makes a complete file read-only last.
func (e *Engine) sealSnapshot(f *os.File, r snapshotRecord) error {
	if err := writeSnapshotRecord(f, r); err != nil {
		return err
	}
	return errors.Join(f.Chmod(0o400), f.Sync())
}

func (e *Engine) removeIncoming(b *batch) error {
	var err error
	for _, m := range b.members {
		err = errors.Join(err, e.pool.remove(incomingDir, string(m.snapshot)))
	}
	return err
}

func (b *batch) setCreated(at time.Time) {
	for _, m := range b.members {
		m.record.Created = at
	}
	if b.onCreated != nil {
		b.onCreated(at)
	}
}

func (e *Engine) commitBatch(ctx context.Context, b *batch, s state, also func(tx *store.Tx) error) error {
	return e.commit(ctx, func(tx *store.Tx) error {
		for _, m := range b.members {
			m.record.State = s
			if err := putNewSnapshot(tx, m.snapshot, m.record); err != nil {
				return err
			}
		}
		if b.commitHook != nil {
			if err := b.commitHook(tx); err != nil {
				return err
			}
		}
		return also(tx)
	})
}

func putNewSnapshot(tx *store.Tx, id volume.SnapshotID, r snapshotRecord) error {
	if err := snapshotsOfBucket.Put(tx, string(r.Source)+"/"+string(id), struct{}{}); err != nil {
		return err
	}
	return snapshotBucket.Put(tx, string(id), r)
}

func (e *Engine) takeByCopy(ctx context.Context, b *batch) error {
	var sources []*claimed
	defer func() {
		for _, s := range sources {
			_ = s.release()
		}
	}()
	for _, m := range b.members {
		s, err := e.claimForCopy(ctx, m.source, m.record.Size)
		if err != nil {
			return err
		}
		sources = append(sources, s)
	}
	b.setCreated(time.Now().UTC())
	nothing := func(*store.Tx) error { return nil }
	if err := e.commitBatch(ctx, b, pinning, nothing); err != nil {
		return err
	}
	crashpoint.Hit("copy.intent")
	if err := e.pinBatch(ctx, b); err != nil {
		return errors.Join(err, e.dropBatch(context.WithoutCancel(ctx), b))
	}
	crashpoint.Hit("copy.recorded")
	for _, m := range b.members {
		e.startSnapshotCopy(m.snapshot, m.record)
	}
	return nil
}

func (e *Engine) pinBatch(ctx context.Context, b *batch) error {
	for _, m := range b.members {
		if err := e.pin(ctx, m.source, string(m.snapshot)); err != nil {
			return err
		}
	}
	crashpoint.Hit("copy.pinned")
	return e.commitBatch(ctx, b, copying, func(*store.Tx) error { return nil })
}

// dropBatch removes an unacknowledged batch.
func (e *Engine) dropBatch(ctx context.Context, b *batch) error {
	e.snapshots.Add(int64(len(b.members))) // dropSnapshots subtracts them
	ids := make([]volume.SnapshotID, len(b.members))
	for i, m := range b.members {
		ids[i] = m.snapshot
		e.budget.record(m.record.Promised, true)
	}
	return e.dropSnapshots(ctx, ids, b.group)
}
