package local

import (
	"context"
	"errors"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/cleatproject/cleat/internal/store"
	"github.com/cleatproject/cleat/volume"
)

const (
	orphansNamed = 5
	// orphansKept limits searches of every file: health is requested often.
	orphansKept = time.Minute
)

type fileReport struct {
	mu      sync.Mutex
	at      time.Time
	names   []string
	damaged []string
}

// fileHealth reports files without a record, which restrict nothing, and damaged
// snapshot files. VolumeHealth reports damaged volume files.
func (e *Engine) fileHealth(ctx context.Context) (all []volume.Condition, err error) {
	o := &e.orphans
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.at.IsZero() || time.Since(o.at) > orphansKept {
		if o.names, err = e.findOrphans(ctx, orphansNamed+1); err != nil {
			return nil, err
		}
		if o.damaged, err = e.findDamagedSnapshots(ctx, orphansNamed+1); err != nil {
			return nil, err
		}
		o.at = time.Now()
	}
	if len(o.names) > 0 {
		all = append(all, volume.NewCondition(volume.Notice, volume.ReasonOrphanFile, firstOf(o.names, ", ")+" without a volume or snapshot; cleat removes no such file"))
	}
	if len(o.damaged) > 0 {
		all = append(all, volume.NewCondition(volume.Degraded, volume.ReasonSnapshotDamaged, firstOf(o.damaged, "; ")))
	}
	return all, nil
}

func firstOf(words []string, separator string) string {
	text := strings.Join(words[:min(len(words), orphansNamed)], separator)
	if len(words) > orphansNamed {
		text += " and more"
	}
	return text
}

// findDamagedSnapshots describes the damage of at most limit snapshots. A file
// gets its name after its record is committed, and is removed after its record
// is marked.
func (e *Engine) findDamagedSnapshots(ctx context.Context, limit int) (found []string, err error) {
	all, err := e.ListSnapshots(ctx, volume.SnapshotQuery{})
	if err != nil {
		return nil, err
	}
	for _, s := range all {
		if !s.Ready || e.pool.has(incomingDir, string(s.ID)) {
			continue
		}
		_, err := e.pool.inspect(snapshotFile(s.ID), s.Size)
		d, isDamaged := errors.AsType[*damage](err)
		if err != nil && !isDamaged {
			return nil, err
		}
		if !isDamaged {
			continue
		}
		if r, err := e.snapshotRecord(ctx, s.ID); err == nil && r.State == ready && len(found) < limit {
			found = append(found, d.what)
		}
	}
	return found, nil
}

// findOrphans returns at most limit files without a record. It reads the names
// before the records, since a file appears after its record and is removed
// before it.
func (e *Engine) findOrphans(ctx context.Context, limit int) (names []string, err error) {
	for _, dir := range []string{volumesDir, snapshotsDir} {
		files, err := e.pool.names(dir)
		if err != nil {
			return nil, err
		}
		err = e.store.View(ctx, func(tx *store.Tx) error {
			for _, name := range files {
				at, s, err := recordIn(tx, name)
				if err != nil {
					return err
				}
				if (s == "" || at != dir) && len(names) < limit && e.pool.has(dir, name) {
					names = append(names, dir+"/"+name)
				}
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return names, nil
}

func (p *pool) names(dir string) ([]string, error) {
	d, err := p.root.Open(dir)
	if err != nil {
		return nil, err
	}
	names, err := d.Readdirnames(-1)
	return names, errors.Join(err, d.Close())
}

// has excludes files that were deleted after the names were read.
func (p *pool) has(dir, name string) bool {
	_, err := p.root.Lstat(dir + "/" + name)
	return !errors.Is(err, os.ErrNotExist)
}
