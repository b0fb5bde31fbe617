package local

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"

	"github.com/cleatproject/cleat/internal/crashpoint"
	"github.com/cleatproject/cleat/internal/linux/fiemap"
	"github.com/cleatproject/cleat/internal/linux/fstrim"
	"github.com/cleatproject/cleat/internal/linux/loop"
	"github.com/cleatproject/cleat/internal/poolfile"
	"github.com/cleatproject/cleat/volume"
)

// Modify implements volume.Modifier. Settings are written to the backing file
// for the next attach, and applied to attached devices. A volume that becomes
// thick gets all blocks; one that becomes thin frees unused ones. If the kernel
// cannot enable discard on an attached device, that waits for the next attach.
func (e *Engine) Modify(ctx context.Context, id volume.ID, parameters map[string]string) (volume.Volume, error) {
	if err := ctx.Err(); err != nil {
		return volume.Volume{}, err
	}
	unlock, err := e.locks.Lock(ctx, "vol:"+string(id))
	if err != nil {
		return volume.Volume{}, err
	}
	defer unlock()
	r, err := e.readyVolume(ctx, id)
	if err != nil {
		return volume.Volume{}, err
	}
	now := r.Settings
	if r.PendingSettings != nil { // an earlier change was interrupted
		now = *r.PendingSettings
	}
	wanted, err := parseSettings(now, parameters)
	if err != nil {
		return volume.Volume{}, err
	}
	if wanted == r.Settings && r.PendingSettings == nil {
		return e.volume(id, r), nil
	}
	if err := e.writable(ctx); err != nil {
		return volume.Volume{}, err
	}
	if _, err := e.pool.inspect(volumesDir+"/"+string(id), r.Size); err != nil {
		return volume.Volume{}, fmt.Errorf("modify volume %s: %w", id, e.explain(err))
	}
	if err := e.modify(ctx, id, &r, wanted); err != nil {
		return volume.Volume{}, fmt.Errorf("modify volume %s: %w", id, e.explain(err))
	}
	return e.volume(id, r), nil
}

// modify records the desired settings, applies them, and records the result.
// Without space for a thick volume nothing changes.
func (e *Engine) modify(ctx context.Context, id volume.ID, r *volumeRecord, wanted settings) error {
	before := r.Settings
	provisioningChanges := before.thick() != wanted.thick() || r.PendingSettings != nil
	if err := e.promiseChange(ctx, r, wanted); err != nil {
		return err
	}
	r.PendingSettings = &wanted
	if err := e.putVolume(ctx, id, *r); err != nil {
		e.unpromiseChange(r.Size, before, wanted)
		return err
	}
	crashpoint.Hit("modify.intent")
	if err := e.apply(ctx, id, *r, wanted, provisioningChanges); err != nil {
		e.unpromiseChange(r.Size, before, wanted)
		return errors.Join(err, e.rollBackModify(context.WithoutCancel(ctx), id, r, provisioningChanges))
	}
	crashpoint.Hit("modify.applied")
	r.Settings, r.PendingSettings = wanted, nil
	err := e.putVolume(ctx, id, *r)
	if before.thick() != wanted.thick() {
		e.markAllocated(r.Size, wanted.thick())
		e.budget.release(r.Size, before.thick())
	}
	return err
}

// promiseChange reserves the space for the new provisioning before the old
// reservation is released.
func (e *Engine) promiseChange(ctx context.Context, r *volumeRecord, wanted settings) error {
	if r.Settings.thick() == wanted.thick() {
		return nil
	}
	if !wanted.thick() {
		e.budget.record(r.Size, false)
		return nil
	}
	// The existing thin promise is part of the new thick one.
	e.budget.release(r.Size, false)
	_, err := e.promise(ctx, r.Size, true)
	e.budget.record(r.Size, false)
	return err
}

func (e *Engine) unpromiseChange(size int64, before, wanted settings) {
	if before.thick() == wanted.thick() {
		return
	}
	e.markAllocated(size, wanted.thick())
	e.budget.release(size, wanted.thick())
}

func (e *Engine) rollBackModify(ctx context.Context, id volume.ID, r *volumeRecord, provisioningChanges bool) error {
	if err := e.apply(ctx, id, *r, r.Settings, provisioningChanges); err != nil {
		return err
	}
	r.PendingSettings = nil
	return e.putVolume(ctx, id, *r)
}

// resumeModify completes an unacknowledged change, which can be partly applied.
func (e *Engine) resumeModify(ctx context.Context, id volume.ID, r volumeRecord) error {
	err := e.modify(ctx, id, &r, *r.PendingSettings)
	if err == nil {
		return nil
	}
	e.logger.Warn("interrupted modify failed, rolling back", "volume", id, "err", err)
	if r.PendingSettings == nil {
		return nil
	}
	return e.rollBackModify(ctx, id, &r, true)
}

// apply applies settings to the file and its devices; provisioningChanges: also
// thick or thin.
func (e *Engine) apply(ctx context.Context, id volume.ID, r volumeRecord, s settings, provisioningChanges bool) error {
	name := volumesDir + "/" + string(id)
	c, err := e.claim(ctx, name, r.Size)
	if err != nil {
		return err
	}
	defer func() { _ = c.release() }()
	if provisioningChanges && s.thick() {
		// Some kernels cannot enable discard again, so reserve first. The
		// second allocate restores blocks that were discarded meanwhile.
		if err := thicken(ctx, c.File, r.Size); err != nil {
			return err
		}
		if err := setDiscard(ctx, c.use, false); err != nil {
			return err
		}
		if err := allocate(ctx, c.File, 0, r.Size); err != nil {
			return err
		}
		crashpoint.Hit("modify.thickened")
	}
	if err := errors.Join(poolfile.WriteSettings(c.File, poolfile.Settings(s)), c.Sync()); err != nil {
		return err
	}
	crashpoint.Hit("modify.noted")
	if err := applyReadAhead(ctx, c.use, s); err != nil {
		return err
	}
	if provisioningChanges && !s.thick() {
		return e.thinOut(ctx, c, r.Size)
	}
	return nil
}

func thicken(ctx context.Context, f *os.File, size int64) error {
	if err := unshare(ctx, f, size); err != nil {
		return err
	}
	return allocate(ctx, f, 0, size)
}

func setDiscard(ctx context.Context, u use, on bool) error {
	for _, d := range u.devices {
		if err := loop.SetDiscard(ctx, d, on); err != nil && !errors.Is(err, loop.ErrGone) {
			return err
		}
	}
	return nil
}

func applyReadAhead(ctx context.Context, u use, s settings) error {
	if s.ReadAhead == "" {
		return nil
	}
	kib, err := strconv.Atoi(s.ReadAhead)
	if err != nil {
		return err
	}
	for _, d := range u.devices {
		if err := loop.SetReadAhead(ctx, d, kib); err != nil && !errors.Is(err, loop.ErrGone) {
			return err
		}
	}
	return nil
}

// thinOut frees unused blocks. An attached device gets discard enabled, and its
// file system is trimmed.
func (e *Engine) thinOut(ctx context.Context, c *claimed, size int64) error {
	if !c.use.inUse() {
		return punchUnwritten(ctx, c.File, size)
	}
	err := setDiscard(ctx, c.use, true)
	if errors.Is(err, loop.ErrReattach) {
		e.logger.Info("discard not enabled before the next attach, volume keeps its blocks", "path", c.Name(), "device", c.use.String())
		return nil
	}
	if err != nil {
		return err
	}
	at, err := c.use.mountpoint(ctx)
	if err != nil || at == "" {
		return err
	}
	if _, err := fstrim.Trim(ctx, at); err != nil && !errors.Is(err, fstrim.ErrUnsupported) {
		return err
	}
	return nil
}

// punchUnwritten's caller prevents concurrent writes.
func punchUnwritten(ctx context.Context, f *os.File, size int64) error {
	var unwritten []volume.Range
	for extent, err := range fiemap.Extents(ctx, f, 0, size) {
		if errors.Is(err, fiemap.ErrUnsupported) {
			return nil
		}
		if err != nil {
			return err
		}
		if extent.Flags&fiemap.FlagUnwritten != 0 {
			unwritten = append(unwritten, volume.Range{Offset: int64(extent.Logical), Length: int64(extent.Length)})
		}
	}
	for _, r := range unwritten {
		if err := punch(f, r.Offset, r.Length); err != nil {
			return err
		}
	}
	return f.Sync()
}
