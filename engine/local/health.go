package local

import (
	"context"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/volume"
)

// VolumeHealth implements volume.Health.
func (e *Engine) VolumeHealth(ctx context.Context, id volume.ID) ([]volume.Condition, error) {
	r, err := e.volumeRecord(ctx, id)
	if err != nil {
		return nil, err
	}
	all, err := e.poolHealth(ctx, !r.Settings.thick())
	if err != nil || inaccessible(all) {
		return all, err
	}
	if r.State != ready {
		return append(all, volume.NewCondition(volume.Inaccessible, volume.ReasonBeingFilled, describeProgress(e.volume(id, r).Progress))), nil
	}
	if e.pool.has(incomingDir, string(id)) {
		return append(all, volume.NewCondition(volume.Inaccessible, volume.ReasonFileIncoming,
			incomingDir+"/"+string(id)+" is being created, or the pool was full at the last start")), nil
	}
	_, err = e.pool.inspect(volumesDir+"/"+string(id), r.Size)
	c, err := conditionOf(err)
	if c.Reason != "" {
		return append(all, c), err
	}
	if p, running := e.copies.progressFrom(volumesDir + "/" + string(id)); err == nil && running {
		all = append(all, volume.NewCondition(volume.Degraded, volume.ReasonBeingCopied, describeProgress(p)))
	}
	return all, err
}

func describeProgress(p volume.Progress) string {
	percent := int64(100)
	if p.Total > 0 {
		percent = 100 * p.Done / p.Total
	}
	return fmt.Sprintf("%d %% (%d of %d bytes) are copied", percent, p.Done, p.Total)
}

// StorageHealth implements volume.Health.
func (e *Engine) StorageHealth(ctx context.Context) ([]volume.Condition, error) {
	all, err := e.poolHealth(ctx, true)
	if err != nil || inaccessible(all) {
		return all, err
	}
	more, err := e.fileHealth(ctx)
	return append(all, more...), err
}

// poolHealth returns the conditions of the pool; a lack of space only if
// needsSpace is set.
func (e *Engine) poolHealth(ctx context.Context, needsSpace bool) ([]volume.Condition, error) {
	if c, err := conditionOf(e.pool.checkPresent()); c.Reason != "" || err != nil {
		return []volume.Condition{c}, err
	}
	var all []volume.Condition
	c, err := e.refusesWrites(ctx)
	if c.Reason != "" {
		all = append(all, c)
	}
	if err != nil || inaccessible(all) {
		return all, err
	}
	s, err := e.pool.space()
	if err != nil {
		return nil, err
	}
	switch {
	case !needsSpace:
	case e.isFull(ctx):
		all = append(all, volume.NewCondition(volume.Degraded, volume.ReasonPoolNearlyFull,
			fmt.Sprintf("%s has no space for another file, with %d of %d bytes left: its file system lacks bytes or inodes", e.pool.path, s.free, s.total)))
	case s.nearlyFull():
		all = append(all, volume.NewCondition(volume.Degraded, volume.ReasonPoolNearlyFull,
			fmt.Sprintf("%s has %d of %d bytes left; writes to thin volumes fail when it is full", e.pool.path, s.free, s.total)))
	}
	return all, nil
}

// refusesWrites returns the condition of a pool that takes no writes; an empty
// reason means that it does, or is full.
func (e *Engine) refusesWrites(ctx context.Context) (volume.Condition, error) {
	st, err := e.pool.statfs()
	if err != nil {
		return volume.Condition{}, err
	}
	if st.Flags&unix.ST_RDONLY != 0 {
		return volume.NewCondition(volume.Degraded, volume.ReasonPoolReadOnly, e.pool.path+" is mounted read-only"), nil
	}
	return e.failure(ctx), nil
}

func inaccessible(all []volume.Condition) bool {
	return slices.ContainsFunc(all, func(c volume.Condition) bool { return c.Severity == volume.Inaccessible })
}
