package spdk

import (
	"context"
	"maps"

	"github.com/cleatproject/cleat/engine/newvolume"
	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/crashpoint"
	rpc "github.com/cleatproject/cleat/spdk"
	"github.com/cleatproject/cleat/volume"
)

// Expand implements volume.Engine. Initiators see the new size by themselves.
func (e *Engine) Expand(ctx context.Context, id volume.ID, size volume.SizeRange) (out volume.Volume, err error) {
	err = e.locked(ctx, id, func(r record) error {
		out, err = e.expand(ctx, r, size)
		return err
	})
	return out, err
}

func (e *Engine) expand(ctx context.Context, r record, size volume.SizeRange) (volume.Volume, error) {
	if err := newvolume.CheckSize(size); err != nil {
		return volume.Volume{}, err
	}
	t, err := e.target(r.Target)
	if err != nil {
		return volume.Volume{}, err
	}
	bdev, err := t.Client.Bdev(ctx, r.UUID) // an interrupted call can have grown it
	if err != nil {
		return volume.Volume{}, t.explain(e.missing(ctx, t, r, err), "read volume %s", r.id())
	}
	if size.Limit != 0 && bdev.Size() > size.Limit {
		return volume.Volume{}, errs.Errorf(errs.OutOfRange, "volume %s has %d bytes; the request is for %s, and volumes cannot shrink", r.id(), bdev.Size(), size)
	}
	if bdev.Size() < size.Required {
		if bdev, err = e.grow(ctx, t, r, size, bdev.Size()); err != nil {
			return volume.Volume{}, err
		}
		crashpoint.Hit("expand.grown")
	}
	if bdev.Size() != r.Size {
		grown := r
		grown.Size = bdev.Size()
		if err := e.put(ctx, &r, grown); err != nil {
			return volume.Volume{}, err
		}
		r = grown
	}
	return e.volume(r), nil
}

func (e *Engine) grow(ctx context.Context, t *target, r record, size volume.SizeRange, from int64) (bdev rpc.Bdev, err error) {
	p := place{target: t}
	if p.store, err = t.Client.LvolStore(ctx, r.Store); err != nil {
		return bdev, t.explain(e.missing(ctx, t, r, err), "read lvol store %s", r.StoreName)
	}
	want, err := size.Choose(from, from, p.granule())
	if err != nil {
		return bdev, err
	}
	if want > p.store.Size() {
		return bdev, errs.Errorf(errs.OutOfRange, "volume %s cannot have %d bytes: %s has %d", r.id(), want, p, p.store.Size())
	}
	if err := e.canGrow(ctx, p, r); err != nil {
		return bdev, err
	}
	if err := t.Client.ResizeLvol(ctx, r.UUID, want/mib); err != nil {
		if errs.KindOf(err) == errs.Exhausted {
			return bdev, errs.Errorf(errs.OutOfRange, "volume %s cannot have %d bytes: it is thick, and %s has %d bytes free: %w", r.id(), want, p, p.store.Free(), err)
		}
		return bdev, t.explain(e.missing(ctx, t, r, err), "grow volume %s", r.id())
	}
	bdev, err = t.Client.Bdev(ctx, r.UUID)
	return bdev, t.explain(e.missing(ctx, t, r, err), "read volume %s", r.id())
}

// Modify implements volume.Modifier. The change is recorded first: a repeat, or
// the next export, applies it.
func (e *Engine) Modify(ctx context.Context, id volume.ID, parameters map[string]string) (out volume.Volume, err error) {
	changes, err := parseAttributes(parameters)
	if err != nil {
		return volume.Volume{}, err
	}
	err = e.locked(ctx, id, func(r record) error {
		if len(changes) == 0 {
			out = e.volume(r)
			return nil
		}
		changed := r
		changed.Attributes = maps.Clone(r.Attributes)
		if changed.Attributes == nil {
			changed.Attributes = map[string]string{}
		}
		maps.Copy(changed.Attributes, changes)
		if err := e.put(ctx, &r, changed); err != nil {
			return err
		}
		crashpoint.Hit("modify.recorded")
		// SPDK takes the limits of an exported lvol only.
		if err := e.enforce(ctx, changed, false); err != nil {
			return err
		}
		t, err := e.target(r.Target)
		if err == nil {
			err = t.explain(e.missing(ctx, t, r, t.Client.SetQoS(ctx, r.UUID, qosOf(changed.Attributes))), "limit volume %s", id)
		}
		out = e.volume(changed)
		return err
	})
	return out, err
}
