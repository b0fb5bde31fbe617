//go:build ceph

package ceph

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/ceph/go-ceph/rbd"

	"github.com/cleatproject/cleat/engine/newvolume"
	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/volume"
	"github.com/cleatproject/cleat/volume/access"
)

// healthTimeout is how long a cluster that answers takes at most.
const healthTimeout = 5 * time.Second

// VolumeHealth implements volume.Health.
func (e *Engine) VolumeHealth(ctx context.Context, id volume.ID) ([]volume.Condition, error) {
	v, own := parseVolumeID(id)
	h, foreign := parseHandle(id)
	if !own && !foreign {
		return nil, noVolume(id)
	}
	var pools []poolRef
	for _, p := range e.pools {
		if p.id == v.pool || p.id == h.pool { // no pool is number 0
			pools = append(pools, poolRef{p.name, p.id})
		}
	}
	var data, parents []poolRef
	all, _, err := e.volumeHealth(ctx, pools, "", func(ctx context.Context) (v volume.Volume, err error) {
		if v, err = e.Get(ctx, id); err == nil {
			data, parents, err = e.morePools(ctx, v)
		}
		return v, err
	})
	if err != nil || len(data)+len(parents) == 0 {
		return all, err
	}
	return e.health(ctx, append(pools, data...), "", parents...)
}

// morePools returns the pools that a volume uses, without that of its image: that of
// its data, and those of its parents. These are the images of which it is a clone,
// and of which it has those data that were not written since.
func (e *Engine) morePools(ctx context.Context, v volume.Volume) (data, parents []poolRef, err error) {
	type both struct{ data, parents []poolRef }
	at := v.Locator.(access.RBD)
	p := e.poolNamed(at.Pool)
	found, err := call(ctx, e.Connection, "read the pools of volume "+string(v.ID), func() (found both, err error) {
		i, err := rbd.OpenImageReadOnly(p.io, at.Image, rbd.NoSnapshot)
		if err != nil {
			return found, explain(err, "open image %s/%s", p.name, at.Image)
		}
		of, parent, err := e.poolsOf(p, i)
		found.data = of
		for err == nil && parent != nil {
			found.parents = append(found.parents, poolRef{parent.Image.PoolName, int64(parent.Image.PoolID)})
			p, err = e.poolOfParent(parent, "volume "+string(v.ID))
			if err != nil || p == nil { // nil: its own parents are unknown
				return found, err
			}
			i, err = rbd.OpenImageByIdReadOnly(p.io, parent.Image.ImageID, rbd.NoSnapshot)
			if is(err, notFound) {
				return found, errs.Errorf(errs.Busy, "the parent %s/%s of volume %s does not exist; if it is not being flattened, its data is lost", parent.Image.PoolName, parent.Image.ImageName, v.ID)
			}
			if err != nil {
				return found, explain(err, "open the parent %s/%s of volume %s", parent.Image.PoolName, parent.Image.ImageName, v.ID)
			}
			of, parent, err = e.poolsOf(p, i)
			found.parents = append(found.parents, of...)
		}
		return found, err
	})
	return found.data, found.parents, err
}

// poolsOf returns the pool with the data of an image, if it is not its own, and the
// parent, nil if it has none. It closes the image.
func (e *Engine) poolsOf(p *pool, i *rbd.Image) (data []poolRef, parent *rbd.ParentInfo, err error) {
	defer closeImage(i, &err)
	id, err := i.GetDataPoolID()
	if err != nil {
		return nil, nil, explain(err, "read the data pool of an image in pool %s", p.name)
	}
	if id != p.id {
		name, err := e.rados.GetPoolByID(id)
		if err != nil {
			return nil, nil, explain(err, "look up pool %d, which has the data of an image in pool %s", id, p.name)
		}
		data = []poolRef{{name, id}}
	}
	parent, err = i.GetParent()
	if is(err, notFound) {
		return data, nil, nil
	}
	return data, parent, explain(err, "read the parent of an image in pool %s", p.name)
}

// volumeHealth returns the conditions of the cluster and of one volume, which it
// reads unless the cluster's prevent that.
func (c *Connection) volumeHealth(ctx context.Context, pools []poolRef, fs string, get func(context.Context) (volume.Volume, error)) (all []volume.Condition, v volume.Volume, err error) {
	all, err = c.health(ctx, pools, fs)
	if err != nil || slices.ContainsFunc(all, func(c volume.Condition) bool { return c.Severity == volume.Inaccessible }) {
		return all, v, err
	}
	short, cancel := context.WithTimeout(ctx, healthTimeout)
	defer cancel()
	v, err = get(short)
	if errors.Is(err, errs.Unavailable) && ctx.Err() == nil {
		return append(all, volume.NewCondition(volume.Inaccessible, volume.ReasonClusterUnreachable, fmt.Sprintf("the servers with the volume do not answer: %v", err))), v, nil
	}
	return all, v, err
}

// StorageHealth implements volume.Health.
func (e *Engine) StorageHealth(ctx context.Context) ([]volume.Condition, error) {
	var pools []poolRef
	for _, p := range e.pools {
		pools = append(pools, poolRef{p.name, p.id})
	}
	return e.health(ctx, pools, "")
}

func (c *Connection) health(ctx context.Context, pools []poolRef, fs string, parents ...poolRef) ([]volume.Condition, error) {
	short, cancel := context.WithTimeout(ctx, healthTimeout)
	defer cancel()
	text, err := c.MonCommand(short, []byte(`{"prefix":"health","detail":"detail","format":"json"}`))
	if errors.Is(err, errs.Unavailable) && ctx.Err() == nil {
		return []volume.Condition{volume.NewCondition(volume.Inaccessible, volume.ReasonClusterUnreachable, fmt.Sprintf("the monitors of cluster %s do not answer: %v", c.cluster.ID, err))}, nil
	}
	if err != nil {
		return nil, err
	}
	report, err := parseHealth(text)
	if err != nil {
		return nil, err
	}
	return report.conditions(pools, fs, parents...), nil
}

// Capacity implements volume.Engine. Volumes are thin: they can be larger than
// the space that is left.
func (e *Engine) Capacity(ctx context.Context, query volume.CapacityQuery) (volume.Capacity, error) {
	pools := e.poolNames()
	if len(query.Parameters) > 0 {
		s, err := parseSettings(query.Parameters, e.cluster.ID, pools)
		if err != nil {
			return volume.Capacity{}, err
		}
		if pools = []string{s.pool}; s.dataPool != "" {
			pools = []string{s.dataPool}
		}
	}
	free, err := e.free(ctx, pools)
	return volume.Capacity{Available: free, Maximum: maxSize, Minimum: newvolume.MinimumSize(query.FSType, granule)}, err
}

// free returns the bytes that one of the pools has left: they can share OSDs, so
// that a sum would count them twice.
func (c *Connection) free(ctx context.Context, pools []string) (free int64, err error) {
	text, err := c.MonCommand(ctx, []byte(`{"prefix":"df","detail":"detail","format":"json"}`))
	if err != nil {
		return 0, err
	}
	all, err := parseUsage(text)
	for _, u := range all {
		if slices.Contains(pools, u.Name) {
			free = max(free, u.free())
		}
	}
	return free, err
}
