package local

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/cleatproject/cleat/internal/store"
	"github.com/cleatproject/cleat/volume"
)

const (
	// orphansNamed is how many files without a record a message names.
	orphansNamed = 5
	// orphansKept is how long a search for them is good enough: it looks at
	// every file, and health is asked for often.
	orphansKept = time.Minute
)

// orphanage remembers what the last search found.
type orphanage struct {
	mu    sync.Mutex
	at    time.Time
	names []string
}

// orphanHealth reports files that belong to nothing; an empty reason is "none".
func (e *Engine) orphanHealth(ctx context.Context) (volume.Condition, error) {
	o := &e.orphans
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.at.IsZero() || time.Since(o.at) > orphansKept {
		names, err := e.findOrphans(ctx, orphansNamed+1)
		if err != nil {
			return volume.Condition{}, err
		}
		o.at, o.names = time.Now(), names
	}
	if len(o.names) == 0 {
		return volume.Condition{}, nil
	}
	words := strings.Join(o.names[:min(len(o.names), orphansNamed)], ", ")
	if len(o.names) > orphansNamed {
		words += " and more"
	}
	return volume.Condition{Severity: volume.Degraded, Reason: reasonOrphan,
		Message: fmt.Sprintf("these files belong to no volume or snapshot and are left alone: %s", words)}, nil
}

// findOrphans returns the files that no record knows, at most limit of them.
// The names are read before the records: a file appears after its record and
// goes before it.
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

// has tells a file without a record from one that was deleted between the
// look at the names and the look at the records.
func (p *pool) has(dir, name string) bool {
	_, err := p.root.Lstat(dir + "/" + name)
	return !errors.Is(err, os.ErrNotExist)
}
