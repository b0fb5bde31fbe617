//go:build ceph

package ceph

import (
	"cmp"
	"context"
	"syscall"

	"github.com/ceph/go-ceph/rbd"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/crashpoint"
	"github.com/cleatproject/cleat/volume"
)

// maxSnapshots of one volume; the kernel's client reads at most 510.
const maxSnapshots = 450

// CreateSnapshot implements volume.Snapshots. A snapshot of a volume in use is
// crash-consistent.
func (e *Engine) CreateSnapshot(ctx context.Context, req volume.SnapshotRequest) (volume.Snapshot, error) {
	if err := checkSnapshot(req, e.cluster.ID); err != nil {
		return volume.Snapshot{}, err
	}
	source, own := parseVolumeID(req.Source)
	if !own {
		return volume.Snapshot{}, noVolume(req.Source)
	}
	locks := []string{"snapname:" + hash(req.Name), "image:" + source.image}
	return mutate(ctx, e.Connection, "create snapshot "+errs.Quote(req.Name), locks, func() (volume.Snapshot, error) { return e.createSnapshot(req) })
}

func (e *Engine) createSnapshot(req volume.SnapshotRequest) (volume.Snapshot, error) {
	if have, err := e.index.existingSnapshot(req, e.readSnapshot); have != nil || err != nil {
		return *cmp.Or(have, &volume.Snapshot{}), err
	}
	i, err := e.find(req.Source)
	if err != nil {
		return volume.Snapshot{}, err
	}
	if _, exists := i.snapshotWith(hash(req.Name)); !exists {
		if err := i.checkSnapshots(req.Source); err != nil {
			return volume.Snapshot{}, err
		}
	}
	if err := i.pool.openID(i.id, func(r *rbd.Image) error { return takeSnapshot(r, i.identity(), req.Name) }); err != nil {
		return volume.Snapshot{}, err
	}
	crashpoint.Hit("snapshot.created")
	if i, err = e.find(req.Source); err != nil {
		return volume.Snapshot{}, err
	}
	snap, ok := i.snapshotWith(hash(req.Name))
	if !ok {
		return volume.Snapshot{}, errs.Errorf(errs.Busy, "snapshot %s was deleted by another controller", errs.Quote(req.Name))
	}
	out := i.snapshot(snap)
	e.index.putSnapshot(out)
	return out, nil
}

// checkSnapshots refuses another snapshot of a volume that has maxSnapshots.
func (i *image) checkSnapshots(id volume.ID) error {
	if len(i.snapshots) < maxSnapshots {
		return nil
	}
	return errs.Errorf(errs.Exhausted, "volume %s has %d snapshots, and more would make it unreadable for nodes; delete some", id, len(i.snapshots))
}

// takeSnapshot writes the metadata first: the snapshot exists once RBD has it.
func takeSnapshot(r *rbd.Image, image, name string) error {
	if err := r.SetMetadata(keySnapPrefix+hash(name), encode(snapRecord{Image: image, Name: name})); err != nil {
		return err
	}
	crashpoint.Hit("snapshot.recorded")
	if _, err := r.CreateSnapshot(snapName(hash(name))); err != nil && !is(err, syscall.EEXIST) {
		return err
	}
	return nil
}

// DeleteSnapshot implements volume.Snapshots. Ceph hides a snapshot that clones
// need and removes it with the last of them.
func (e *Engine) DeleteSnapshot(ctx context.Context, id volume.SnapshotID) error {
	s, own := parseSnapshotID(id)
	if !own {
		return nil
	}
	locks := []string{"image:" + s.image}
	_, err := mutate(ctx, e.Connection, "delete snapshot "+string(id), locks, func() (struct{}, error) { return struct{}{}, e.deleteSnapshot(id) })
	return err
}

func (e *Engine) deleteSnapshot(id volume.SnapshotID) error {
	i, s, err := e.findSnapshot(id)
	if errs.KindOf(err) == errs.NotFound {
		e.index.dropSnapshot(id)
		return nil
	}
	if err != nil {
		return err
	}
	if s.group != nil {
		return errs.Errorf(errs.Invalid, "snapshot %s is a member of group %s; delete the group", id, s.group)
	}
	err = i.pool.openID(i.id, func(r *rbd.Image) error {
		if err := ignoreMissing(r.GetSnapshot(snapName(s.hash)).Remove()); err != nil {
			return err
		}
		crashpoint.Hit("delete-snapshot.removed")
		return ignoreMissing(r.RemoveMetadata(keySnapPrefix + s.hash))
	})
	if err != nil {
		return err
	}
	e.index.dropSnapshot(id)
	e.reaper.add(i.pool, i.identity()) // in case its volume is deleted
	return nil
}

// GetSnapshot implements volume.Snapshots.
func (e *Engine) GetSnapshot(ctx context.Context, id volume.SnapshotID) (volume.Snapshot, error) {
	return call(ctx, e.Connection, "get snapshot "+errs.Quote(string(id)), func() (volume.Snapshot, error) { return e.readSnapshot(id) })
}

func (e *Engine) readSnapshot(id volume.SnapshotID) (volume.Snapshot, error) {
	i, s, err := e.findSnapshot(id)
	if err != nil {
		return volume.Snapshot{}, err
	}
	return i.snapshot(s), nil
}

// ListSnapshots implements volume.Snapshots.
func (e *Engine) ListSnapshots(ctx context.Context, query volume.SnapshotQuery) ([]volume.Snapshot, error) {
	if ctx.Err() != nil {
		return nil, late(ctx, "list snapshots")
	}
	return e.index.listSnapshots(query), nil
}

// findSnapshot returns a snapshot and the image of its source, which can be
// deleted. NotFound: it does not exist.
func (e *Engine) findSnapshot(id volume.SnapshotID) (*image, snapshot, error) {
	missing := errs.Errorf(errs.NotFound, "snapshot %s does not exist", errs.Quote(string(id)))
	s, own := parseSnapshotID(id)
	if !own {
		return nil, snapshot{}, missing
	}
	p, err := e.poolOf(s.pool, string(id))
	if errs.KindOf(err) == errs.NotFound {
		for _, p := range e.pools {
			if v, ok := e.index.withImage(p.id, s.image); ok {
				return nil, snapshot{}, errs.Errorf(errs.Precondition, "the source of snapshot %s is volume %s in this cluster; use the id that the snapshot has here, or remove it with rbd", id, v)
			}
		}
	}
	if err != nil {
		return nil, snapshot{}, err
	}
	i, err := e.imageWithID(p, s.image)
	if is(err, notFound) || errs.KindOf(err) == errs.NotFound {
		return nil, snapshot{}, cmp.Or(p.notInNamespace("snapshot "+string(id), hasImage(s.image)), missing)
	}
	if err != nil {
		return nil, snapshot{}, err
	}
	found, ok := i.snapshotWith(s.hash)
	switch {
	case !ok || found.name == "" || i.record == nil || found.id != s.snap && i.id == s.image:
		return nil, snapshot{}, missing
	case found.id != s.snap:
		return nil, snapshot{}, errs.Errorf(errs.Precondition, "the image of snapshot %s was copied or migrated, and nothing says that the copy's snapshot is this one; use its id %s, or remove it with rbd", id, i.snapshot(found).ID)
	}
	if complete, err := e.isComplete(found); err != nil || !complete {
		return nil, snapshot{}, cmp.Or(err, missing)
	}
	return i, found, nil
}

// isComplete is false for a member of a group that is being created or deleted.
func (e *Engine) isComplete(s snapshot) (bool, error) {
	if s.group == nil {
		return true, nil
	}
	r, err := e.group(*s.group)
	if errs.KindOf(err) == errs.NotFound {
		return false, nil
	}
	return r.Ready, err
}

// imageWithID returns the image that has an internal id, or replaces it.
func (e *Engine) imageWithID(p *pool, id string) (*image, error) {
	i, err := p.inspectID(id)
	if is(err, notFound) {
		i, err = e.copyOf(p, id)
	}
	return i, err
}

// copyOf returns the image that replaces one with an internal id: of a volume, or
// of a deleted one.
func (e *Engine) copyOf(p *pool, id string) (*image, error) {
	if v, ok := e.index.withImage(p.id, id); ok {
		return e.find(v)
	}
	return p.inspect(deletedName(id))
}
