//go:build ceph

package ceph

import (
	"context"
	"errors"
	"fmt"

	"github.com/ceph/go-ceph/rbd"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/volume"
)

// diffWindow is how much of a volume is compared between two looks at the
// context.
const diffWindow = 4 << 30

// Allocated implements volume.Deltas.
func (e *Engine) Allocated(ctx context.Context, id volume.SnapshotID, from int64) (volume.BlockMap, error) {
	target, err := e.diffTarget(ctx, id, from)
	if err != nil {
		return volume.BlockMap{}, err
	}
	return e.blockMap(ctx, target, nil, from), nil
}

// Delta implements volume.Deltas.
func (e *Engine) Delta(ctx context.Context, base, target volume.SnapshotID, from int64) (volume.BlockMap, error) {
	to, err := e.diffTarget(ctx, target, from)
	if err != nil {
		return volume.BlockMap{}, err
	}
	since, err := e.diffTarget(ctx, base, 0)
	if err != nil {
		return volume.BlockMap{}, err
	}
	switch {
	case since.image.id != to.image.id || since.image.pool != to.image.pool:
		return volume.BlockMap{}, errs.Errorf(errs.Invalid, "snapshots %s and %s are of different volumes", base, target)
	case since.snap.id == to.snap.id:
		return volume.BlockMap{Size: to.snap.size, Ranges: func(func(volume.Range, error) bool) {}}, nil
	case since.snap.id > to.snap.id:
		return volume.BlockMap{}, errs.Errorf(errs.Precondition, "snapshot %s is newer than %s, and Ceph compares with older ones only", base, target)
	}
	return e.blockMap(ctx, to, &since.snap, from), nil
}

type diffTarget struct {
	image *image
	snap  snapshot
}

func (e *Engine) diffTarget(ctx context.Context, id volume.SnapshotID, from int64) (diffTarget, error) {
	return call(ctx, e.Connection, "read snapshot "+errs.Quote(string(id)), func() (diffTarget, error) {
		i, s, err := e.findSnapshot(id)
		if err == nil && (from < 0 || from > s.size) {
			err = errs.Errorf(errs.OutOfRange, "offset %d is outside the %d bytes of snapshot %s", from, s.size, id)
		}
		return diffTarget{i, s}, err
	})
}

// blockMap lists differences of a snapshot from an older one, or from nothing.
func (e *Engine) blockMap(ctx context.Context, t diffTarget, base *snapshot, from int64) volume.BlockMap {
	return volume.BlockMap{Size: t.snap.size, Ranges: func(yield func(volume.Range, error) bool) {
		var last volume.Range // not yet yielded: the next can touch it
		// Ceph truncates the first range, which then is no whole block.
		for offset := from &^ (1<<objectOrder - 1); offset < t.snap.size; offset += diffWindow {
			window := volume.Range{Offset: offset, Length: min(diffWindow, t.snap.size-offset)}
			found, err := call(ctx, e.Connection, "compare snapshots", func() ([]volume.Range, error) { return t.diff(base, window) })
			if err != nil {
				yield(volume.Range{}, err)
				return
			}
			for _, r := range found {
				if r.End() <= from {
					continue
				}
				if last.Length > 0 && r.Offset <= last.End() {
					last.Length = max(last.End(), r.End()) - last.Offset
					continue
				}
				if last.Length > 0 && !yield(last, nil) {
					return
				}
				last = r
			}
		}
		if last.Length > 0 {
			yield(last, nil)
		}
	}}
}

// diff opens the image for reading: an image open for writing would take the
// exclusive lock from the node that uses it. A nil base is nothing.
func (t diffTarget) diff(base *snapshot, window volume.Range) (found []volume.Range, err error) {
	r, err := rbd.OpenImageByIdReadOnly(t.image.pool.io, t.image.id, rbd.NoSnapshot)
	if err != nil {
		return nil, explain(err, "open image %s", t.image.id)
	}
	defer closeImage(r, &err)
	if err := r.SetSnapByID(t.snap.id); err != nil {
		return nil, explain(err, "open a snapshot of image %s", t.image.id)
	}
	config := rbd.DiffIterateConfig{
		SnapName: rbd.NoSnapshot, Offset: uint64(window.Offset), Length: uint64(window.Length),
		IncludeParent: rbd.IncludeParent, WholeObject: rbd.DisableWholeObject,
		Callback: func(offset, length uint64, exists int, _ any) int {
			if exists != 0 || base != nil { // a discarded block is a difference
				found = append(found, volume.Range{Offset: int64(offset), Length: int64(length)})
			}
			return 0
		},
	}
	switch {
	case base == nil:
		err = r.DiffIterate(config)
	case base.group == nil:
		config.SnapName = snapName(base.hash)
		err = r.DiffIterate(config)
	default: // a group's member has no name
		err = onThread(func() error {
			return r.DiffIterateByID(rbd.DiffIterateByIDConfig{
				FromSnapID: base.id, Offset: config.Offset, Length: config.Length,
				IncludeParent: config.IncludeParent, WholeObject: config.WholeObject, Callback: config.Callback,
			})
		})
	}
	if errors.Is(err, rbd.ErrNotImplemented) {
		return nil, errs.Errorf(errs.Precondition, "the librbd of this controller cannot compare with a group's member: %v", err)
	}
	if err != nil {
		return nil, fmt.Errorf("compare snapshots of image %s: %w", t.image.id, explain(err, "diff"))
	}
	return found, nil
}
