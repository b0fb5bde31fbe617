//go:build ceph

package ceph

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"

	"github.com/ceph/go-ceph/rbd"

	"github.com/cleatproject/cleat/engine/ceph/blocklist"
	"github.com/cleatproject/cleat/engine/newvolume"
	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/crashpoint"
	"github.com/cleatproject/cleat/volume"
)

// Delete implements volume.Engine. It renames the image, in one step, and
// leaves the removal to the reaper.
func (e *Engine) Delete(ctx context.Context, id volume.ID) error {
	if _, foreign := parseHandle(id); foreign {
		if _, err := e.Get(ctx, id); errs.KindOf(err) != errs.NotFound {
			return cmp.Or(err, notForeign(id, "delete it"))
		}
		return nil
	}
	v, own := parseVolumeID(id)
	if !own {
		if err := noVolume(id); errs.KindOf(err) != errs.NotFound {
			return err
		}
		return nil
	}
	locks := []string{"name:" + v.hash, "image:" + v.image}
	_, err := mutate(ctx, e.Connection, "delete volume "+string(id), locks, func() (struct{}, error) { return struct{}{}, e.delete(id, v) })
	return err
}

func (e *Engine) delete(id volume.ID, v volumeID) error {
	p, err := e.poolOf(v.pool, string(id))
	if errors.Is(err, errNoPool) {
		err = cmp.Or(e.notElsewhere(nil, v), err)
	}
	if errs.KindOf(err) == errs.NotFound {
		return nil
	}
	if err != nil {
		return err
	}
	if _, err = p.inspect(imageName(v.hash)); is(err, notFound) { // or a removal was interrupted
		if err := p.remove(imageName(v.hash), v.image); err != nil {
			return err
		}
	}
	i, err := e.find(id)
	if errs.KindOf(err) == errs.NotFound {
		return nil
	}
	if err != nil {
		return err
	}
	if i.isCopy {
		return i.notPrimary()
	}
	if i.id != v.image {
		if exists, err := p.hasID(v.image); err != nil || exists {
			return cmp.Or(err, errs.Errorf(errs.Precondition, "volume %s has two images: %s with the id %s, and one with the id %s, of which it is a copy; end the migration, or remove the one that is not needed, with rbd", id, i.spec(), i.id, v.image))
		}
	}
	users, err := e.users(i)
	if err != nil {
		return err
	}
	if len(users) > 0 {
		return e.inUse(i, users)
	}
	crashpoint.Hit("delete.checked")
	if err := i.retire(); err != nil {
		return err
	}
	crashpoint.Hit("delete.renamed")
	e.index.drop(id)
	e.reaper.add(p, i.identity())
	return nil
}

// retire frees the name of an image. Trash is no alternative to the new name:
// snapshots of an image in it cannot be cloned.
func (i *image) retire() error {
	err := i.rename()
	if is(err, syscall.ENOSPC, syscall.EDQUOT) && len(i.snapshots)+len(i.others) == 0 {
		err = i.pool.remove(i.name, i.id) // a full pool accepts no new name
	}
	return explain(ignoreMissing(err), "remove or rename image %s/%s", i.pool.name, i.name)
}

// rename gives an image its name as that of a deleted volume. librbd has three
// steps: object with the image's id for the new name, directory, removal of the
// old object. It does not continue what was interrupted after the first, and
// ignores a failure of the last.
func (i *image) rename() error {
	to := deletedName(i.identity())
	err := rbd.GetImage(i.pool.io, i.name).Rename(to)
	if is(err, syscall.EEXIST) {
		var names []string
		if names, err = rbd.GetImageNames(i.pool.io); err == nil && !slices.Contains(names, to) {
			if err = i.pool.dropID(to); err == nil {
				err = rbd.GetImage(i.pool.io, i.name).Rename(to)
			}
		}
	}
	if err != nil {
		return err
	}
	return i.pool.dropID(i.name)
}

// dropID removes the object that has the id of the image with a name.
func (p *pool) dropID(name string) error {
	return ignoreMissing(p.io.Delete(idObject + name))
}

// inUse returns why a volume with watchers cannot be deleted now. A task of the
// manager on it is canceled.
func (e *Engine) inUse(i *image, users []blocklist.Watcher) error {
	if i.parent != nil {
		if tasks, err := e.cancelTasks(i); err != nil || tasks {
			return errs.Errorf(errs.Busy, "image %s is being flattened, which is canceled now; repeat the deletion (%v)", i.spec(), err)
		}
	}
	var who []string
	for _, w := range users {
		who = append(who, fmt.Sprintf("%s (client.%d)", w.Addr, w.Client))
	}
	return errs.Errorf(errs.Precondition, "image %s is in use by %s; unmap it there, or wait 30 s for a client that is gone", i.spec(), strings.Join(who, ", "))
}

// Watchers returns the clients that have the image of a volume open for
// writing, except this process. NotFound: the volume does not exist.
func (e *Engine) Watchers(ctx context.Context, id volume.ID) ([]blocklist.Watcher, error) {
	return call(ctx, e.Connection, "list the users of volume "+errs.Quote(string(id)), func() ([]blocklist.Watcher, error) {
		i, err := e.find(id)
		if err != nil {
			return nil, err
		}
		return e.watchers(i)
	})
}

func (e *Engine) watchers(i *image) (users []blocklist.Watcher, err error) {
	r, err := rbd.OpenImageByIdReadOnly(i.pool.io, i.id, rbd.NoSnapshot)
	if err != nil {
		return nil, explain(err, "open image %s/%s", i.pool.name, i.name)
	}
	defer closeImage(r, &err)
	all, err := r.ListWatchers()
	if err != nil {
		return nil, explain(err, "list the watchers of image %s/%s", i.pool.name, i.name)
	}
	for _, w := range all {
		if uint64(w.Id) == e.rados.GetInstanceID() {
			continue
		}
		user, err := blocklist.ParseWatcher(w.Addr)
		if err != nil {
			return nil, fmt.Errorf("watcher of image %s/%s: %w", i.pool.name, i.name, err)
		}
		user.Client = uint64(w.Id)
		users = append(users, user)
	}
	return users, nil
}

// users returns the watchers of an image that can still use it: an OSD can keep
// the watch of a client that was killed while it registered it, also when the
// client is on the blocklist.
func (e *Engine) users(i *image) ([]blocklist.Watcher, error) {
	all, err := e.watchers(i)
	if err != nil || len(all) == 0 {
		return nil, err
	}
	dump, status, err := e.rados.MonCommand([]byte(`{"prefix":"osd dump","format":"json"}`))
	if err != nil {
		return nil, commandError(err, status, "read the blocklist")
	}
	blocked, err := blocklist.Instances(dump)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(all, blocked), nil
}

// Expand implements volume.Engine.
func (e *Engine) Expand(ctx context.Context, id volume.ID, size volume.SizeRange) (volume.Volume, error) {
	v, own := parseVolumeID(id)
	h, foreign := parseHandle(id)
	if !own && !foreign {
		return volume.Volume{}, noVolume(id)
	}
	return mutate(ctx, e.Connection, "expand volume "+string(id), []string{"image:" + cmp.Or(v.image, h.uuid)}, func() (volume.Volume, error) { return e.expand(id, size) })
}

func (e *Engine) expand(id volume.ID, size volume.SizeRange) (volume.Volume, error) {
	i, err := e.find(id)
	if err != nil {
		return volume.Volume{}, err
	}
	if err := newvolume.CheckSize(size); err != nil {
		return volume.Volume{}, err
	}
	if size.Limit != 0 && i.size > size.Limit {
		return volume.Volume{}, errs.Errorf(errs.OutOfRange, "volume %s has %d bytes; the request is for %s, and volumes cannot shrink", id, i.size, size)
	}
	want, err := possible(size.Choose(i.size, i.size, granule))
	if err != nil {
		return volume.Volume{}, err
	}
	if want > i.size {
		if err := i.pool.openID(i.id, func(r *rbd.Image) error { return grow(r, want) }); err != nil {
			return volume.Volume{}, err
		}
		crashpoint.Hit("expand.grown")
		if i, err = e.find(id); err != nil {
			return volume.Volume{}, err
		}
	}
	out := i.volume()
	if i.handle == "" {
		e.index.put(out)
	}
	return out, nil
}
