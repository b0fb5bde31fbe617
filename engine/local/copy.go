package local

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/crashpoint"
	"github.com/cleatproject/cleat/internal/linux/reflink"
	"github.com/cleatproject/cleat/internal/store"
	"github.com/cleatproject/cleat/volume"
)

// durableStep is how many copied bytes a crash can lose.
const durableStep = 64 << 20

// beginVolumeCopy is for pools without shared blocks: it records the volume,
// pins its source and starts the copy.
func (e *Engine) beginVolumeCopy(ctx context.Context, id volume.ID, r volumeRecord, from *origin) error {
	if from.At.Volume == "" {
		// A snapshot is immutable and needs no pin; its deletion checks for
		// running copies.
		r.State = copying
		if err := e.commitNewVolume(ctx, id, r, nil); err != nil {
			return err
		}
		crashpoint.Hit("copy.recorded")
		e.startVolumeCopy(id, r)
		return nil
	}
	source, err := e.claimForCopy(ctx, from.At.Volume, from.Size)
	if err != nil {
		return err
	}
	defer func() { _ = source.release() }()
	r.State = pinning
	if err := e.commitNewVolume(ctx, id, r, nil); err != nil {
		return err
	}
	crashpoint.Hit("copy.intent")
	err = e.pin(ctx, from.At.Volume, string(id))
	crashpoint.Hit("copy.pinned")
	if err == nil {
		r.State = copying
		err = e.putVolume(ctx, id, r)
	}
	if err != nil {
		return errors.Join(err, e.dropUncounted(context.WithoutCancel(ctx), id, r))
	}
	crashpoint.Hit("copy.recorded")
	e.startVolumeCopy(id, r)
	return nil
}

// claimForCopy claims the file of a volume that must not be written to while it
// is copied.
func (e *Engine) claimForCopy(ctx context.Context, id volume.ID, size int64) (*claimed, error) {
	c, err := e.claim(ctx, volumesDir+"/"+string(id), size)
	if err != nil {
		return nil, err
	}
	if c.use.inUse() {
		err := errs.Errorf(errs.Precondition, "volume %s is attached (%s), and the file system of this pool cannot share blocks, so a volume can be copied only while it is detached; detach it, or use a pool on XFS or btrfs (--pool-image creates one)", id, c.use)
		return nil, errors.Join(err, c.release())
	}
	return c, nil
}

func (e *Engine) startVolumeCopy(id volume.ID, r volumeRecord) {
	source := fileOf(r.source())
	e.startCopy(string(id), source, volume.Progress{Done: r.Copied, Total: r.CopySize}, func(ctx context.Context, job *copyJob) error {
		err := e.runVolumeCopy(ctx, id, &r, job)
		if err == nil || ctx.Err() != nil {
			return err
		}
		err = fmt.Errorf("copy %s into volume %s: %w", source, id, e.explain(err))
		e.logger.Error("volume copy failed, volume removed", "volume", id, "source", source, "err", err)
		return errors.Join(err, e.abandonVolume(context.WithoutCancel(ctx), id, r))
	})
}

// runVolumeCopy continues from the recorded state to ready. All steps are
// idempotent.
func (e *Engine) runVolumeCopy(ctx context.Context, id volume.ID, r *volumeRecord, job *copyJob) error {
	if r.State == copying {
		save := func(done int64) error {
			r.Copied = done
			return e.putVolume(ctx, id, *r)
		}
		f, err := e.copyInto(ctx, job, string(id), r.CopySize, r.Copied, save)
		if err != nil {
			return err
		}
		err = e.complete(ctx, f, id, *r)
		if err := errors.Join(err, f.Close()); err != nil {
			return err
		}
		crashpoint.Hit("copy.filled")
		r.State = finishing
		if err := e.putVolume(ctx, id, *r); err != nil {
			return err
		}
		e.markAllocated(r.Size, r.Settings.thick())
		crashpoint.Hit("copy.finishing")
	}
	if r.FromVolume != "" {
		if err := e.unpin(ctx, r.FromVolume, string(id)); err != nil {
			return err
		}
		crashpoint.Hit("copy.unpinned")
	}
	if err := e.place(volumesDir, string(id)); err != nil {
		return err
	}
	r.State, r.Copied = ready, 0
	return e.putVolume(ctx, id, *r)
}

// abandonVolume removes a volume whose Create was not acknowledged.
func (e *Engine) abandonVolume(ctx context.Context, id volume.ID, r volumeRecord) error {
	if r.State == copying {
		e.markAllocated(r.Size, r.Settings.thick())
	}
	return e.dropVolume(ctx, id, r)
}

// dropUncounted: the volume is not in the budget and counters yet.
func (e *Engine) dropUncounted(ctx context.Context, id volume.ID, r volumeRecord) error {
	e.budget.record(r.Size, r.Settings.thick())
	e.budget.record(r.Promised, true)
	e.volumes.Add(1)
	return e.dropVolume(ctx, id, r)
}

// copyInto fills incoming/<name> and returns the open file. It starts at offset
// from, or at 0 if the file is shorter.
func (e *Engine) copyInto(ctx context.Context, job *copyJob, name string, size, from int64, save func(done int64) error) (*os.File, error) {
	src, err := e.pool.openFile(job.source, os.O_RDONLY, size)
	if err != nil {
		return nil, err
	}
	defer src.Close()
	dst, err := e.pool.root.OpenFile(incomingDir+"/"+name, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := e.copyOpen(ctx, job, dst, src, from, save); err != nil {
		return nil, errors.Join(err, dst.Close())
	}
	return dst, nil
}

func (e *Engine) copyOpen(ctx context.Context, job *copyJob, dst, src *os.File, from int64, save func(done int64) error) error {
	info, err := dst.Stat()
	if err != nil {
		return err
	}
	if info.Size() < from {
		from = 0
	}
	if err := e.pool.syncDir(incomingDir); err != nil {
		return err
	}
	durable := from
	return reflink.CopySparse(ctx, dst, src, from, func(done int64) error {
		job.done.Store(done)
		if done-durable < durableStep {
			return nil
		}
		if err := dst.Sync(); err != nil {
			return err
		}
		crashpoint.Hit("copy.synced")
		durable = done
		return save(done)
	})
}

func (e *Engine) startSnapshotCopy(id volume.SnapshotID, r snapshotRecord) {
	source := volumesDir + "/" + string(r.Source)
	e.startCopy(string(id), source, volume.Progress{Done: r.Copied, Total: r.Size}, func(ctx context.Context, job *copyJob) error {
		err := e.runSnapshotCopy(ctx, id, &r, job)
		if err == nil || ctx.Err() != nil {
			return err
		}
		err = fmt.Errorf("copy %s into snapshot %s: %w", source, id, e.explain(err))
		e.logger.Error("snapshot copy failed, snapshot unusable", "snapshot", id, "source", source, "err", err)
		return errors.Join(err, e.failSnapshot(context.WithoutCancel(ctx), id, r, err))
	})
}

func (e *Engine) runSnapshotCopy(ctx context.Context, id volume.SnapshotID, r *snapshotRecord, job *copyJob) error {
	if r.State == copying {
		save := func(done int64) error {
			r.Copied = done
			return e.putSnapshot(ctx, id, *r)
		}
		f, err := e.copyInto(ctx, job, string(id), r.Size, r.Copied, save)
		if err != nil {
			return err
		}
		// It can have grown during the copy.
		err = errors.Join(f.Truncate(r.Size), e.sealSnapshot(f, *r))
		if err := errors.Join(err, f.Close(), e.pool.syncDir(incomingDir)); err != nil {
			return err
		}
		crashpoint.Hit("copy.filled")
		r.State = finishing
		if err := e.putSnapshot(ctx, id, *r); err != nil {
			return err
		}
		crashpoint.Hit("copy.finishing")
	}
	if err := e.unpin(ctx, r.Source, string(id)); err != nil {
		return err
	}
	crashpoint.Hit("copy.unpinned")
	if err := e.place(snapshotsDir, string(id)); err != nil {
		return err
	}
	r.State, r.Copied = ready, 0
	return e.putSnapshot(ctx, id, *r)
}

// failSnapshot keeps the record of an acknowledged snapshot, so that later
// calls report the reason, and unpins the source.
func (e *Engine) failSnapshot(ctx context.Context, id volume.SnapshotID, r snapshotRecord, cause error) error {
	r.State, r.Copied, r.Reason = failed, 0, cause.Error()
	if err := e.putSnapshot(ctx, id, r); err != nil {
		return err
	}
	return errors.Join(e.pool.remove(incomingDir, string(id)), e.unpin(ctx, r.Source, string(id)))
}

func (e *Engine) putSnapshot(ctx context.Context, id volume.SnapshotID, r snapshotRecord) error {
	return e.commit(ctx, func(tx *store.Tx) error { return snapshotBucket.Put(tx, string(id), r) })
}
