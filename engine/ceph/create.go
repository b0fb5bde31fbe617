//go:build ceph

package ceph

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"

	"github.com/ceph/go-ceph/rbd"
	"github.com/google/uuid"

	"github.com/cleatproject/cleat/engine/newvolume"
	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/crashpoint"
	"github.com/cleatproject/cleat/volume"
)

// Create implements volume.Engine. The steps of a copy: temporary snapshot of a
// volume, clone, resize, removal of the snapshot. The metadata comes last: with
// it the volume exists.
func (e *Engine) Create(ctx context.Context, req volume.CreateRequest) (volume.Volume, error) {
	p, err := planCreate(req, e.cluster.ID, e.poolNames())
	if err != nil {
		return volume.Volume{}, err
	}
	if err := notForeign(p.Source.Volume, "clone it"); err != nil {
		return volume.Volume{}, err
	}
	locks := []string{"name:" + hash(p.Name)}
	if source, ok := parseVolumeID(p.Source.Volume); ok {
		locks = append(locks, "image:"+source.image)
	}
	return mutate(ctx, e.Connection, "create volume "+errs.Quote(p.Name), locks, func() (volume.Volume, error) { return e.create(p) })
}

func (e *Engine) create(p plan) (volume.Volume, error) {
	into := e.poolNamed(p.settings.pool)
	if id, ok := e.index.named(p.Name); ok {
		if other, _ := parseVolumeID(id); other.pool != into.id {
			return volume.Volume{}, errs.Errorf(errs.Exists, "volume %s already has the name %s, in another pool", id, errs.Quote(p.Name))
		}
	}
	begun, err := into.creation(hash(p.Name))
	if err != nil {
		return volume.Volume{}, err
	}
	found, err := into.inspect(imageName(hash(p.Name)))
	switch err = ignoreMissing(err); {
	case err != nil:
		return volume.Volume{}, err
	case found != nil && found.isCopy:
		return volume.Volume{}, found.notPrimary()
	case found != nil && found.record != nil:
		if begun != "" {
			if err := into.endCreation(hash(p.Name)); err != nil {
				return volume.Volume{}, err
			}
		}
		return e.existing(p, found)
	case found != nil && !found.isMaking:
		return volume.Volume{}, fmt.Errorf("%w; this request would use it with: rbd image-meta set %s %s %s", found.noRecord(), found.spec(), keyVolume, quoteWord(encode(p.record(found.id, ""))))
	}
	from, err := e.originOf(p.Source)
	if err != nil {
		return volume.Volume{}, err
	}
	if p.FSType, err = newvolume.FSType(p.CreateRequest, from); err != nil {
		return volume.Volume{}, err
	}
	size, err := possible(newvolume.Size(p.Size, p.FSType, from, granule))
	if err != nil {
		return volume.Volume{}, err
	}
	b := &build{Engine: e, plan: p, into: into, name: imageName(hash(p.Name)), from: from, size: size, uuid: uuid.Must(uuid.NewV7()).String(), isRepeat: begun != ""}
	return b.run(found)
}

func (e *Engine) existing(p plan, found *image) (volume.Volume, error) {
	v := found.volume()
	e.index.put(v)
	return v, newvolume.Matches(p.CreateRequest, v, found.record.Parameters)
}

// build creates one volume.
type build struct {
	*Engine
	plan plan
	into *pool
	name string
	from *origin // nil: no source
	size int64
	uuid string // of the creation
	// isRepeat: an earlier call began the creation, and can have left a part of an image.
	isRepeat bool
}

// run replaces the image that an interrupted creation left: a clone can lack
// its entry at the parent, without which Ceph removes the parent's snapshot.
func (b *build) run(found *image) (volume.Volume, error) {
	if found != nil {
		if err := found.retire(); err != nil {
			return volume.Volume{}, err
		}
		b.reaper.add(b.into, found.identity())
	}
	if err := b.into.beginCreation(hash(b.plan.Name), b.uuid); err != nil {
		return volume.Volume{}, err
	}
	crashpoint.Hit("create.begun")
	if err := b.make(); err != nil {
		return volume.Volume{}, err
	}
	crashpoint.Hit("create.image")
	if err := b.dropCloneSnapshot(); err != nil {
		return volume.Volume{}, err
	}
	crashpoint.Hit("create.released")
	if err := b.into.open(b.name, b.finish); err != nil {
		return volume.Volume{}, err
	}
	crashpoint.Hit("create.recorded")
	if err := b.into.endCreation(hash(b.plan.Name)); err != nil {
		return volume.Volume{}, err
	}
	made, err := b.into.inspect(b.name)
	if err != nil {
		return volume.Volume{}, err
	}
	if made.record == nil {
		return volume.Volume{}, errs.Errorf(errs.Busy, "image %s was replaced by another controller", b.name)
	}
	if b.from != nil {
		b.limitDepth(made)
	}
	return b.existing(b.plan, made)
}

func (b *build) make() error {
	options := rbd.NewRbdImageOptions()
	defer options.Destroy()
	values := map[rbd.ImageOption]uint64{
		rbd.ImageOptionFeatures: uint64(rbd.FeatureSetFromNames(b.plan.settings.features)),
		rbd.ImageOptionOrder:    objectOrder,
	}
	if b.from != nil {
		values[rbd.ImageOptionCloneFormat] = 2 // its snapshots need no protection
	}
	for option, value := range values {
		if err := options.SetUint64(option, value); err != nil {
			return explain(err, "set option %d of the new image", option)
		}
	}
	if pool := b.plan.settings.dataPool; pool != "" {
		if _, err := b.rados.GetPoolByName(pool); is(err, notFound) {
			return errs.Errorf(errs.Invalid, "%s %s does not exist in Ceph cluster %s", keyDataPool, errs.Quote(pool), b.cluster.ID)
		}
		if err := options.SetString(rbd.ImageOptionDataPool, pool); err != nil {
			return explain(err, "set the data pool of the new image")
		}
	}
	err := b.makeWith(options)
	if is(err, syscall.EEXIST) && !b.isRepeat {
		left, err := b.into.leadsNowhere(b.name)
		if err != nil {
			return err
		}
		if !left {
			return errs.Errorf(errs.Precondition, "pool %s has a part of an image %s, which this driver did not begin to create; remove or repair it with Ceph's tools (object %s)", b.into.name, b.name, idObject+b.name)
		}
	}
	if is(err, syscall.EEXIST) { // a part of an image
		err = b.into.remove(b.name, "")
		if err == nil {
			err = b.into.dropID(b.name) // which the directory does not have yet
		}
		if err == nil {
			err = b.makeWith(options)
		}
	}
	return explain(err, "create image %s/%s", b.into.name, b.name)
}

func (b *build) makeWith(options *rbd.ImageOptions) error {
	switch {
	case b.from == nil:
		return rbd.CreateImage(b.into.io, b.name, uint64(b.size), options)
	case b.from.At.snap != "":
		return b.clone(b.from.At.snap, options)
	}
	// What another call left can be older than this request.
	if err := b.dropCloneSnapshot(); err != nil {
		return err
	}
	snap := cloneSnapName(hash(b.plan.Name))
	source, err := b.poolOf(b.from.At.pool, b.from.String())
	if err != nil {
		return err
	}
	err = source.openID(b.from.At.image, func(i *rbd.Image) error {
		_, err := i.CreateSnapshot(snap)
		return err
	})
	if err != nil {
		return err
	}
	crashpoint.Hit("create.frozen")
	return b.clone(snap, options)
}

// clone clones the source, whose image is renamed when its volume is deleted.
func (b *build) clone(snap string, options *rbd.ImageOptions) error {
	source, err := b.poolOf(b.from.At.pool, b.from.String())
	if err != nil {
		return err
	}
	if err := b.checkDepth(source); err != nil {
		return err
	}
	clone := func(image string) error {
		if b.from.At.member != 0 {
			return rbd.CloneImageByID(source.io, image, b.from.At.member, b.into.io, b.name, options)
		}
		return rbd.CloneImage(source.io, image, snap, b.into.io, b.name, options)
	}
	err = clone(imageName(b.from.At.hash))
	if is(err, notFound) {
		err = clone(b.from.At.deleted)
	}
	switch {
	case is(err, notFound):
		return errs.Errorf(errs.NotFound, "%s does not exist any more", b.from)
	case errors.Is(err, rbd.ErrNotImplemented):
		return errs.Errorf(errs.Precondition, "the librbd of this controller cannot clone %s, which is a member of a group; use the image cleat-ceph, or librbd of Ceph 20.2: %v", b.from, err)
	}
	return err
}

// dropCloneSnapshot removes the temporary snapshot of the source. Ceph keeps it
// hidden for as long as the clone needs it.
func (b *build) dropCloneSnapshot() error {
	if b.from == nil || b.from.At.snap != "" {
		return nil
	}
	source, err := b.poolOf(b.from.At.pool, b.from.String())
	if err != nil {
		return err
	}
	return source.openID(b.from.At.image, func(i *rbd.Image) error {
		return ignoreMissing(i.GetSnapshot(cloneSnapName(hash(b.plan.Name))).Remove())
	})
}

// finish gives a new image its size and metadata.
func (b *build) finish(i *rbd.Image) error {
	id, err := i.GetId()
	if err != nil {
		return err
	}
	metadata, err := i.ListMetadata()
	if err != nil {
		return err
	}
	if r, err := decodeVolume(metadata[keyVolume], id); err != nil || r != nil && r.Image == id {
		return err // another controller completed it
	}
	if err := grow(i, b.size); err != nil {
		return err
	}
	crashpoint.Hit("create.grown")
	for key := range metadata { // of the parent's snapshots
		if strings.HasPrefix(key, keySnapPrefix) {
			if err := i.RemoveMetadata(key); err != nil {
				return err
			}
		}
	}
	return i.SetMetadata(keyVolume, encode(b.plan.record(id, b.uuid)))
}

// grow enlarges an image. Resize2 refuses to shrink it, which Resize would do.
func grow(i *rbd.Image, size int64) error {
	if now, err := i.GetSize(); err != nil || int64(now) >= size {
		return err
	}
	return i.Resize2(uint64(size), false, func(uint64, uint64, any) int { return 0 }, nil)
}

func (e *Engine) originOf(s volume.Source) (*origin, error) {
	return newvolume.OriginOf(s, func(id volume.ID) (origin, error) {
		i, err := e.find(id)
		if err != nil {
			return origin{}, err
		}
		return i.origin(i.size), nil
	}, func(id volume.SnapshotID) (origin, error) {
		i, snap, err := e.findSnapshot(id)
		if err != nil {
			return origin{}, err
		}
		from := i.origin(snap.size)
		if from.At.snap = snapName(snap.hash); snap.group != nil {
			from.At.member = snap.id
		}
		return from, nil
	})
}

// origin describes an image as a source, with the size of what is copied.
func (i *image) origin(size int64) origin {
	return origin{
		Size: size, Content: i.record.Content, FSType: i.record.FSType,
		At: originImage{pool: i.pool.id, hash: hash(i.record.Name), image: i.id, deleted: deletedName(i.identity())},
	}
}
