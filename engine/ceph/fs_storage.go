//go:build ceph

package ceph

import (
	"context"
	"fmt"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/volume"
)

// VolumeHealth implements volume.Health.
func (e *FS) VolumeHealth(ctx context.Context, id volume.ID) ([]volume.Condition, error) {
	_, own := parseFSID(id)
	_, foreign := parseHandle(id)
	if !own && !foreign {
		return nil, noVolume(id)
	}
	all, v, err := e.volumeHealth(ctx, e.allPools(), e.name, func(ctx context.Context) (volume.Volume, error) { return e.Get(ctx, id) })
	switch p := v.Progress; {
	case err != nil:
	case p.Failed != "":
		all = append(all, volume.NewCondition(volume.DataLoss, volume.ReasonCopyFailed, "it has only a part of the content of its source: "+p.Failed))
	case p.Running():
		all = append(all, volume.NewCondition(volume.Inaccessible, volume.ReasonCopying, fmt.Sprintf("%d of about %d bytes are copied", p.Done, p.Total)))
	}
	return all, err
}

// StorageHealth implements volume.Health.
func (e *FS) StorageHealth(ctx context.Context) ([]volume.Condition, error) {
	return e.health(ctx, e.allPools(), e.name)
}

// allPools returns the data pools of the file system and that of its metadata.
func (e *FS) allPools() []poolRef {
	return append([]poolRef{{e.pools[0].name, e.pools[0].id}}, e.data...)
}

// Capacity implements volume.Engine. Quotas reserve nothing: volumes can be
// larger than the space that is left.
func (e *FS) Capacity(ctx context.Context, query volume.CapacityQuery) (volume.Capacity, error) {
	s, err := parseFSSettings(query.Parameters, e.cluster.ID, e.name)
	if err != nil {
		return volume.Capacity{}, err
	}
	var pools []string
	for _, p := range e.data {
		if s.pool == "" || s.pool == p.name {
			pools = append(pools, p.name)
		}
	}
	if len(pools) == 0 {
		return volume.Capacity{}, errs.Errorf(errs.Invalid, "%s %s is not a data pool of file system %s", keyPool, errs.Quote(s.pool), e.name)
	}
	free, err := e.free(ctx, pools)
	return volume.Capacity{Available: free, Maximum: maxQuota, Minimum: granule}, err
}
