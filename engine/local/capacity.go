package local

import (
	"context"
	"io/fs"
	"math"
	"sync"
	"syscall"
	"time"

	"github.com/cleatproject/cleat/engine/newvolume"
	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/linux/mkfs"
	"github.com/cleatproject/cleat/internal/linux/retry"
	"github.com/cleatproject/cleat/volume"
)

const (
	granule    = 4096 // bytes; all sizes are multiples
	minReserve = 64 << 20
	// freshness is the maximum age of the sum of allocated bytes when a request
	// is refused.
	freshness = time.Second
	// After a removal the file system can free blocks for reclaimWithin;
	// reclaimWait limits the wait for them.
	reclaimWithin = 10 * time.Second
	reclaimWait   = 500 * time.Millisecond
	// blockUnit is the unit of st_blocks.
	blockUnit = 512
)

type space struct {
	total int64
	free  int64 // available to cleat
	used  int64 // used by all files, also foreign ones
}

func (s space) reserve() int64 { return max(minReserve, s.total/100) }

func (s space) full() bool { return s.free < s.reserve() }

func (s space) nearlyFull() bool { return s.free < max(2*s.reserve(), s.total/20) }

func (p *pool) space() (space, error) {
	st, err := p.statfs()
	if err != nil {
		return space{}, errs.Errorf(errs.Unavailable, "pool %s does not answer: %w", p.path, err)
	}
	unit := st.Frsize
	if unit == 0 {
		unit = st.Bsize
	}
	return space{
		total: int64(st.Blocks) * unit, free: int64(st.Bavail) * unit, used: int64(st.Blocks-st.Bfree) * unit,
	}, nil
}

// budget keeps the sums of promised space. Space is promised before a volume is
// created, so that concurrent calls never promise the same byte twice.
type budget struct {
	mu      sync.Mutex
	ratio   float64
	thin    int64 // sum of thin sizes
	thick   int64 // sum of thick sizes, and of what snapshots pin for them
	pending int64 // thick without allocated blocks yet

	allocated int64
	refreshed time.Time
	emptied   time.Time // last removal of a file with blocks
}

// left returns how many bytes can still be promised. The pool's share of the
// file system is the free space and the space of its own files. Thick promises
// use it byte for byte and thin promises divided by the ratio; neither can
// exceed the space that is free now, by the same ratio.
func (b *budget) left(s space, isThick bool) int64 {
	free := max(0, s.free-s.reserve()-b.pending)
	part := max(0, s.free+min(b.allocated, s.used)-s.reserve())
	if isThick {
		return max(0, min(free, part-b.thick-int64(math.Ceil(float64(b.thin)/b.ratio))))
	}
	return max(0, min(scale(b.ratio, free), scale(b.ratio, part-b.thick)-b.thin))
}

func scale(ratio float64, bytes int64) int64 {
	if scaled := ratio * float64(bytes); scaled < math.MaxInt64/2 {
		return int64(scaled)
	}
	return math.MaxInt64 / 2
}

func (b *budget) promise(s space, bytes int64, isThick bool) (left int64, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if left = b.left(s, isThick); bytes > left {
		return left, false
	}
	b.add(bytes, isThick)
	if isThick {
		b.pending += bytes
	}
	return left, true
}

func (b *budget) markAllocated(bytes int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.pending -= bytes
}

// record also counts beyond the size of the pool.
func (b *budget) record(bytes int64, isThick bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.add(bytes, isThick)
}

func (b *budget) release(bytes int64, isThick bool) { b.record(-bytes, isThick) }

func (b *budget) add(bytes int64, isThick bool) {
	if isThick {
		b.thick += bytes
	} else {
		b.thin += bytes
	}
}

func (b *budget) promised() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.thin + b.thick
}

func (b *budget) setAllocated(bytes int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.allocated, b.refreshed = bytes, time.Now()
}

func (b *budget) freed(bytes int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.allocated = max(0, b.allocated-bytes)
	if bytes > 0 {
		b.emptied = time.Now()
	}
}

// reclaimDelay is how long to wait for space: file systems such as XFS free the
// blocks of a removed file asynchronously.
func (b *budget) reclaimDelay() time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	if time.Since(b.emptied) < reclaimWithin {
		return reclaimWait
	}
	return 0
}

func (b *budget) stale() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return time.Since(b.refreshed) > freshness
}

// promise reserves space until undo, or returns Exhausted.
func (e *Engine) promise(ctx context.Context, bytes int64, isThick bool) (undo func(), err error) {
	if bytes == 0 {
		return func() {}, nil
	}
	err = retry.For(ctx, e.budget.reclaimDelay(), func() (again bool, err error) {
		err = e.tryPromise(bytes, isThick, false)
		if err != nil && !e.pool.ownMount && e.budget.stale() {
			err = e.tryPromise(bytes, isThick, true)
		}
		return errs.KindOf(err) == errs.Exhausted, err
	})
	if err != nil {
		return nil, err
	}
	return func() {
		e.markAllocated(bytes, isThick)
		e.budget.release(bytes, isThick)
	}, nil
}

func (e *Engine) tryPromise(bytes int64, isThick, fresh bool) error {
	s, err := e.measured(fresh)
	if err != nil {
		return err
	}
	if left, ok := e.budget.promise(s, bytes, isThick); !ok {
		return e.exhausted(s, bytes, left, isThick)
	}
	return nil
}

func (e *Engine) exhausted(s space, bytes, left int64, isThick bool) error {
	kind := thin
	if isThick {
		kind = thick
	}
	return errs.Errorf(errs.Exhausted, "pool %s cannot promise %d bytes more to a %s volume: %d bytes are left (file system: %d of %d bytes free, %d of them in reserve; promised to volumes: %d bytes; over-provisioning ratio: %v)",
		e.pool.path, bytes, kind, left, s.free, s.total, s.reserve(), e.budget.promised(), e.budget.ratio)
}

func (e *Engine) markAllocated(bytes int64, isThick bool) {
	if isThick {
		e.budget.markAllocated(bytes)
	}
}

// measured returns the usage of the file system. On a file system of the pool's
// own all used space is the pool's; elsewhere, and only if fresh is set, the
// sizes of all files are summed.
func (e *Engine) measured(fresh bool) (space, error) {
	s, err := e.pool.space()
	if err != nil {
		return s, err
	}
	switch {
	case e.pool.ownMount:
		e.budget.setAllocated(max(0, s.used-e.pool.overhead))
	case fresh:
		sum, err := e.pool.allocated()
		if err != nil {
			return s, err
		}
		e.budget.setAllocated(sum)
	}
	return s, nil
}

// measureOverhead measures the file system's own structures and the records,
// once, on a file system of the pool's own.
func (e *Engine) measureOverhead() error {
	s, err := e.pool.space()
	if err != nil {
		return err
	}
	sum, err := e.pool.allocated()
	if err != nil {
		return err
	}
	// The sum counts shared blocks several times.
	e.pool.overhead = max(s.used-sum, storeReserve)
	_, err = e.measured(true)
	return err
}

// allocated counts shared blocks once for each file; budget.left limits the
// sum.
func (p *pool) allocated() (int64, error) {
	var sum int64
	for _, dir := range []string{volumesDir, snapshotsDir, incomingDir} {
		entries, err := fs.ReadDir(p.root.FS(), dir)
		if err != nil {
			return 0, err
		}
		for _, entry := range entries {
			if info, err := entry.Info(); err == nil {
				sum += blocksOf(info)
			}
		}
	}
	return sum, nil
}

func blocksOf(info fs.FileInfo) int64 {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return st.Blocks * blockUnit
	}
	return 0
}

// Capacity implements volume.Engine.
func (e *Engine) Capacity(ctx context.Context, query volume.CapacityQuery) (volume.Capacity, error) {
	if err := ctx.Err(); err != nil {
		return volume.Capacity{}, err
	}
	requested, err := parseSettings(settings{Provisioning: thin}, query.Parameters)
	if err != nil {
		return volume.Capacity{}, err
	}
	minimum, err := minimumFor(query)
	if err != nil {
		return volume.Capacity{}, err
	}
	if e.writable(ctx) != nil || e.isFull(ctx) {
		return volume.Capacity{Minimum: minimum}, nil
	}
	s, err := e.measured(e.budget.stale())
	if err != nil {
		return volume.Capacity{}, err
	}
	e.budget.mu.Lock()
	left := e.budget.left(s, requested.thick())
	e.budget.mu.Unlock()
	left -= left % granule
	return volume.Capacity{Available: left, Maximum: min(left, e.pool.largest), Minimum: minimum}, nil
}

func minimumFor(query volume.CapacityQuery) (int64, error) {
	switch {
	case query.FSType != "":
		t, err := mkfs.ParseType(query.FSType)
		if err != nil {
			return 0, err
		}
		return newvolume.MinimumSize(string(t), granule), nil
	case query.Content == volume.Filesystem:
		return newvolume.MinimumSize(string(mkfs.Ext4), granule), nil
	}
	return granule, nil
}
