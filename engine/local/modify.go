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

// Modify implements volume.Modifier. What changes is written onto the backing
// file, where the next attach reads it, and applied to the device at once when
// there is one. Made thick, a volume gets blocks for all its bytes; made thin,
// it gives back those that were never written, and of an attached file system
// those that are not used; where the kernel cannot let a device discard again,
// that waits for the next attach.
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
	if r.Becoming != nil { // an earlier change did not come to its end
		now = *r.Becoming
	}
	wanted, err := parseSettings(now, parameters)
	if err != nil {
		return volume.Volume{}, err
	}
	if wanted == r.Settings && r.Becoming == nil {
		return e.volume(id, r), nil
	}
	if err := e.writable(); err != nil {
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

// modify notes what the volume is to become, makes it so, and notes that it
// is. When there is no room for a thick volume nothing changes.
func (e *Engine) modify(ctx context.Context, id volume.ID, r *volumeRecord, wanted settings) error {
	before := r.Settings
	kindToo := before.thick() != wanted.thick() || r.Becoming != nil
	if err := e.promiseChange(ctx, r, wanted); err != nil {
		return err
	}
	r.Becoming = &wanted
	if err := e.putVolume(ctx, id, *r); err != nil {
		e.unpromiseChange(r.Size, before, wanted)
		return err
	}
	crashpoint.Hit("modify.intent")
	if err := e.apply(ctx, id, *r, wanted, kindToo); err != nil {
		e.unpromiseChange(r.Size, before, wanted)
		return errors.Join(err, e.takeBack(context.WithoutCancel(ctx), id, r, kindToo))
	}
	crashpoint.Hit("modify.applied")
	r.Settings, r.Becoming = wanted, nil
	err := e.putVolume(ctx, id, *r)
	if before.thick() != wanted.thick() {
		e.settled(r.Size, wanted.thick())
		e.budget.release(r.Size, before.thick())
	}
	return err
}

// promiseChange takes the room of the new kind before that of the old one is
// given back.
func (e *Engine) promiseChange(ctx context.Context, r *volumeRecord, wanted settings) error {
	if r.Settings.thick() == wanted.thick() {
		return nil
	}
	if !wanted.thick() {
		e.budget.record(r.Size, false)
		return nil
	}
	// The thin promise that stands is part of the one that is asked for.
	e.budget.release(r.Size, false)
	_, err := e.promise(ctx, r.Size, true)
	e.budget.record(r.Size, false)
	return err
}

func (e *Engine) unpromiseChange(size int64, before, wanted settings) {
	if before.thick() == wanted.thick() {
		return
	}
	e.settled(size, wanted.thick())
	e.budget.release(size, wanted.thick())
}

// takeBack puts the volume back to what it was, as far as that goes.
func (e *Engine) takeBack(ctx context.Context, id volume.ID, r *volumeRecord, kindToo bool) error {
	if err := e.apply(ctx, id, *r, r.Settings, kindToo); err != nil {
		return err
	}
	r.Becoming = nil
	return e.putVolume(ctx, id, *r)
}

// resumeModify ends a change that was cut off: nobody was told of it, but
// half of it may be on the file.
func (e *Engine) resumeModify(ctx context.Context, id volume.ID, r volumeRecord) error {
	err := e.modify(ctx, id, &r, *r.Becoming)
	if err == nil {
		return nil
	}
	e.logger.Warn("a change of a volume that was cut off is taken back", "volume", id, "reason", err)
	if r.Becoming == nil {
		return nil
	}
	return e.takeBack(ctx, id, &r, true)
}

// apply makes the file and its devices what the settings say; kindToo also
// what makes it thick or thin.
func (e *Engine) apply(ctx context.Context, id volume.ID, r volumeRecord, s settings, kindToo bool) error {
	name := volumesDir + "/" + string(id)
	c, err := e.claim(ctx, name, r.Size)
	if err != nil {
		return err
	}
	defer func() { _ = c.release() }()
	if kindToo && s.thick() {
		// Discards are switched off only when the room is sure, because some
		// kernels cannot switch them on again; then what one of them undid
		// meanwhile is reserved once more.
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
	if kindToo && !s.thick() {
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

// thinOut gives back the blocks that hold nothing. What is attached is told
// that it may discard; its file system then says what it does not use.
func (e *Engine) thinOut(ctx context.Context, c *claimed, size int64) error {
	if !c.use.inUse() {
		return punchUnwritten(ctx, c.File, size)
	}
	err := setDiscard(ctx, c.use, true)
	if errors.Is(err, loop.ErrReattach) {
		e.logger.Info("the kernel lets this device discard only when it is attached anew; until then the volume keeps its blocks", "file", c.Name(), "device", c.use.String())
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

// punchUnwritten gives back the reserved blocks that were never written. The
// caller makes sure that nobody writes meanwhile.
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
