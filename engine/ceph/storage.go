//go:build ceph

package ceph

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cleatproject/cleat/engine/newvolume"
	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/volume"
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
	all, err := e.health(ctx, func(p *pool) bool { return p.id == v.pool || p.id == h.pool }) // no pool is number 0
	if err != nil || slices.ContainsFunc(all, func(c volume.Condition) bool { return c.Severity == volume.Inaccessible }) {
		return all, err
	}
	short, cancel := context.WithTimeout(ctx, healthTimeout)
	defer cancel()
	_, err = e.Get(short, id)
	if errors.Is(err, errs.Unavailable) && ctx.Err() == nil {
		return append(all, volume.Condition{Severity: volume.Inaccessible, Reason: reasonUnreachable,
			Message: fmt.Sprintf("the OSDs with the image do not answer: %v", err)}), nil
	}
	return all, err
}

// StorageHealth implements volume.Health.
func (e *Engine) StorageHealth(ctx context.Context) ([]volume.Condition, error) {
	return e.health(ctx, func(*pool) bool { return true })
}

func (e *Engine) health(ctx context.Context, of func(*pool) bool) ([]volume.Condition, error) {
	short, cancel := context.WithTimeout(ctx, healthTimeout)
	defer cancel()
	text, err := e.MonCommand(short, []byte(`{"prefix":"health","detail":"detail","format":"json"}`))
	if errors.Is(err, errs.Unavailable) && ctx.Err() == nil {
		return []volume.Condition{{Severity: volume.Inaccessible, Reason: reasonUnreachable,
			Message: fmt.Sprintf("the monitors of Ceph cluster %s do not answer: %v", e.cluster.ID, err)}}, nil
	}
	if err != nil {
		return nil, err
	}
	report, err := parseHealth(text)
	if err != nil {
		return nil, err
	}
	var pools []poolRef
	for _, p := range e.pools {
		if of(p) {
			pools = append(pools, poolRef{p.name, p.id})
		}
	}
	return report.conditions(pools), nil
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
	text, err := e.MonCommand(ctx, []byte(`{"prefix":"df","detail":"detail","format":"json"}`))
	if err != nil {
		return volume.Capacity{}, err
	}
	all, err := parseUsage(text)
	if err != nil {
		return volume.Capacity{}, err
	}
	c := volume.Capacity{Maximum: maxSize, Minimum: newvolume.MinimumSize(query.FSType, granule)}
	for _, u := range all {
		if slices.Contains(pools, u.Name) { // pools can share OSDs, so sums would count twice
			c.Available = max(c.Available, u.free())
		}
	}
	return c, nil
}
