package local

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/volume"
)

// Reasons of conditions.
const (
	reasonFileMissing   = "BackingFileMissing"
	reasonFileTruncated = "BackingFileTruncated"
	reasonPoolFull      = "PoolNearlyFull"
	reasonPoolMissing   = "PoolMissing"
	reasonPoolReadOnly  = "PoolReadOnly"
	reasonPoolFailed    = "PoolFailed"
	reasonOrphan        = "OrphanFile"
	// reasonFilled: the volume is not there yet, its copy is under way.
	reasonFilled = "BeingFilled"
	// reasonCopied: the volume can be attached when its copies are done.
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
			Message: describeProgress(e.volume(id, r).Progress) + " copied; the volume can be used when all is"}), nil
	}
	c, err := e.fileHealth(id, r)
	if c.Reason != "" {
		return append(all, c), err
	}
	if p, running := e.copies.progressFrom(volumesDir + "/" + string(id)); err == nil && running {
		all = append(all, volume.Condition{Severity: volume.Degraded, Reason: reasonCopied,
			Message: describeProgress(p) + " copied, and nobody may write meanwhile; the volume can be attached when all is"})
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

// fileHealth looks at the backing file; an empty reason is "well".
func (e *Engine) fileHealth(id volume.ID, r volumeRecord) (volume.Condition, error) {
	name := volumesDir + "/" + string(id)
	info, err := e.pool.root.Lstat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return volume.Condition{Severity: volume.DataLoss, Reason: reasonFileMissing,
			Message: fmt.Sprintf("%s is gone from the pool; restore a snapshot or a backup, and delete the volume", name)}, nil
	case err != nil:
		return volume.Condition{}, err
	case info.Size() < r.Size:
		return volume.Condition{Severity: volume.DataLoss, Reason: reasonFileTruncated,
			Message: fmt.Sprintf("%s has %d of %d bytes; somebody cut it off", name, info.Size(), r.Size)}, nil
	}
	return volume.Condition{}, nil
}

// StorageHealth implements volume.Health.
func (e *Engine) StorageHealth(ctx context.Context) ([]volume.Condition, error) {
	all, err := e.poolHealth(ctx, true)
	if err != nil || inaccessible(all) {
		return all, err
	}
	c, err := e.orphanHealth(ctx)
	if c.Reason != "" {
		all = append(all, c)
	}
	return all, err
}

// poolHealth looks at the pool; space only matters to those who still need it.
func (e *Engine) poolHealth(ctx context.Context, needsSpace bool) ([]volume.Condition, error) {
	if gone, why := e.poolMissing(); gone {
		return []volume.Condition{{Severity: volume.Inaccessible, Reason: reasonPoolMissing, Message: why}}, nil
	}
	var all []volume.Condition
	st, err := e.pool.statfs()
	if err != nil {
		return nil, err
	}
	if st.Flags&unix.ST_RDONLY != 0 {
		all = append(all, volume.Condition{Severity: volume.Degraded, Reason: reasonPoolReadOnly,
			Message: fmt.Sprintf("the file system of pool %s is mounted read-only; look into the kernel's log for why", e.pool.path)})
	} else if c := e.failure(ctx); c.Reason != "" {
		return []volume.Condition{c}, nil
	}
	s, err := e.pool.space()
	if err != nil {
		return nil, err
	}
	if needsSpace && s.nearlyFull() {
		all = append(all, volume.Condition{Severity: volume.Degraded, Reason: reasonPoolFull,
			Message: fmt.Sprintf("the pool has %d of %d bytes left; when full, thin volumes fail to write: make room or enlarge it", s.free, s.total)})
	}
	return all, nil
}

// poolMissing reports whether the directory that is open is no longer the one
// that the path leads to.
func (e *Engine) poolMissing() (bool, string) {
	held, err := e.pool.identity.Stat()
	if err != nil {
		return true, fmt.Sprintf("pool %s does not answer: %v", e.pool.path, err)
	}
	seen, err := os.Stat(e.pool.path + "/" + identityName)
	if err != nil || !sameFile(held, seen) {
		return true, fmt.Sprintf("at %s there is no longer pool %s; mount its disk there again", e.pool.path, e.pool.uuid)
	}
	return false, ""
}

func sameFile(a, b fs.FileInfo) bool {
	x, okX := a.Sys().(*syscall.Stat_t)
	y, okY := b.Sys().(*syscall.Stat_t)
	return okX && okY && x.Dev == y.Dev && x.Ino == y.Ino
}

// inaccessible reports whether nothing more can be said than that.
func inaccessible(all []volume.Condition) bool {
	return slices.ContainsFunc(all, func(c volume.Condition) bool { return c.Severity == volume.Inaccessible })
}
