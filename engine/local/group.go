package local

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cleatproject/cleat/engine/newvolume"
	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/store"
	"github.com/cleatproject/cleat/volume"
)

// CreateGroup implements volume.Groups. Precondition: a member is attached as a
// raw device, which cannot be frozen, and the parameter consistency is not
// "member".
func (e *Engine) CreateGroup(ctx context.Context, req volume.GroupRequest) (volume.Group, error) {
	if err := newvolume.CheckName(req.Name); err != nil {
		return volume.Group{}, err
	}
	allowCrashConsistent, err := parseConsistency(req.Parameters)
	if err != nil {
		return volume.Group{}, err
	}
	sources := slices.Compact(slices.Sorted(slices.Values(req.Sources)))
	if len(sources) == 0 {
		return volume.Group{}, errs.Errorf(errs.Invalid, "a group needs at least one volume")
	}
	for {
		id, err := e.createGroupOnce(ctx, req.Name, sources, allowCrashConsistent)
		switch {
		case errors.Is(err, errLeftover):
			if err := e.DeleteGroup(ctx, id); err != nil {
				return volume.Group{}, fmt.Errorf("delete the incomplete previous group %q: %w", req.Name, err)
			}
		case err != nil:
			return volume.Group{}, err
		default:
			return e.GetGroup(ctx, id)
		}
	}
}

func (e *Engine) createGroupOnce(ctx context.Context, name string, sources []volume.ID, allowCrashConsistent bool) (volume.GroupID, error) {
	keys := []string{"groupname:" + name}
	for _, id := range sources {
		keys = append(keys, "vol:"+string(id))
	}
	unlock, err := e.locks.Lock(ctx, keys...)
	if err != nil {
		return "", err
	}
	defer unlock()
	id, r, found, err := e.groupNamed(ctx, name)
	if err != nil {
		return "", err
	}
	if found {
		return id, e.sameGroup(ctx, id, r, sources)
	}
	if err := e.writable(ctx); err != nil {
		return "", err
	}
	b, err := e.newBatch(ctx, sources)
	if err != nil {
		return "", err
	}
	b.allowCrashConsistent = allowCrashConsistent
	id = volume.NewGroupID(e.pool.uuid)
	if err := e.takeSnapshots(ctx, b.asGroup(id, name)); err != nil {
		return "", fmt.Errorf("create group %q: %w", name, e.explain(err))
	}
	return id, nil
}

func (b *batch) asGroup(id volume.GroupID, name string) *batch {
	g := groupRecord{Name: name, State: ready}
	for _, m := range b.members {
		m.record.Group, m.record.Members = id, len(b.members)
		m.record.Name = name + "/" + string(m.source)
		g.Sources = append(g.Sources, m.source)
		g.Snapshots = append(g.Snapshots, m.snapshot)
	}
	b.onCreated = func(at time.Time) { g.Created = at }
	b.commitHook = func(tx *store.Tx) error {
		// Until its members are pinned the group is not visible.
		g.State = ready
		if b.members[0].record.State == pinning {
			g.State = pinning
		}
		if err := groupBucket.Put(tx, string(id), g); err != nil {
			return err
		}
		return groupNameBucket.Put(tx, name, id)
	}
	b.group = &groupRemoval{id: id, name: name}
	return b
}

func (e *Engine) sameGroup(ctx context.Context, id volume.GroupID, r groupRecord, sources []volume.ID) error {
	if !r.State.visible() {
		return errLeftover
	}
	if !slices.Equal(r.Sources, sources) {
		return errs.Errorf(errs.Exists, "group %s already has the name %q, with snapshots of volumes %v; the request is for volumes %v", id, r.Name, r.Sources, sources)
	}
	if e.pool.readOnly {
		return nil
	}
	for _, s := range r.Snapshots {
		m, err := e.snapshotRecord(ctx, s)
		if err != nil {
			return err
		}
		if m.State == ready {
			if err := e.place(snapshotsDir, string(s)); err != nil {
				return err
			}
		}
	}
	return nil
}

func (e *Engine) groupNamed(ctx context.Context, name string) (id volume.GroupID, r groupRecord, found bool, err error) {
	err = e.store.View(ctx, func(tx *store.Tx) error {
		if id, found, err = groupNameBucket.Get(tx, name); err != nil || !found {
			return err
		}
		r, found, err = groupBucket.Get(tx, string(id))
		return err
	})
	return id, r, found, err
}

// GetGroup implements volume.Groups.
func (e *Engine) GetGroup(ctx context.Context, id volume.GroupID) (volume.Group, error) {
	var g volume.Group
	err := e.store.View(ctx, func(tx *store.Tx) error {
		r, found, err := groupBucket.Get(tx, string(id))
		if err != nil {
			return err
		}
		if !found || !r.State.visible() {
			return errs.Errorf(errs.NotFound, "group %q does not exist", id)
		}
		g = volume.Group{ID: id, Name: r.Name, Created: r.Created, Ready: true}
		for _, s := range r.Snapshots {
			m, _, err := snapshotBucket.Get(tx, string(s))
			if err != nil {
				return err
			}
			g.Snapshots = append(g.Snapshots, e.snapshot(s, m))
			g.Ready = g.Ready && m.State == ready
		}
		return nil
	})
	return g, err
}

// DeleteGroup implements volume.Groups.
func (e *Engine) DeleteGroup(ctx context.Context, id volume.GroupID) error {
	r, found, err := read(ctx, e.store, groupBucket, string(id))
	if err != nil || !found {
		return err
	}
	if err := e.writable(ctx); err != nil {
		return err
	}
	keys := []string{"group:" + string(id)}
	for _, s := range r.Snapshots {
		keys = append(keys, "snap:"+string(s))
	}
	unlock, err := e.locks.Lock(ctx, keys...)
	if err != nil {
		return err
	}
	defer unlock()
	if _, found, err := read(ctx, e.store, groupBucket, string(id)); err != nil || !found {
		return err
	}
	if err := e.removeSnapshots(ctx, r.Snapshots, &groupRemoval{id: id, name: r.Name}); err != nil {
		return fmt.Errorf("delete group %s: %w", id, e.explain(err))
	}
	return nil
}

// groupRemoval updates a group while its members are deleted; nil is a no-op.
type groupRemoval struct {
	id   volume.GroupID
	name string
}

func (g *groupRemoval) mark(tx *store.Tx) error {
	if g == nil {
		return nil
	}
	r, found, err := groupBucket.Get(tx, string(g.id))
	if err != nil || !found {
		return err
	}
	r.State = deleting
	return groupBucket.Put(tx, string(g.id), r)
}

func (g *groupRemoval) deleteRecords(tx *store.Tx) error {
	if g == nil {
		return nil
	}
	if err := groupBucket.Delete(tx, string(g.id)); err != nil {
		return err
	}
	return groupNameBucket.Delete(tx, g.name)
}
