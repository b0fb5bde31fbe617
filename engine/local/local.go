// Package local is the embedded engine: volumes are files in a pool directory
// of this machine. Size is enforced by the file, space is shared or reserved
// as each volume asks (thin, thick), and snapshots and clones share blocks
// where the pool's file system can do that (XFS, btrfs); elsewhere they are
// sparse copies that go on in the background and survive a restart.
//
// A pool looks like this:
//
//	pool.json     version and UUID; locked while an engine serves the pool
//	engine.db     what has been promised: volumes, snapshots, groups
//	volumes/      one file for each volume, named by its id
//	snapshots/    one read-only file for each snapshot
//	incoming/     files being made; what no record names is removed at start
//
// An object exists from the moment its record is committed. Its file is made
// complete in incoming first and renamed after the commit; a start finishes
// what a crash cut off, in either direction. A file in volumes or snapshots
// without a record is never removed, only reported.
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

// Config says which pool to serve, and how.
type Config struct {
	// Pool is the directory. It is made when missing; a directory with
	// foreign content is refused.
	Pool string
	// Image, when not zero, is the size in bytes of an XFS file system in one
	// file that is made once and mounted on Pool, so that copies share blocks
	// on a machine whose own file system cannot. A later, larger size grows it.
	Image int64
	// ImagePath is the file of Image; empty is Pool with ".img" appended.
	ImagePath string
	// StateDir, when set, is where the identity of the pool is remembered, so
	// that a disk that is not mounted is not taken for a new, empty pool.
	StateDir string
	// OverProvision is how many bytes of thin volumes may be promised for each
	// byte of the pool; 0 means 1, less than 1 is refused.
	OverProvision float64
	// Guard freezes mounted file systems while a snapshot is taken; nil: none,
	// and mounted file systems have no snapshots. Close closes it.
	Guard *freeze.Guard
	// ReadOnly serves what is there and changes nothing. A pool on a read-only
	// mount is served that way by itself.
	ReadOnly bool
	// Logger gets what happens without a caller; nil discards it.
	Logger *slog.Logger
}

// Engine serves one pool. It implements all abilities; Backend says which of
// them this pool really has.
type Engine struct {
	pool   *pool
	store  *store.Store
	guard  *freeze.Guard
	tools  mkfs.Tools
	logger *slog.Logger
	locks  op.Locks // "name:", "snapname:" and "groupname:" before "vol:", "snap:" and "group:"
	budget *budget
	copies *copies

	orphans orphanage
	heart   heartbeat

	volumes, snapshots atomic.Int64 // for metrics

	writeBack time.Duration // writeBackBound, but in tests

	stop    context.CancelFunc // ends background work
	base    context.Context    // of background work
	running sync.WaitGroup
	closed  atomic.Bool
}

// Open opens the pool, makes it when it is new, and finishes what an earlier
// engine left half done: it thaws first, then completes renames and
// deletions, and resumes copies in the background. Precondition: another
// engine serves the pool, or the directory is not a pool.
func Open(ctx context.Context, c Config) (*Engine, error) {
	if c.OverProvision == 0 {
		c.OverProvision = 1
	}
	if c.OverProvision < 1 {
		return nil, errs.Errorf(errs.Invalid, "an over-provisioning ratio of %v is not possible, the smallest is 1", c.OverProvision)
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

// Close stops background work at its last durable step, waits for it as long
// as the context lets it, and gives the pool free. Volumes in use stay in use.
// No call may run any more. A second Close is harmless.
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
		return errs.Errorf(errs.Unavailable, "background work in pool %s does not end: %w", e.pool.path, context.Cause(ctx))
	}
	if e.closed.Swap(true) {
		return nil
	}
	e.guard.Close()
	return errors.Join(e.store.Close(), e.pool.close())
}

// UUID identifies the pool; locators of its volumes carry it.
func (e *Engine) UUID() string { return e.pool.uuid }

// Backend returns the engine with the abilities that this pool has. Changed
// blocks are offered on every pool: which blocks hold data can always be told;
// which differ only where files share blocks, elsewhere Delta answers
// Precondition.
func (e *Engine) Backend() volume.Backend {
	return volume.Backend{
		Engine: e, Snapshots: e, Groups: e, Deltas: e, Modifier: e, Health: e,
		Pool:       e.pool.uuid,
		Clones:     true,
		Parameters: parameterKeys(),
		Mutable:    parameterKeys(),
	}
}

// writable refuses every change of a pool that is served read-only, or that is
// not at its path any more.
func (e *Engine) writable() error {
	if e.pool.readOnly {
		return errs.Errorf(errs.Precondition, "pool %s is read-only: mount its file system read-write and start again", e.pool.path)
	}
	return e.pool.checkPresent()
}
