package local

import (
	"context"
	"io/fs"
	"math"
	"sync"
	"syscall"
	"time"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/linux/mkfs"
	"github.com/cleatproject/cleat/internal/linux/retry"
	"github.com/cleatproject/cleat/volume"
)

const (
	granule     = 4096 // bytes; every size is a multiple
	defaultSize = 1 << 30
	minReserve  = 64 << 20
	// freshness is how old the sum of allocated bytes may be before a refusal
	// is based on it.
	freshness = time.Second
	// reclaimWithin is how long after a removal its blocks may still be on
	// their way back, and reclaimWait how long to wait for them.
	reclaimWithin = 10 * time.Second
	reclaimWait   = 500 * time.Millisecond
	// blockUnit is what st_blocks counts in.
	blockUnit = 512
)

// space is what a pool's file system says about itself, in bytes.
type space struct {
	total int64 // of the file system
	free  int64 // that may still be used
	used  int64 // by anybody
}

func (s space) reserve() int64 { return max(minReserve, s.total/100) }

// full reports whether nothing more may be promised.
func (s space) full() bool { return s.free < s.reserve() }

// nearlyFull reports whether someone should look after the pool soon.
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

// budget keeps the sums of what volumes were promised, so that no call has to
// look at all of them. A promise is made before the volume is, and taken back
// when that fails: concurrent calls never promise the same byte twice.
type budget struct {
	mu      sync.Mutex
	ratio   float64
	thin    int64 // sum of thin sizes
	thick   int64 // sum of thick sizes, and of what snapshots pin for them
	pending int64 // part of thick that has not got its blocks yet

	ours      int64 // bytes that the pool's files have allocated
	refreshed time.Time
	emptied   time.Time // when a file with blocks was last removed
}

// left returns how many more bytes may be promised. The pool's part of the
// file system is what its files have and what is free. Thick promises take of
// it byte for byte, thin ones through the ratio; neither may exceed what is
// free right now, through the same ratio.
func (b *budget) left(s space, isThick bool) int64 {
	free := max(0, s.free-s.reserve()-b.pending)
	part := max(0, s.free+min(b.ours, s.used)-s.reserve())
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

// promise takes bytes out of the budget if they are there.
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

// settle says that a thick promise has its blocks now.
func (b *budget) settle(bytes int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.pending -= bytes
}

// record counts what exists already, whatever the pool has.
func (b *budget) record(bytes int64, isThick bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.add(bytes, isThick)
}

// release gives promised bytes back.
func (b *budget) release(bytes int64, isThick bool) { b.record(-bytes, isThick) }

func (b *budget) add(bytes int64, isThick bool) {
	if isThick {
		b.thick += bytes
	} else {
		b.thin += bytes
	}
}

// promised returns the sum of all promises.
func (b *budget) promised() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.thin + b.thick
}

func (b *budget) setOurs(bytes int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ours, b.refreshed = bytes, time.Now()
}

func (b *budget) freed(bytes int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ours = max(0, b.ours-bytes)
	if bytes > 0 {
		b.emptied = time.Now()
	}
}

// patience is how long to wait for room: file systems such as XFS give the
// blocks of a removed file back a moment later.
func (b *budget) patience() time.Duration {
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

// promise reserves room for a volume before anything is made; undo gives it
// back. Exhausted: there is none.
func (e *Engine) promise(ctx context.Context, bytes int64, isThick bool) (undo func(), err error) {
	if bytes == 0 {
		return func() {}, nil
	}
	err = retry.For(ctx, e.budget.patience(), func() (again bool, err error) {
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
		e.settled(bytes, isThick)
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

// settled says that a volume of that size has its blocks.
func (e *Engine) settled(bytes int64, isThick bool) {
	if isThick {
		e.budget.settle(bytes)
	}
}

// measured asks the file system. On a file system of its own what is used is
// the pool's; elsewhere the files are summed up, at most when asked to.
func (e *Engine) measured(fresh bool) (space, error) {
	s, err := e.pool.space()
	if err != nil {
		return s, err
	}
	switch {
	case e.pool.ownMount:
		e.budget.setOurs(max(0, s.used-e.pool.overhead))
	case fresh:
		sum, err := e.pool.allocated()
		if err != nil {
			return s, err
		}
		e.budget.setOurs(sum)
	}
	return s, nil
}

// measureOverhead finds out, once, what the file system and the records take
// for themselves on a file system of the pool's own.
func (e *Engine) measureOverhead() error {
	s, err := e.pool.space()
	if err != nil {
		return err
	}
	sum, err := e.pool.allocated()
	if err != nil {
		return err
	}
	// Shared blocks are in the sum several times, so it may be too large.
	e.pool.overhead = max(s.used-sum, storeRoom)
	_, err = e.measured(true)
	return err
}

// allocated sums up the blocks of all files of the pool. Blocks that files
// share count for each of them; the budget bounds the sum by what is used.
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
	wish, err := parseSettings(settings{Provisioning: thin}, query.Parameters)
	if err != nil {
		return volume.Capacity{}, err
	}
	minimum, err := minimumFor(query)
	if err != nil {
		return volume.Capacity{}, err
	}
	if e.pool.readOnly || e.pool.checkPresent() != nil {
		return volume.Capacity{Minimum: minimum}, nil
	}
	s, err := e.measured(e.budget.stale())
	if err != nil {
		return volume.Capacity{}, err
	}
	e.budget.mu.Lock()
	left := e.budget.left(s, wish.thick())
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
		return minimumSize(t), nil
	case query.Content == volume.Filesystem:
		return minimumSize(mkfs.Ext4), nil
	}
	return granule, nil
}

// minimumSize is the smallest volume for a file system; "" is none.
func minimumSize(t mkfs.Type) int64 {
	if t == "" {
		return granule
	}
	least := max(mkfs.MinSize(t), granule)
	return (least + granule - 1) / granule * granule
}
