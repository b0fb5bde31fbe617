// Package local is the embedded engine: thin or thick volumes are files in a
// pool directory. Snapshots and clones share blocks if the pool's file system
// supports that (XFS, btrfs); otherwise they are sparse copies that run in the
// background and continue after a restart.
//
// Layout of a pool:
//
//	pool.json     version and UUID; locked while an engine serves the pool
//	engine.db     records of volumes, snapshots, groups
//	volumes/      one file for each volume, named by its id
//	snapshots/    one read-only file for each snapshot
//	incoming/     incomplete files; without a record they are removed at start
//
// Attributes of a file in volumes and snapshots have what its record had at its
// creation, and its current size and settings: Rebuild makes lost records again.
//
// An object exists once its record is committed. Its file is completed in
// incoming before the commit and renamed after it; the next start completes or
// rolls back interrupted work. Other files without a record are reported, never
// removed.
package local

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/linux/freeze"
	"github.com/cleatproject/cleat/internal/linux/mkfs"
	"github.com/cleatproject/cleat/internal/op"
	"github.com/cleatproject/cleat/internal/store"
	"github.com/cleatproject/cleat/volume"
)

// Config configures the pool.
type Config struct {
	// Pool is created if missing; a directory with foreign content is refused.
	Pool string
	// Image, if not zero, is the size in bytes of an XFS image mounted on Pool,
	// so that copies share blocks on machines whose file system cannot. A
	// larger size later grows it.
	Image int64
	// Empty: Pool with ".img" appended.
	ImagePath string
	// StateDir, if set, records the identity of the pool, so that an unmounted
	// disk is not mistaken for a new pool.
	StateDir string
	// OverProvision is the number of thin bytes promised per byte of the pool;
	// 0 means 1, less is refused.
	OverProvision float64
	// Guard freezes mounted file systems; without it their snapshots fail.
	// Close closes it.
	Guard *freeze.Guard
	// ReadOnly is implied by a read-only mount.
	ReadOnly bool
	// nil: no background events
	Logger *slog.Logger
}

// Engine serves one pool; Backend returns the abilities that it supports.
type Engine struct {
	pool   *pool
	store  *store.Store
	guard  *freeze.Guard
	tools  mkfs.Tools
	logger *slog.Logger
	locks  op.Locks // "name:", "snapname:" and "groupname:" before "vol:", "snap:" and "group:"
	budget *budget
	copies *copies

	orphans fileReport
	heart   heartbeat

	volumes, snapshots atomic.Int64

	writeBack time.Duration // writeBackBound; tests change it

	stop    context.CancelFunc
	base    context.Context
	running sync.WaitGroup
	closed  atomic.Bool
}

// Open opens or creates the pool and recovers from an interrupted run; copies
// resume in the background. Precondition: another engine serves the pool, or
// the directory is not a pool.
func Open(ctx context.Context, c Config) (*Engine, error) {
	if c.OverProvision == 0 {
		c.OverProvision = 1
	}
	if c.OverProvision < 1 {
		return nil, errs.Errorf(errs.Invalid, "an over-provisioning ratio of %v is not possible; the minimum is 1", c.OverProvision)
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Guard == nil {
		c.Guard = freeze.NewGuard()
	}
	if err := prepareImage(ctx, c); err != nil {
		return nil, err
	}
	p, err := openPool(ctx, c)
	if err != nil {
		return nil, err
	}
	e, err := newEngine(ctx, c, p)
	if err != nil {
		return nil, errors.Join(p.explainRecords(err), p.close())
	}
	if err := errors.Join(e.recover(ctx), e.guard.Prepare()); err != nil {
		return nil, errors.Join(p.explainRecords(err), e.Close(ctx))
	}
	if !p.readOnly {
		if err := e.store.KeepBackup(ctx); err != nil { // such as a full pool, in which the last copy stays
			e.logger.Warn("records not copied", "err", err)
		}
	}
	return e, nil
}

func newEngine(ctx context.Context, c Config, p *pool) (*Engine, error) {
	s, err := openStore(ctx, p)
	if err != nil {
		return nil, err
	}
	base, stop := context.WithCancel(context.WithoutCancel(ctx))
	return &Engine{
		pool: p, store: s, guard: c.Guard, logger: c.Logger.With("pool", p.path),
		budget: &budget{ratio: c.OverProvision}, copies: newCopies(), writeBack: writeBackBound,
		heart: heartbeat{write: p.writeAndForget},
		base:  base, stop: stop,
	}, nil
}

// Close stops background work at its last durable step, waits for it until the
// context ends, and releases the pool; volumes in use stay in use. No other
// call can be in flight. Close is idempotent.
func (e *Engine) Close(ctx context.Context) error {
	e.stop()
	done := make(chan struct{})
	go func() {
		e.running.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-ctx.Done():
		return errs.Errorf(errs.Unavailable, "background work in pool %s did not stop: %w", e.pool.path, context.Cause(ctx))
	}
	if e.closed.Swap(true) {
		return nil
	}
	e.guard.Close()
	return errors.Join(e.store.Close(), e.pool.close())
}

// UUID returns the UUID of the pool, which locators contain.
func (e *Engine) UUID() string { return e.pool.uuid }

// Backend returns the abilities of this pool. Deltas is always set: Delta
// returns Precondition if files cannot share blocks.
func (e *Engine) Backend() volume.Backend {
	return volume.Backend{
		Engine: e, Snapshots: e, Groups: e, Deltas: e, Modifier: e, Health: e,
		Pool:       e.pool.uuid,
		Clones:     true,
		Parameters: parameterKeys(),
		Mutable:    parameterKeys(),
	}
}

// writable returns Precondition for a pool that takes no writes: it was opened
// read-only, is not there, was remounted read-only, or a write of the last second
// failed. A disk that has not answered yet is not known to have failed.
func (e *Engine) writable(ctx context.Context) error {
	if e.pool.readOnly {
		return errs.Errorf(errs.Precondition, "pool %s is read-only; mount its file system read-write and restart the driver", e.pool.path)
	}
	if err := e.pool.checkPresent(); err != nil {
		return err
	}
	c, err := e.refusesWrites(ctx)
	if c.Reason != "" {
		return errs.Errorf(errs.Precondition, "%s: %s", c.Reason, c.Message)
	}
	return err
}
