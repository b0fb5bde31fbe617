//go:build ceph

package ceph

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"syscall"

	"github.com/ceph/go-ceph/rbd"
	"github.com/google/uuid"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/crashpoint"
	"github.com/cleatproject/cleat/volume"
)

// A group of snapshots is a group of RBD, of which the images are members only
// while its one snapshot is taken: an image can be in one group at a time, and
// keeps the snapshots of groups that it left.

// groupSnap is the name of the snapshot of each group.
const groupSnap = "cleat"

// CreateGroup implements volume.Groups. RBD takes the exclusive locks of all
// images for the moment of the snapshots. Precondition: a volume is in use, its
// image has no such lock, and the parameter consistency is not "member".
func (e *Engine) CreateGroup(ctx context.Context, req volume.GroupRequest) (volume.Group, error) {
	byMember, err := checkGroup(req, e.cluster.ID)
	if err != nil {
		return volume.Group{}, err
	}
	req.Sources = slices.Compact(slices.Sorted(slices.Values(req.Sources)))
	locks := []string{"groupname:" + hash(req.Name)}
	for _, id := range req.Sources {
		source, own := parseVolumeID(id)
		if !own {
			return volume.Group{}, noVolume(id)
		}
		locks = append(locks, "image:"+source.image)
	}
	return mutate(ctx, e.Connection, "create group "+errs.Quote(req.Name), locks, func() (volume.Group, error) { return e.createGroup(req, byMember) })
}

func (e *Engine) createGroup(req volume.GroupRequest, byMember bool) (volume.Group, error) {
	id, r, err := e.groupNamed(req.Name)
	switch {
	case err != nil:
		return volume.Group{}, err
	case r != nil && r.Ready && !slices.Equal(r.Sources, req.Sources):
		return volume.Group{}, errs.Errorf(errs.Exists, "group %s already has the name %s, with snapshots of volumes %v; the request is for volumes %v", id, errs.Quote(r.Name), r.Sources, req.Sources)
	case r != nil && r.Ready:
		return e.readGroup(id, *r)
	case r != nil:
		if err := e.removeGroup(id, *r); err != nil {
			return volume.Group{}, fmt.Errorf("remove what an interrupted call left of group %s: %w", errs.Quote(req.Name), err)
		}
	}
	members, err := e.groupMembers(req.Sources)
	if err == nil && !byMember {
		err = e.checkPausable(members)
	}
	if err != nil {
		return volume.Group{}, err
	}
	p := members[0].pool
	r = &groupRecord{UUID: uuid.Must(uuid.NewV7()).String(), Name: req.Name, Sources: req.Sources}
	id = groupID{pool: p.id, hash: hash(req.Name), uuid: r.UUID}
	if err := p.writeGroup(id, *r); err != nil {
		return volume.Group{}, err
	}
	crashpoint.Hit("group.begun")
	err = p.takeGroup(id.name(), members)
	if err == nil && !byMember {
		err = e.checkPausable(members) // a node can have begun to use one
	}
	if err != nil {
		return volume.Group{}, e.abandonGroup(id, *r, err)
	}
	r.Ready = true
	if err := p.writeGroup(id, *r); err != nil {
		return volume.Group{}, err
	}
	crashpoint.Hit("group.recorded")
	g, err := e.readGroup(id, *r)
	for _, s := range g.Snapshots {
		e.index.putSnapshot(s)
	}
	return g, err
}

// abandonGroup removes what a failed creation left. A repeat of the call, or the
// next controller, removes what it cannot.
func (e *Engine) abandonGroup(id groupID, r groupRecord, cause error) error {
	if err := e.removeGroup(id, r); err != nil {
		return fmt.Errorf("%w; what was created is not removed yet: %w", cause, err)
	}
	return cause
}

func (e *Engine) groupMembers(sources []volume.ID) (members []*image, err error) {
	for _, id := range sources {
		i, err := e.find(id)
		if err == nil {
			err = i.checkSnapshots(id)
		}
		if err != nil {
			return nil, err
		}
		members = append(members, i)
	}
	return members, nil
}

// checkPausable refuses images whose writes RBD cannot pause all at once: a
// client that writes without an exclusive lock begins a snapshot when it is
// notified of it.
func (e *Engine) checkPausable(members []*image) error {
	for _, i := range members {
		if i.hasLock || len(members) == 1 {
			continue
		}
		users, err := e.users(i)
		if err != nil {
			return err
		}
		if len(users) > 0 {
			return errs.Errorf(errs.Precondition, "volume %s is in use, and its image %s has no exclusive lock by which its writes could be paused: stop its users, use a class with the feature exclusive-lock (%s), or set %s=member for snapshots of slightly different moments",
				i.volumeID(), i.spec(), keyFeatures, keyConsistency)
		}
	}
	return nil
}

// takeGroup takes the snapshots of all images.
func (p *pool) takeGroup(name string, members []*image) error {
	if err := rbd.GroupCreate(p.io, name); err != nil {
		return explain(err, "create RBD group %s/%s", p.name, name)
	}
	for _, i := range members {
		err := rbd.GroupImageAdd(p.io, name, i.pool.io, i.name)
		if is(err, syscall.EEXIST) {
			return errs.Errorf(errs.Precondition, "image %s is a member of another RBD group; take it out with rbd group image remove", i.spec())
		}
		if err != nil {
			return explain(err, "add image %s to RBD group %s/%s", i.spec(), p.name, name)
		}
	}
	crashpoint.Hit("group.filled")
	if err := rbd.GroupSnapCreate(p.io, name, groupSnap); err != nil {
		return explain(err, "take a snapshot of RBD group %s/%s", p.name, name)
	}
	crashpoint.Hit("group.taken")
	for _, i := range members {
		if err := rbd.GroupImageRemove(p.io, name, i.pool.io, i.name); err != nil {
			return explain(err, "take image %s out of RBD group %s/%s", i.spec(), p.name, name)
		}
	}
	return nil
}

// DeleteGroup implements volume.Groups. Ceph hides a snapshot that clones need
// and removes it with the last of them.
func (e *Engine) DeleteGroup(ctx context.Context, id volume.GroupID) error {
	g, own := parseGroupID(id)
	if !own {
		return nil
	}
	_, err := mutate(ctx, e.Connection, "delete group "+string(id), []string{"groupname:" + g.hash}, func() (struct{}, error) {
		r, err := e.group(g)
		if errs.KindOf(err) == errs.NotFound {
			return struct{}{}, nil
		}
		if err == nil {
			err = e.removeGroup(g, r)
		}
		return struct{}{}, err
	})
	return err
}

// removeGroup removes a group with its snapshots, which can be incomplete, and
// then its record. RBD's group has the UUID of the record in its name.
func (e *Engine) removeGroup(id groupID, r groupRecord) error {
	p, err := e.poolOf(id.pool, id.String())
	if err != nil {
		return err
	}
	if r.Ready {
		r.Ready = false
		if err := p.writeGroup(id, r); err != nil && !is(err, syscall.ENOSPC, syscall.EDQUOT) { // a full pool can be emptied
			return err
		}
		crashpoint.Hit("delete-group.begun")
	}
	if err := ignoreMissing(rbd.GroupRemove(p.io, id.name())); err != nil {
		return explain(err, "remove RBD group %s/%s", p.name, id.name())
	}
	crashpoint.Hit("delete-group.removed")
	if err := p.dropGroup(id); err != nil {
		return err
	}
	e.index.dropGroup(volume.GroupID(id.String()))
	for _, source := range r.Sources { // in case its volume is deleted
		if v, own := parseVolumeID(source); own {
			if of, err := e.poolOf(v.pool, string(source)); err == nil {
				e.reaper.add(of, v.image)
			}
		}
	}
	return nil
}

// GetGroup implements volume.Groups.
func (e *Engine) GetGroup(ctx context.Context, id volume.GroupID) (volume.Group, error) {
	return call(ctx, e.Connection, "get group "+errs.Quote(string(id)), func() (volume.Group, error) {
		g, own := parseGroupID(id)
		if !own {
			return volume.Group{}, noGroup(string(id))
		}
		r, err := e.group(g)
		if err != nil {
			return volume.Group{}, err
		}
		if !r.Ready {
			return volume.Group{}, noGroup(g.String())
		}
		return e.readGroup(g, r)
	})
}

// readGroup returns a group with its snapshots. NotFound: one of them was removed
// by another program.
func (e *Engine) readGroup(id groupID, r groupRecord) (volume.Group, error) {
	g := volume.Group{ID: volume.GroupID(id.String()), Name: r.Name, Ready: true}
	for _, source := range r.Sources {
		v, _ := parseVolumeID(source)
		p, err := e.poolOf(v.pool, string(source))
		if err != nil {
			return volume.Group{}, err
		}
		i, err := e.imageWithID(p, v.image)
		if errs.KindOf(err) == errs.NotFound {
			return volume.Group{}, errs.Errorf(errs.NotFound, "the image of volume %s, with its snapshot of group %s, was removed by another program", source, id)
		}
		if err != nil {
			return volume.Group{}, err
		}
		s, ok := i.snapshotWith(id.memberHash())
		if !ok || i.record == nil {
			return volume.Group{}, errs.Errorf(errs.NotFound, "the snapshot of volume %s in group %s was removed by another program", source, id)
		}
		g.Snapshots = append(g.Snapshots, i.snapshot(s))
		if g.Created.IsZero() || s.created.Before(g.Created) {
			g.Created = s.created
		}
	}
	return g, nil
}

func noGroup(id string) error {
	return errs.Errorf(errs.NotFound, "group %s does not exist", errs.Quote(id))
}

// groupOf returns the group of this program that an image's snapshot belongs to;
// nil: it belongs to none.
func groupOf(r *rbd.Image, s rbd.SnapInfo) (*groupID, error) {
	of, err := r.GetSnapGroupNamespace(s.Id)
	if is(err, notFound, syscall.EPERM, syscall.EACCES) {
		return nil, nil // it is being removed, or in a pool that this driver does not serve
	}
	if err != nil || of.GroupSnapName != groupSnap {
		return nil, err
	}
	if g, ok := parseGroupName(int64(of.Pool), of.GroupName); ok {
		return &g, nil
	}
	return nil, nil
}

// canCloneMembers reports whether librbd can clone a group's member, by its id:
// that of Ceph 16.2 finds snapshots by names, which members do not have. The
// cluster can be of any release.
func (p *pool) canCloneMembers() bool {
	options := rbd.NewRbdImageOptions()
	defer options.Destroy()
	const missing = "cleat-no-image" // so that nothing is cloned
	err := onThread(func() error { return rbd.CloneImageByID(p.io, missing, 1, p.io, missing, options) })
	return !errors.Is(err, rbd.ErrNotImplemented)
}

// onThread makes the first call of a function that librbd of Ceph 16.2 lacks.
// go-ceph looks it up with dlsym(3) and then reads dlerror(3), which belongs to the
// thread: on another one it misses the error, and calls address 0.
func onThread(call func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	return call()
}

// endGroups removes what interrupted calls left of groups. An error does no harm
// but to new groups of the same volumes.
func (e *Engine) endGroups(p *pool) error {
	all, err := p.groups()
	if err != nil {
		return err
	}
	for id, r := range all {
		if r.Ready {
			continue
		}
		if err := e.removeGroup(id, r); err != nil {
			e.logger.Warn("removal of an interrupted group failed, its call can be repeated", "group", id.String(), "err", err)
		}
	}
	return nil
}
