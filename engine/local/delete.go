package local

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/crashpoint"
	"github.com/cleatproject/cleat/internal/poolfile"
	"github.com/cleatproject/cleat/internal/store"
	"github.com/cleatproject/cleat/volume"
)

// Delete implements volume.Engine. It stops a copy into the volume.
func (e *Engine) Delete(ctx context.Context, id volume.ID) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if _, found, err := read(ctx, e.store, volumeBucket, string(id)); err != nil || !found {
		return err
	}
	if err := e.writable(ctx); err != nil {
		return err
	}
	unlock, err := e.locks.Lock(ctx, "vol:"+string(id))
	if err != nil {
		return err
	}
	defer unlock()
	if err := e.copies.stop(ctx, string(id)); err != nil {
		return err
	}
	r, found, err := read(ctx, e.store, volumeBucket, string(id))
	if err != nil || !found {
		return err
	}
	if err := e.deleteVolume(ctx, id, r); err != nil {
		return fmt.Errorf("delete volume %s: %w", id, e.explain(err))
	}
	return nil
}

// deleteVolume deletes a volume whose lock is held and that no copy fills.
func (e *Engine) deleteVolume(ctx context.Context, id volume.ID, r volumeRecord) error {
	name := volumesDir + "/" + string(id)
	f, err := e.claimUnused(ctx, name)
	var blocks int64
	switch {
	case unusable(err):
	case err != nil:
		return err
	default:
		// The claim prevents an attach until the file is unlinked.
		defer func() { _ = f.release() }()
		if err := e.checkUnread(ctx, f.File, name); err != nil {
			return err
		}
		if info, err := f.Stat(); err == nil {
			blocks = blocksOf(info)
		}
	}
	removed, err := e.useOfRemoved(ctx, name)
	if err != nil {
		return err
	}
	if removed.inUse() {
		return errs.Errorf(errs.Precondition, "%s was removed or replaced, and the volume is in use (%s); detach it first", name, removed)
	}
	if was := r.State; was != deleting {
		r.State = deleting
		if err := e.putVolume(ctx, id, r); err != nil {
			return err
		}
		if was == copying {
			e.markAllocated(r.Size, r.Settings.thick())
		}
		crashpoint.Hit("delete.marked")
	}
	if err := e.dropVolume(ctx, id, r); err != nil {
		return err
	}
	e.budget.freed(blocks)
	return nil
}

// dropVolume removes a deleting or unacknowledged volume: files, then the pin of
// its source, whose removal can need their blocks, then the record.
func (e *Engine) dropVolume(ctx context.Context, id volume.ID, r volumeRecord) error {
	if err := errors.Join(e.pool.remove(volumesDir, string(id)), e.pool.remove(incomingDir, string(id))); err != nil {
		return err
	}
	if r.FromVolume != "" {
		if err := e.unpin(ctx, r.FromVolume, string(id)); err != nil {
			return err
		}
	}
	crashpoint.Hit("delete.removed")
	err := e.commit(ctx, func(tx *store.Tx) error {
		if err := volumeBucket.Delete(tx, string(id)); err != nil {
			return err
		}
		return volumeNameBucket.Delete(tx, r.Name)
	})
	if err != nil {
		return err
	}
	crashpoint.Hit("delete.recorded")
	e.budget.release(r.Size, r.Settings.thick())
	e.budget.release(r.Promised, true)
	e.volumes.Add(-1)
	return nil
}

// checkUnread ignores the pins of copies that have ended: a full XFS pool can
// lack the space to remove them.
func (e *Engine) checkUnread(ctx context.Context, f *os.File, name string) error {
	readers, err := poolfile.Readers(f)
	if err != nil {
		return err
	}
	readers = slices.DeleteFunc(readers, func(r string) bool {
		_, s, err := e.recordedAs(ctx, r)
		return err == nil && s != pinning && !s.filling()
	})
	if len(readers) > 0 {
		return errs.Errorf(errs.Precondition, "%s is being copied into %s; wait for the copy, or delete its volume or snapshot", name, strings.Join(readers, ", "))
	}
	return nil
}
