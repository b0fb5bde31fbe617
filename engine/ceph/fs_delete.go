//go:build ceph

package ceph

import (
	"cmp"
	"context"
	"errors"
	"path"
	"slices"
	"strings"

	"github.com/cleatproject/cleat/engine/newvolume"
	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/crashpoint"
	"github.com/cleatproject/cleat/volume"
)

// Delete implements volume.Engine. It cancels the copy that fills the volume.
// Ceph's manager removes the files in the background, and keeps snapshots.
func (e *FS) Delete(ctx context.Context, id volume.ID) error {
	if _, foreign := parseHandle(id); foreign {
		if _, err := e.Get(ctx, id); errs.KindOf(err) != errs.NotFound {
			return cmp.Or(err, notForeign(id, "delete it"))
		}
		return nil
	}
	v, own := parseFSID(id)
	if !own {
		return nil
	}
	_, err := mutate(ctx, e.Connection, "delete volume "+string(id), []string{"name:" + v.hash}, func() (struct{}, error) { return struct{}{}, e.delete(id) })
	return err
}

func (e *FS) delete(id volume.ID) error {
	s, err := e.find(id)
	if errors.Is(err, errs.NotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := e.checkUnused(e.volume(s)); err != nil {
		return err
	}
	crashpoint.Hit("delete.checked")
	if err := e.manager.remove(s.name); err != nil {
		return err
	}
	crashpoint.Hit("delete.removed")
	e.index.drop(id)
	return nil
}

// Expand implements volume.Engine.
func (e *FS) Expand(ctx context.Context, id volume.ID, size volume.SizeRange) (volume.Volume, error) {
	v, own := parseFSID(id)
	h, foreign := parseHandle(id)
	if !own && !foreign {
		return volume.Volume{}, noVolume(id)
	}
	return mutate(ctx, e.Connection, "expand volume "+string(id), []string{"name:" + cmp.Or(v.hash, h.uuid)}, func() (volume.Volume, error) {
		if foreign {
			return e.expandAdopted(id, h, size)
		}
		return e.expand(id, size)
	})
}

func (e *FS) expand(id volume.ID, size volume.SizeRange) (volume.Volume, error) {
	s, err := e.find(id)
	if err != nil {
		return volume.Volume{}, err
	}
	want, err := grownSize(id, s.size, size)
	if err != nil {
		return volume.Volume{}, err
	}
	if want > s.size {
		if err := s.checkContent(id); err != nil {
			return volume.Volume{}, err
		}
		if err := e.manager.grow(s.name, want); err != nil {
			return volume.Volume{}, err
		}
		crashpoint.Hit("expand.grown")
		if s, err = e.find(id); err != nil {
			return volume.Volume{}, err
		}
	}
	out, err := e.withProgress(s)
	if err == nil {
		e.index.put(out)
	}
	return out, err
}

// grownSize returns the size of a volume after an expansion.
func grownSize(id volume.ID, now int64, size volume.SizeRange) (int64, error) {
	if err := newvolume.CheckSize(size); err != nil {
		return 0, err
	}
	if size.Limit != 0 && now > size.Limit {
		return 0, errs.Errorf(errs.OutOfRange, "volume %s has %d bytes; the request is for %s, and volumes cannot shrink", id, now, size)
	}
	return possibleFS(size.Choose(now, now, granule))
}

// checkUnused refuses a volume of which a client has mounted the subvolume or a
// directory in it. A session does not say more of a mount in a snapshot than the
// directory above. Without the capability to list clients only the controller's
// records protect the volume.
func (e *FS) checkUnused(v volume.Volume) error {
	all, err := e.sessions()
	if errors.Is(err, errs.Denied) {
		return nil
	}
	if err != nil {
		return err
	}
	root := e.pathOf(v)
	isUser := func(s fsSession) bool {
		// A read-only volume is in the subvolume of another one. In a subvolume of the
		// oldest layout the directory above is the group, which tools mount.
		isSubvolume := !v.ReadOnly && s.Root == path.Dir(root) && s.Root != e.root
		return isSubvolume || s.Root == root || strings.HasPrefix(s.Root, root+"/")
	}
	if i := slices.IndexFunc(all, isUser); i >= 0 {
		return errs.Errorf(errs.Precondition, "volume %s is mounted by %s; unmount it there first", v.ID, all[i])
	}
	return nil
}
