package local

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/linux/flock"
	"github.com/cleatproject/cleat/internal/store"
)

const (
	// rebuildDraft is the store until it is complete.
	rebuildDraft = "." + storeName + ".rebuild"
	// asidePrefix begins the names of replaced stores.
	asidePrefix = storeName + ".damaged-"
)

// RebuildOptions are the options of Rebuild.
type RebuildOptions struct {
	// ReplaceReadable allows Rebuild to replace an intact engine.db.
	ReplaceReadable bool
}

// Rebuilt is the result of Rebuild.
type Rebuilt struct {
	Objects []RebuiltObject `json:"objects"`
	// Files that got no record, with the reason.
	Ignored []IgnoredFile `json:"ignored,omitempty"`
	// The previous engine.db; empty if it was missing.
	Aside string `json:"aside,omitempty"`
}

// RebuiltObject is a new record of a volume, snapshot or group.
type RebuiltObject struct {
	Kind string `json:"kind"` // volume, snapshot, group
	ID   string `json:"id"`
	Name string `json:"name"`
	// What is not known from the files.
	Unknown []string `json:"unknown,omitempty"`
}

// IgnoredFile is a file of the pool without a record.
type IgnoredFile struct {
	Path   string `json:"path"`
	Reason string `json:"reason"`
}

// Complete reports whether all records are as they were.
func (r Rebuilt) Complete() bool {
	for _, o := range r.Objects {
		if len(o.Unknown) > 0 {
			return false
		}
	}
	return len(r.Ignored) == 0
}

// Rebuild makes a lost or damaged engine.db again from the files of the pool and
// their attributes, while no driver serves it. It deletes and formats nothing:
// the previous engine.db is renamed, and a volume whose content is unknown is
// not blank. Fences and grants are in another store. Precondition: a driver
// serves the pool, the pool is not mounted, or its engine.db is readable or of
// another release.
func Rebuild(ctx context.Context, c Config, o RebuildOptions) (Rebuilt, error) {
	path, err := realPath(c.Pool)
	if err != nil {
		return Rebuilt{}, err
	}
	r, err := rebuild(ctx, path, c.StateDir, o)
	if err != nil {
		return Rebuilt{}, fmt.Errorf("rebuild the records of pool %s: %w", path, err)
	}
	return r, nil
}

func rebuild(ctx context.Context, path, stateDir string, o RebuildOptions) (r Rebuilt, err error) {
	p, err := openExisting(path, stateDir)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, p.close()) }()
	if err := p.checkLost(ctx, o); err != nil {
		return r, err
	}
	f, err := p.scanFiles()
	if err != nil {
		return r, err
	}
	if err := p.writeRecords(ctx, f.records); err != nil {
		return r, err
	}
	r = Rebuilt{Objects: f.objects, Ignored: f.ignored}
	if r.Aside, err = p.moveAside(); err != nil {
		return r, err
	}
	return r, errors.Join(p.root.Rename(rebuildDraft, storeName), p.syncDir("."))
}

// openExisting locks a pool without changing it.
func openExisting(path, stateDir string) (*pool, error) {
	expected, err := recordedPool(stateDir, path)
	if err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(path)
	if err != nil {
		return nil, err
	}
	p := &pool{path: path, root: root, readOnly: true}
	if _, err = root.Lstat(identityName); errors.Is(err, fs.ErrNotExist) {
		err = errs.Errorf(errs.Precondition, "it has no %s; mount the disk or the image of the pool (a start of the driver mounts its image)", identityName)
	}
	if err == nil {
		err = p.identify(expected)
	}
	if errors.Is(err, flock.ErrHeld) {
		err = fmt.Errorf("%w; stop the driver first", err)
	}
	if err != nil {
		return nil, errors.Join(err, p.close())
	}
	return p, nil
}

// checkLost refuses records that can still be used. Only damage and absence are
// evidence that they cannot: a disk that fails, or a newer release, is not.
func (p *pool) checkLost(ctx context.Context, o RebuildOptions) error {
	if _, err := p.root.Lstat(storeName); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	switch err := p.readRecords(ctx); {
	case errors.Is(err, store.ErrDamaged):
		return nil
	case err != nil:
		return fmt.Errorf("it is unknown whether %s is damaged: %w", storeName, err)
	case !o.ReplaceReadable:
		return errs.Errorf(errs.Precondition, "%s is readable and knows more than the files; start the driver, or repeat with --replace-readable", storeName)
	}
	return nil
}

func (p *pool) readRecords(ctx context.Context) error {
	s, err := store.Open(ctx, filepath.Join(p.path, storeName), store.Options{Role: p.storeRole(), Version: recordVersion, ReadOnly: true})
	if err != nil {
		return err
	}
	_, err = (&Engine{pool: p, store: s, budget: &budget{ratio: 1}}).scanRecords(ctx)
	return errors.Join(err, s.Close())
}

func (p *pool) writeRecords(ctx context.Context, r records) error {
	if err := p.removeNames(rebuildDraft); err != nil {
		return err
	}
	s, err := store.Open(ctx, filepath.Join(p.path, rebuildDraft), store.Options{Role: p.storeRole(), Version: recordVersion, Preallocate: storeReserve})
	if err != nil {
		return fmt.Errorf("%s, which needs %d bytes in the pool: %w", storeName, storeReserve, err)
	}
	return errors.Join(s.Update(ctx, r.put), s.Close())
}

// moveAside renames the previous store, and its copy. Until the new one has its name the
// driver does not start, and a repeated Rebuild completes.
func (p *pool) moveAside() (string, error) {
	aside := asidePrefix + time.Now().UTC().Format("20060102T150405.000000000")
	// The next start makes another copy.
	err := p.root.Rename(recordsBackup, aside+".backup")
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		err = p.root.Rename(storeName, aside)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	return filepath.Join(p.path, aside), err
}
