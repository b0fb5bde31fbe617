package spdk

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strconv"
	"time"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/backoff"
	"github.com/cleatproject/cleat/internal/crashpoint"
	rpc "github.com/cleatproject/cleat/spdk"
	"github.com/cleatproject/cleat/volume"
)

// SPDK clears clusters when they are freed, not when they are allocated. Where the
// bdev of a store cannot unmap, or could not before (uncleanStores), and after a
// target that ended while it deleted an lvol, free clusters have data of deleted
// volumes:
//
//   - a thick lvol shows it at once, a thin one around each first write to a
//     cluster, and a copy likewise in clusters that its source never had;
//   - a copy of an lvol with all clusters shows nothing: clusters are copied whole.
//
// So in such a store a new thick volume begins as a clone of an empty snapshot: it
// reads as zeros, and bdev_lvol_inflate writes zeros to each cluster that it
// allocates, as what is beyond the end of a parent is copied as zeros. A cluster
// that is allocated is never written: no repeat, and no other controller, can
// erase data. Others are refused, unless a parameter accepts old data.

// unclean uses what this call has read together with the lvols.
func (b *build) unclean(ctx context.Context, p place) (*unclean, error) {
	r := b.reads[p.String()]
	unmaps := r.base.SupportedIO.Unmap
	var err error
	if r.baseErr != nil || r.base.Name == "" || r.base.Name != p.store.BaseBdev {
		unmaps, err = b.Engine.unmaps(ctx, p.target, p.store.UUID, p.store.BaseBdev)
	}
	if err == nil && !unmaps {
		b.tokens[p.store.UUID], err = b.noteUnclean(ctx, p.target, p.store.UUID, true)
	}
	return p.uncleanBecause(unmaps, b.tokens[p.store.UUID]), err
}

// chooseClean is choose without the places where the volume could show data of
// deleted ones. zeroed: its clusters must be written with zeros.
func (b *build) chooseClean(ctx context.Context, places []place, fsType string) (p place, size int64, zeroed bool, err error) {
	var refused error
	for len(places) > 0 {
		p, size, err = b.choose(places, fsType)
		if err != nil {
			return place{}, 0, false, cmp.Or(refused, err)
		}
		if err = b.canTLS(ctx, p.target); err == nil {
			if zeroed, err = b.checkClean(ctx, p, size); err == nil {
				return p, size, zeroed, nil
			}
		}
		refused = err
		places = without(places, p)
	}
	return place{}, 0, false, refused
}

func without(places []place, p place) (others []place) {
	for _, other := range places {
		if other.target != p.target || other.store.UUID != p.store.UUID {
			others = append(others, other)
		}
	}
	return others
}

// firstZeroing is the first release that copies what is beyond the end of a parent
// as zeros; earlier ones read out of bounds.
const firstZeroing = "24.05"

// checkClean returns Precondition if a volume could show data of deleted ones.
func (b *build) checkClean(ctx context.Context, p place, size int64) (zeroed bool, err error) {
	if b.settings.oldData {
		return false, nil
	}
	u, err := b.unclean(ctx, p)
	if err != nil || u == nil {
		return false, err
	}
	if b.from != nil {
		full, err := p.target.isFull(ctx, p.store, b.from.At.uuid, size)
		if err == nil && !full {
			err = errs.Errorf(errs.Precondition, "%s, and a copy of %s with %d bytes could show it: it is thin, or smaller; %s, or set %s",
				u.why, b.from, size, u.remedy, keyOldData)
		}
		return false, err
	}
	if b.settings.thin {
		return false, errs.Errorf(errs.Precondition, "%s, and a thin volume could show it; set %s to false, %s, or set %s", u.why, keyThin, u.remedy, keyOldData)
	}
	v, err := p.target.Client.Version(ctx)
	if err != nil {
		return false, p.target.explain(err, "read the version")
	}
	if v.Major < 24 || v.Major == 24 && v.Minor < 5 {
		return false, errs.Errorf(errs.Precondition, "%s, and only SPDK %s and later can write zeros to a new volume, not %s; upgrade it, %s, or set %s", u.why, firstZeroing, v, u.remedy, keyOldData)
	}
	return true, nil
}

// recheck is checkClean for an interrupted creation: the target can have restarted
// with another bdev, or an earlier release has begun it. It is discarded if
// its lvol can have old data.
func (b *build) recheck(ctx context.Context, r record) (continues bool, err error) {
	t, err := b.target(r.Target)
	if err != nil {
		return true, nil // finish explains it
	}
	p := place{target: t}
	if p.store, err = t.Client.LvolStore(ctx, r.Store); errors.Is(err, rpc.NotFound) {
		err = t.hasStore(ctx, r.Store, r.StoreName)
	}
	if err != nil {
		return true, incomplete(r, t.explain(err, "read lvol store %s", r.StoreName))
	}
	switch zeroed, err := b.checkClean(ctx, p, r.Size); {
	case errs.KindOf(err) == errs.Precondition:
		return false, b.abandon(ctx, r, err)
	case err != nil:
		return true, incomplete(r, err)
	case zeroed && !r.Zeroed:
		if err := b.discard(ctx, r); err != nil {
			return true, incomplete(r, err)
		}
		return false, nil
	}
	return true, nil
}

// isFull reports whether an lvol, or a snapshot below it, has all clusters of a
// size.
func (t *target) isFull(ctx context.Context, s rpc.LvolStore, name string, size int64) (bool, error) {
	for {
		bdev, err := t.Client.Bdev(ctx, name)
		if errors.Is(err, rpc.NotFound) {
			err = errs.Errorf(errs.Unavailable, "the target does not show it now: %v", err)
		}
		l := bdev.Driver.Lvol
		if err != nil || l == nil {
			return false, t.explain(err, "read lvol %s", name)
		}
		if l.AllocatedClusters*s.ClusterSize >= size {
			return true, nil
		}
		if l.BaseSnapshot == "" {
			return false, nil
		}
		name = alias(s.Name, l.BaseSnapshot)
	}
}

// zero makes a new lvol, which has no size yet, a thick one with zeros. Each step
// follows from the state of the lvol: a repeat continues.
func (b *build) zero(ctx context.Context, t *target, r record, bdev rpc.Bdev) (rpc.Bdev, error) {
	ctx, cancel := context.WithTimeout(ctx, b.zeroTime)
	defer cancel()
	l := bdev.Driver.Lvol
	switch {
	case l == nil:
		return bdev, errs.Errorf(errs.Precondition, "bdev %s is no lvol", bdev.Name)
	case !l.Thin:
		return b.fill(ctx, t, r, bdev.UUID) // by an earlier call, or still in progress
	case l.BaseSnapshot == r.source(): // of an earlier call
	case bdev.Size() > 0 || l.BaseSnapshot != "":
		return bdev, errs.Errorf(errs.Precondition, "lvol %s is not what this driver has created; delete or rename it", bdev.UUID)
	default:
		err := b.alone(ctx, r.Store, func() error { return second(t.Client.SnapshotLvol(ctx, bdev.UUID, r.source())) })
		if err != nil {
			return bdev, err
		}
		crashpoint.Hit("zero.snapshot")
	}
	if bdev.Size() < r.Size {
		if err := t.Client.ResizeLvol(ctx, bdev.UUID, r.Size/mib); err != nil {
			return bdev, err
		}
		crashpoint.Hit("zero.resized")
	}
	return b.inflate(ctx, t, r, bdev.UUID)
}

// inflate makes an lvol thick. One lvol of a store is inflated at a time: after a kill,
// SPDK 26.09-pre does not load those that were inflated together. So those that
// earlier calls have begun, whose creations are not complete, are inflated first: the
// target goes on with them when such a call has ended.
func (b *build) inflate(ctx context.Context, t *target, r record, uuid string) (rpc.Bdev, error) {
	unlock, err := b.locks.Lock(ctx, "inflate:"+r.Store)
	if err != nil {
		return rpc.Bdev{}, otherZeros(ctx, "of this controller")
	}
	defer unlock()
	if err := b.claimZeros(ctx, t, r); err != nil {
		return rpc.Bdev{}, err
	}
	all, err := b.records(ctx)
	if err != nil {
		return rpc.Bdev{}, err
	}
	for _, other := range all {
		if other.Name == r.Name || other.Store != r.Store || !other.isZeroing() {
			continue
		}
		if err := b.fillOther(ctx, t, other); err != nil {
			return rpc.Bdev{}, err
		}
	}
	return b.fill(ctx, t, r, uuid)
}

// fillOther waits for the zeros of another volume, unless it is deleted or stands still.
func (b *build) fillOther(ctx context.Context, t *target, other record) error {
	bdev, err := t.Client.Bdev(ctx, alias(other.StoreName, lvolName(other.Name)))
	if err == nil && bdev.Size() >= other.Size { // the step before inflation
		_, err = b.fill(ctx, t, other, bdev.UUID)
	}
	switch kind := errs.KindOf(err); {
	case ctx.Err() != nil:
		return otherZeros(ctx, "of snapshot "+other.source())
	case err == nil, kind == errs.NotFound, kind == errs.Exhausted:
		return nil
	}
	return err
}

func otherZeros(ctx context.Context, which string) error {
	return errs.Errorf(errs.Unavailable, "zeros are being written to another volume of the store, %s: %w", which, context.Cause(ctx))
}

// zerosName is the name of an lvol, without a size, that a store has while zeros are
// written to one of its volumes. SPDK creates only one of a name, so it excludes
// other controllers, and other releases, that use the store. It is a clone of the
// snapshot of that volume, so it says from its beginning whose it is. reap removes it.
const zerosName = "cleat-zeros"

// claimZeros creates the lvol zerosName for a volume. If a volume with a record has it,
// its zeros are completed first; one of another release is waited for.
func (b *build) claimZeros(ctx context.Context, t *target, r record) error {
	for pause := zeroPoll; ; pause = min(2*pause, maxZeroPoll) {
		err := b.alone(ctx, r.Store, func() error {
			return second(t.Client.CloneLvol(ctx, alias(r.StoreName, r.source()), zerosName))
		})
		if !errors.Is(err, rpc.Exists) {
			return err
		}
		bdev, err := t.appearing(ctx, alias(r.StoreName, zerosName), err)
		if err != nil && !errors.Is(err, rpc.NotFound) {
			return err
		}
		var source string
		if l := bdev.Driver.Lvol; l != nil {
			source = l.BaseSnapshot
		}
		if source == r.source() {
			return nil
		}
		all, err := b.records(ctx)
		if err != nil {
			return err
		}
		own := slices.IndexFunc(all, func(other record) bool { return other.Store == r.Store && other.source() == source })
		if own >= 0 && all[own].isZeroing() {
			err = b.fillOther(ctx, t, all[own])
		}
		// Without a snapshot, it was left when that was removed.
		if done := source == "" || own >= 0 && !all[own].Deleting; err == nil && done {
			err = b.releaseZeros(ctx, t, r.StoreName, source)
		}
		if err != nil {
			return err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return otherZeros(ctx, "as its lvol cleat-zeros is a clone of "+source)
		}
	}
}

// isZeroing reports whether zeros are, or will be, written to the volume. One that is
// complete or being deleted is left alone: SPDK loses an lvol that it opens to inflate
// it when it is deleted.
func (r record) isZeroing() bool { return r.Zeroed && r.UUID == "" && !r.Deleting }

// endZeros waits until an interrupted creation gets no zeros any more.
func (e *Engine) endZeros(ctx context.Context, t *target, r record) error {
	claim, err := t.Client.Bdev(ctx, alias(r.StoreName, zerosName))
	if l := claim.Driver.Lvol; errors.Is(err, rpc.NotFound) || err == nil && (l == nil || l.BaseSnapshot != r.source()) {
		return nil
	}
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, e.zeroTime)
	defer cancel()
	b := &build{Engine: e}
	return b.fillOther(ctx, t, r)
}

// releaseZeros deletes the lvol zerosName of a store if it is a clone of a snapshot.
func (e *Engine) releaseZeros(ctx context.Context, t *target, storeName, source string) error {
	bdev, err := t.Client.Bdev(ctx, alias(storeName, zerosName))
	if l := bdev.Driver.Lvol; err == nil && l != nil && l.BaseSnapshot == source {
		err = e.alone(ctx, l.StoreUUID, func() error { return t.Client.DeleteLvol(ctx, bdev.UUID) })
	}
	if err == nil || errors.Is(err, rpc.NotFound) {
		return nil
	}
	return errs.Errorf(errs.Unavailable, "delete lvol %s: %v", zerosName, err)
}

// fill starts bdev_lvol_inflate and waits until the lvol is thick, until ctx ends: the
// target goes on, and a repeat waits again. SPDK refuses a second one of the same lvol,
// so it is also started again when a target has restarted, and shows whether the first
// has ended: until then the disk can have the clone, which would be lost with the
// snapshot of the volume.
func (b *build) fill(ctx context.Context, t *target, r record, uuid string) (rpc.Bdev, error) {
	before := int64(-1)
	for pause := (backoff.Backoff{First: zeroPoll, Most: maxZeroPoll}); ; {
		store, err := t.Client.LvolStore(ctx, r.Store) // first: the lvol takes from its free space
		if err != nil {
			return rpc.Bdev{}, err
		}
		bdev, err := t.Client.Bdev(ctx, uuid)
		if err != nil {
			return bdev, err
		}
		l := bdev.Driver.Lvol
		if l == nil {
			return bdev, nil
		}
		if !l.Thin {
			if err = t.Client.InflateLvol(ctx, uuid); !errors.Is(err, rpc.Busy) {
				return bdev, err
			}
		}
		done := l.AllocatedClusters * store.ClusterSize
		if l.Thin && (done == before || before < 0) {
			if missing := bdev.Size() - done; missing > store.Free() {
				return bdev, errs.Errorf(errs.Exhausted, "%d more bytes do not fit into the store, which has %d free", missing, store.Free())
			}
			if err := t.Client.StartInflate(ctx, uuid); err != nil {
				return bdev, err
			}
			crashpoint.Hit("zero.started")
		}
		before = done
		if pause.Wait(ctx) != nil {
			return bdev, errs.Errorf(errs.Unavailable, "zeros are being written to %d bytes, of which %d are done: %w", bdev.Size(), done, context.Cause(ctx))
		}
	}
}

const (
	zeroPoll    = 10 * time.Millisecond
	maxZeroPoll = time.Second
)

// canGrow returns Precondition for a raw block volume whose new part could show
// data of deleted volumes. A file system shows only what was written to it.
func (e *Engine) canGrow(ctx context.Context, p place, r record) error {
	if s, err := parseSettings(r.Parameters); err != nil || s.oldData || r.Content == volume.Filesystem {
		return err
	}
	u, err := e.unclean(ctx, p)
	if err == nil && u != nil {
		err = errs.Errorf(errs.Precondition, "%s, and the new part of block volume %s could show it; %s, or copy the data to a larger volume", u.why, r.id(), u.remedy)
	}
	return err
}

// showsOldData returns the condition of a volume that can show data of deleted
// ones.
func (e *Engine) showsOldData(ctx context.Context, t *target, r record, bdev rpc.Bdev) ([]volume.Condition, error) {
	l := bdev.Driver.Lvol
	if l == nil || !l.Thin {
		return nil, nil
	}
	named := rpc.LvolStore{UUID: r.Store, Name: r.StoreName, BaseBdev: l.BaseBdev}
	u, err := e.unclean(ctx, place{t, named})
	if err != nil || u == nil {
		return nil, err
	}
	store, err := t.Client.LvolStore(ctx, r.Store)
	if err != nil {
		return nil, t.explain(err, "read lvol store %s", r.StoreName)
	}
	full, err := t.isFull(ctx, store, bdev.UUID, bdev.Size())
	if err != nil || full {
		return nil, err
	}
	return []volume.Condition{volume.NewCondition(volume.Degraded, volume.ReasonOldDataVisible,
		"this thin volume can show data of deleted ones: "+u.why+"; "+u.remedy)}, nil
}

// thinVolumes returns the number of thin volumes in each store, by UUID.
func (e *Engine) thinVolumes(ctx context.Context) (map[string]int, error) {
	all, err := e.records(ctx)
	thin := map[string]int{}
	for _, r := range all {
		if r.isVolume() && r.isThin() {
			thin[r.Store]++
		}
	}
	return thin, err
}

// isThin reports whether a volume was created without clusters of its own.
func (r record) isThin() bool {
	thin, err := strconv.ParseBool(r.Parameters[keyThin])
	return err != nil || thin || r.FromVolume != "" || r.FromSnap != ""
}
