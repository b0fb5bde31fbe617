package spdk

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"

	"github.com/cleatproject/cleat/errs"
	rpc "github.com/cleatproject/cleat/spdk"
)

// read is the result of reading the lvol of a store that has the name of the
// volume, and the bdev of the store.
type read struct {
	bdev    rpc.Bdev
	err     error
	base    rpc.Bdev
	baseErr error
}

// readLvols reads the lvols of the volume's name, and the bdevs, of all of these
// stores at once.
func (b *build) readLvols(ctx context.Context, places []place) map[string]read {
	found := make([]read, len(places))
	var reads sync.WaitGroup
	for i, p := range places {
		reads.Go(func() {
			found[i].bdev, found[i].err = p.target.Client.Bdev(ctx, alias(p.store.Name, lvolName(b.req.Name)))
		})
		if !b.settings.oldData {
			reads.Go(func() { found[i].base, found[i].baseErr = p.target.Client.Bdev(ctx, p.store.BaseBdev) })
		}
	}
	reads.Wait()
	named := map[string]read{}
	for i, p := range places {
		named[p.String()] = found[i]
	}
	return named
}

// readEarly reads them in the stores of the last list, while the stores are
// listed again: SPDK looks for requests every few milliseconds only.
func (b *build) readEarly(ctx context.Context) map[string]read {
	ctx, cancel := context.WithTimeout(ctx, b.answerTime)
	defer cancel()
	var places []place
	for _, t := range b.order {
		t.mu.Lock()
		for _, store := range t.stores {
			isSource := b.from == nil || b.from.At.target == t.Name && b.from.At.store == store.UUID
			if isSource && t.serves(store, b.settings) && (b.settings.target == "" || b.settings.target == t.Name) {
				places = append(places, place{t, store})
			}
		}
		t.mu.Unlock()
	}
	return b.readLvols(ctx, places)
}

// unrecorded returns a volume of this name that is on a target, but not in the
// database, such as one of spdk-csi. It is recorded. Exists: the name belongs to
// an lvol that is not what the request describes. Otherwise unrecorded returns
// the places whose targets answer: one that does not cannot have the new volume.
func (b *build) unrecorded(ctx context.Context, r record, places []place) (*record, []place, error) {
	isOpen := func(p place) bool {
		now, was := b.reads[p.String()]
		return !was || now.err != nil && !errors.Is(now.err, rpc.NotFound)
	}
	brief, cancel := context.WithTimeout(ctx, b.answerTime)
	defer cancel()
	maps.Copy(b.reads, b.readLvols(brief, slices.DeleteFunc(slices.Clone(places), func(p place) bool { return !isOpen(p) })))
	var free []place
	var silent error
	for _, p := range places {
		bdev, err := b.reads[p.String()].bdev, b.reads[p.String()].err
		if errors.Is(err, rpc.NotFound) {
			free = append(free, p)
			continue
		}
		err = p.target.explain(err, "look for volume %s", errs.Quote(r.Name))
		if errs.KindOf(err) == errs.Unavailable {
			silent = errors.Join(silent, err)
			continue
		}
		if err != nil {
			return nil, nil, err
		}
		if b.from != nil || bdev.Driver.Lvol == nil || bdev.Driver.Lvol.Snapshot {
			return nil, nil, errs.Errorf(errs.Exists, "%s already has an lvol %s, which this driver has no record of and which need not have the content of %s; delete or rename it, or use another name", p, lvolName(r.Name), describeSource(b.from))
		}
		found := r
		found.Target, found.Store, found.StoreName = p.target.Name, p.store.UUID, p.store.Name
		found.UUID, found.Size, found.FirstSize = bdev.UUID, bdev.Size(), bdev.Size()
		if err := b.matches(found); err != nil {
			return nil, nil, err
		}
		return &found, nil, b.adopt(ctx, &found)
	}
	if len(free) == 0 {
		return nil, nil, silent
	}
	return nil, free, nil
}

func describeSource(from *origin) string {
	if from == nil {
		return "a new volume"
	}
	return from.String()
}

// withdraw removes the record of a new volume whose name an lvol has that is not
// of this call: begin has not found it, as the target was loading it. A repeat does.
func (b *build) withdraw(ctx context.Context, t *target, r record) error {
	if r.FromVolume != "" {
		if err := t.Client.DeleteLvol(ctx, alias(r.StoreName, r.source())); err != nil && !errors.Is(err, rpc.NotFound) {
			return t.explain(err, "remove the snapshot of volume %s", errs.Quote(r.Name))
		}
	}
	if err := b.drop(ctx, r); err != nil {
		return err
	}
	return errs.Errorf(errs.Unavailable, "target %s was loading lvol %s of lvol store %s, which this call has not created", t.Name, lvolName(r.Name), r.StoreName)
}
