package spdk

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/cleatproject/cleat/engine/newvolume"
	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/crashpoint"
	rpc "github.com/cleatproject/cleat/spdk"
	"github.com/cleatproject/cleat/volume"
)

// Create implements volume.Engine. The steps: record where the lvol will be,
// create it, record its UUID, export it. No client is admitted yet.
func (e *Engine) Create(ctx context.Context, req volume.CreateRequest) (volume.Volume, error) {
	if err := newvolume.Check(req); err != nil {
		return volume.Volume{}, err
	}
	s, err := parseSettings(req.Parameters)
	if err != nil {
		return volume.Volume{}, err
	}
	req.Parameters = maps.Clone(req.Parameters)
	unlock, err := e.lock(ctx, volumeKey(req.Name))
	if err != nil {
		return volume.Volume{}, err
	}
	defer unlock()
	b := &build{Engine: e, req: req, settings: s}
	return b.run(ctx)
}

// lock waits for other calls on the same objects.
func (e *Engine) lock(ctx context.Context, keys ...string) (unlock func(), err error) {
	if unlock, err = e.locks.Lock(ctx, keys...); err != nil {
		return nil, errs.Errorf(errs.Unavailable, "wait for another call on the same volume or snapshot: %w", context.Cause(ctx))
	}
	return unlock, nil
}

func volumeKey(name string) string   { return "name:" + name }
func snapshotKey(name string) string { return "snapshot:" + name }

// build creates one volume.
type build struct {
	*Engine
	req      volume.CreateRequest
	settings settings
	from     *origin // nil: no source
	chosen   *place  // by this call, which has found no lvol of the name; nil: by an earlier one
	reads    map[string]read
	tokens   map[string]string // of unclean stores, by UUID
}

// origin is the source of a new volume.
type origin = newvolume.Origin[originLvol]

type originLvol struct {
	target, store, uuid string
	isSnapshot          bool
}

func (b *build) run(ctx context.Context) (volume.Volume, error) {
	r, found, err := b.begun(ctx)
	if err != nil {
		return volume.Volume{}, err
	}
	switch {
	case found && r.Deleting:
		if err := b.finishDelete(ctx, r, nil); err != nil {
			return volume.Volume{}, incomplete(r, err)
		}
		found = false
	case found && r.UUID != "":
		return b.volume(r), b.matches(r)
	case found && (b.matches(r) != nil || b.isRetired(r.Target)):
		// No call has returned the volume of the other request.
		if err := b.discard(ctx, r); err != nil {
			return volume.Volume{}, incomplete(r, err)
		}
		found = false
	}
	if b.from, err = b.originOf(ctx, b.req.Source); err != nil {
		if found && errs.KindOf(err) == errs.NotFound { // no repeat can complete it
			err = b.abandon(ctx, r, err)
		}
		return volume.Volume{}, err
	}
	if found {
		if found, err = b.recheck(ctx, r); err != nil {
			return volume.Volume{}, err
		}
	}
	if !found {
		if r, err = b.begin(ctx); err != nil {
			return volume.Volume{}, err
		}
		if r.Adopted {
			return b.volume(r), nil
		}
	}
	return b.finish(ctx, r)
}

// matches returns Exists unless the volume of a record is what is requested.
func (b *build) matches(r record) error {
	if err := newvolume.Matches(b.req, b.volume(r), r.Parameters); err != nil {
		return err
	}
	if t := b.targets[r.Target]; t != nil && len(b.req.Topology) > 0 && !slices.ContainsFunc(b.req.Topology, t.reachedFrom) {
		return errs.Errorf(errs.Exists, "volume %s exists on target %s with the topology %v, which none of the requested topologies %v reaches",
			errs.Quote(r.Name), r.Target, t.Topology, b.req.Topology)
	}
	return nil
}

// begin chooses a place and records it.
func (b *build) begin(ctx context.Context) (record, error) {
	if err := b.spare(ctx); err != nil {
		return record{}, err
	}
	fsType, err := newvolume.FSType(b.req, b.from)
	if err != nil {
		return record{}, err
	}
	var reads sync.WaitGroup
	reads.Go(func() { b.reads = b.readEarly(ctx) })
	places, err := b.places(ctx)
	if reads.Wait(); err != nil {
		return record{}, err
	}
	r := record{
		Name: b.req.Name, Content: b.req.Content, FSType: fsType, FromVolume: b.req.Source.Volume, FromSnap: b.req.Source.Snapshot,
		Parameters: b.req.Parameters, Attributes: b.settings.attributes, Ephemeral: b.req.Ephemeral,
		Created: time.Now().UTC().Truncate(time.Millisecond),
	}
	known, places, err := b.unrecorded(ctx, r, places)
	if err != nil {
		return record{}, err
	}
	if known != nil {
		return *known, nil
	}
	p, size, zeroed, err := b.chooseClean(ctx, places, fsType)
	if err != nil {
		return record{}, err
	}
	r.Target, r.Store, r.StoreName, r.Size, r.FirstSize, r.Zeroed = p.target.Name, p.store.UUID, p.store.Name, size, size, zeroed
	if err := b.putNew(ctx, p, r); err != nil {
		return record{}, err
	}
	crashpoint.Hit("create.recorded")
	b.chosen = &p
	return r, nil
}

// finish creates the lvol of a record, and exports it. Its errors but those of a
// creation that was discarded are Unavailable: after others, a provisioner whose
// claim is deleted does not call DeleteVolume.
func (b *build) finish(ctx context.Context, r record) (volume.Volume, error) {
	t, err := b.target(r.Target)
	if err != nil {
		return volume.Volume{}, incomplete(r, err)
	}
	made, err := b.lvol(ctx, t, r)
	if err != nil {
		if kind := errs.KindOf(err); kind == errs.Exhausted || kind == errs.Invalid || errors.Is(err, errLost) {
			return volume.Volume{}, b.abandon(ctx, r, err) // a repeat can choose another place
		}
		return volume.Volume{}, incomplete(r, err)
	}
	crashpoint.Hit("create.created")
	done := r
	done.UUID, done.Size, done.FirstSize = made.uuid, made.size, made.size
	if err := b.put(ctx, &r, done); err != nil {
		return volume.Volume{}, incomplete(r, err)
	}
	crashpoint.Hit("create.completed")
	if r.hasSource() {
		b.reap(ctx, t, alias(r.StoreName, r.source()))
	}
	if err := b.enforce(ctx, done, made.isNew); err != nil {
		return volume.Volume{}, incomplete(r, fmt.Errorf("volume %s is created, but not exported: %w", done.id(), err))
	}
	crashpoint.Hit("create.exported")
	return b.volume(done), nil
}

// abandon discards a creation that has failed, and returns why it failed.
func (b *build) abandon(ctx context.Context, r record, failure error) error {
	if err := b.discard(context.WithoutCancel(ctx), r); err != nil {
		return incomplete(r, errors.Join(failure, err))
	}
	return failure
}

func incomplete(r record, err error) error {
	return errs.Errorf(errs.Unavailable, "the creation of volume %s is not complete, repeat the call: %w", errs.Quote(r.Name), err)
}

// built is the lvol of a new volume.
type built struct {
	uuid  string
	size  int64 // bytes
	isNew bool  // created by this call, so that nothing exports it
}

// lvol returns the lvol of a record, and creates it if an earlier call has not.
func (b *build) lvol(ctx context.Context, t *target, r record) (built, error) {
	name := alias(r.StoreName, lvolName(r.Name))
	var bdev rpc.Bdev
	err := error(rpc.NotFound)
	if b.chosen == nil {
		bdev, err = t.Client.Bdev(ctx, name)
	}
	isNew := false
	if errors.Is(err, rpc.NotFound) {
		uuid, failure := b.make(ctx, t, r)
		isNew = failure == nil
		switch {
		case errors.Is(failure, rpc.Exists) && b.chosen != nil:
			return built{}, b.withdraw(ctx, t, r)
		case failure != nil && !errors.Is(failure, rpc.Exists):
			return built{}, t.explain(b.explainMake(ctx, t, r, failure), "create volume %s in lvol store %s", errs.Quote(r.Name), r.StoreName)
		case isNew && b.chosen != nil && b.from == nil && !r.Zeroed:
			return built{uuid, b.chosen.sizeOf(r.Size), true}, nil
		}
		bdev, err = t.appearing(ctx, name, failure)
	}
	switch {
	case err == nil && r.Zeroed:
		bdev, err = b.zero(ctx, t, r, bdev)
	case err == nil && bdev.Size() < r.Size:
		crashpoint.Hit("create.cloned")
		if err = t.Client.ResizeLvol(ctx, bdev.UUID, r.Size/mib); err == nil {
			bdev, err = t.Client.Bdev(ctx, name)
		}
	}
	if errors.Is(err, rpc.NotFound) {
		err = errs.Errorf(errs.Unavailable, "the lvol is being created or deleted, or has vanished with a restart of the target: %v", err)
	}
	return built{bdev.UUID, bdev.Size(), isNew}, t.explain(err, "read volume %s in lvol store %s", errs.Quote(r.Name), r.StoreName)
}

const mib = 1 << 20

// appearing returns an lvol after a request to create it. After Exists it is possible
// that an earlier request is still executed: the name is used before the lvol is
// shown. A proxy of SPDK handles no other call while it waits.
func (t *target) appearing(ctx context.Context, name string, created error) (rpc.Bdev, error) {
	if created == nil {
		return t.Client.Bdev(ctx, name)
	}
	return t.Client.AwaitBdev(ctx, name, time.Second)
}

// make creates the lvol of a record, and returns its UUID.
func (b *build) make(ctx context.Context, t *target, r record) (uuid string, err error) {
	name := lvolName(r.Name)
	switch {
	case b.from == nil:
		l := rpc.LvolCreate{StoreUUID: r.Store, Name: name, SizeMiB: r.Size / mib, Thin: b.settings.thin, ClearMethod: b.settings.clear}
		if r.Zeroed {
			l.SizeMiB, l.Thin = 0, true
		}
		return t.Client.CreateLvol(ctx, l)
	case b.from.At.isSnapshot:
		err = b.alone(ctx, r.Store, func() error {
			uuid, err = t.Client.CloneLvol(ctx, b.from.At.uuid, name)
			return err
		})
		return uuid, err
	}
	err = b.alone(ctx, r.Store, func() error {
		if _, err := t.Client.SnapshotLvol(ctx, b.from.At.uuid, r.source()); err != nil && !errors.Is(err, rpc.Exists) {
			return err
		}
		crashpoint.Hit("create.frozen")
		uuid, err = t.Client.CloneLvol(ctx, alias(r.StoreName, r.source()), name)
		return err
	})
	return uuid, err
}

func second[T any](_ T, err error) error { return err }

// explainMake explains NotFound of make. Unavailable: the target does not have the
// store or the source now, or was loading them. It has errLost if the source is
// lost: no repeat can complete the creation.
func (b *build) explainMake(ctx context.Context, t *target, r record, err error) error {
	if !errors.Is(err, rpc.NotFound) {
		return err
	}
	if b.from != nil {
		switch _, now := b.shown(ctx, t, r.Store, r.StoreName, b.from.At.uuid); {
		case errors.Is(now, rpc.NotFound):
			return lostError(t, "the source of the new volume,", b.from.String()+",", b.from.At.uuid, r.StoreName)
		case now != nil:
			return now
		}
	} else if missing := t.hasStore(ctx, r.Store, r.StoreName); missing != nil {
		return missing
	}
	return errs.Errorf(errs.Unavailable, "target %s was loading its lvols: %v", t.Name, err)
}

// discard removes an interrupted creation, whose volume no call has returned.
// The record says so first: another controller cannot complete it any more.
func (e *Engine) discard(ctx context.Context, r record) error {
	marked := r
	marked.Deleting = true
	if err := e.put(ctx, &r, marked); err != nil {
		return err
	}
	crashpoint.Hit("discard.recorded")
	return e.finishDelete(ctx, marked, nil)
}

func (e *Engine) originOf(ctx context.Context, s volume.Source) (*origin, error) {
	from, err := newvolume.OriginOf(s, func(id volume.ID) (origin, error) {
		r, err := e.find(ctx, id)
		return origin{Size: r.Size, Content: r.Content, FSType: r.FSType, At: originLvol{r.Target, r.Store, r.UUID, false}}, err
	}, func(id volume.SnapshotID) (origin, error) {
		r, err := e.findSnapshot(ctx, id)
		return origin{Size: r.Size, Content: r.Content, FSType: r.FSType, At: originLvol{r.Target, r.Store, r.UUID, true}}, err
	})
	if from == nil || err != nil {
		return nil, err
	}
	if _, err := e.target(from.At.target); err != nil {
		return nil, fmt.Errorf("source of the new volume: %w", err)
	}
	return from, nil
}
