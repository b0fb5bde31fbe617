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
	all, v, err := e.volumeHealth(ctx, e.data, e.name, func(ctx context.Context) (volume.Volume, error) { return e.Get(ctx, id) })
	if err != nil || !v.Progress.Running() {
		return all, err
	}
	failed, err := call(ctx, e.Connection, "read the copy to volume "+string(id), func() (string, error) {
		s, err := e.find(id)
		if err != nil || s.record.Copy == nil {
			return "", err
		}
		return s.record.Copy.Failed, nil
	})
	if failed != "" {
		return append(all, volume.Condition{Severity: volume.DataLoss, Reason: reasonCopyFailed,
			Message: failed + "; the volume has only a part of the content of its source: delete it and create it again"}), err
	}
	return append(all, volume.Condition{Severity: volume.Inaccessible, Reason: reasonCopying,
		Message: fmt.Sprintf("%d of about %d bytes are copied; the volume is usable after the copy", v.Progress.Done, v.Progress.Total)}), err
}

// StorageHealth implements volume.Health.
func (e *FS) StorageHealth(ctx context.Context) ([]volume.Condition, error) {
	return e.health(ctx, e.data, e.name)
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
