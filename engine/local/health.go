package local

import (
	"context"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/volume"
)

// Reasons are part of the API.
const (
	reasonFileMissing   = "BackingFileMissing"
	reasonFileForeign   = "BackingFileForeign"
	reasonFileTruncated = "BackingFileTruncated"
	reasonPoolFull      = "PoolNearlyFull"
	reasonPoolMissing   = "PoolMissing"
	reasonPoolReadOnly  = "PoolReadOnly"
	reasonPoolFailed    = "PoolFailed"
	reasonOrphan        = "OrphanFile"
	// in StorageHealth: snapshots have no health RPC
	reasonSnapshotDamaged = "SnapshotDamaged"
	// reasonFilled: a copy into the volume runs.
	reasonFilled = "BeingFilled"
	// reasonCopied: the volume cannot be attached before its copies are
	// complete.
	reasonCopied = "BeingCopied"
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
		return append(all, volume.Condition{Severity: volume.Inaccessible, Reason: reasonFilled,
			Message: describeProgress(e.volume(id, r).Progress) + " copied; the volume is usable after the copy"}), nil
	}
	if e.pool.has(incomingDir, string(id)) {
		return append(all, volume.Condition{Severity: volume.Inaccessible, Reason: reasonFileMissing,
			Message: fmt.Sprintf("the volume's file is still in %s: it is being created, or the pool was full at the last start; then free space and restart the driver", incomingDir)}), nil
	}
	_, err = e.pool.inspect(volumesDir+"/"+string(id), r.Size)
	c, err := conditionOf(err)
	if c.Reason != "" {
		return append(all, c), err
	}
	if p, running := e.copies.progressFrom(volumesDir + "/" + string(id)); err == nil && running {
		all = append(all, volume.Condition{Severity: volume.Degraded, Reason: reasonCopied,
			Message: describeProgress(p) + " copied; the volume can be attached after the copy, which needs unchanged data"})
	}
	return all, err
}

func describeProgress(p volume.Progress) string {
	percent := int64(100)
	if p.Total > 0 {
		percent = 100 * p.Done / p.Total
	}
	return fmt.Sprintf("%d %% (%d of %d bytes)", percent, p.Done, p.Total)
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
	st, err := e.pool.statfs()
	if err != nil {
		return nil, err
	}
	if st.Flags&unix.ST_RDONLY != 0 {
		all = append(all, volume.Condition{Severity: volume.Degraded, Reason: reasonPoolReadOnly,
			Message: fmt.Sprintf("the file system of pool %s is mounted read-only; check the kernel log for the reason", e.pool.path)})
	} else if c := e.failure(ctx); c.Reason != "" {
		return []volume.Condition{c}, nil
	}
	s, err := e.pool.space()
	if err != nil {
		return nil, err
	}
	if needsSpace && s.nearlyFull() {
		all = append(all, volume.Condition{Severity: volume.Degraded, Reason: reasonPoolFull,
			Message: fmt.Sprintf("the pool has %d of %d bytes left, and writes to thin volumes fail when it is full; delete volumes or enlarge the pool", s.free, s.total)})
	}
	return all, nil
}

func inaccessible(all []volume.Condition) bool {
	return slices.ContainsFunc(all, func(c volume.Condition) bool { return c.Severity == volume.Inaccessible })
}
