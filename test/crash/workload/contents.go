package workload

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/cleatproject/cleat/test/crash/workload/site"
)

// contents is the expected data of a volume, by file name (mount) or block
// number (block).
type contents map[string]*item

// item is the expected data of one file or block.
type item struct {
	// seeds of the possible data. More than one: the writes were not synced or
	// were interrupted; after a power loss any of them is possible.
	seeds []uint64
	// fresh: the kernel has the last one, and returns it.
	fresh bool
}

// now returns the seeds that a read can return.
func (s *item) now() []uint64 {
	if s.fresh {
		return s.seeds[len(s.seeds)-1:]
	}
	return s.seeds
}

// copied returns the expected data of a copy made now: the kernel's view.
func (c contents) copied() contents {
	other := contents{}
	for key, s := range c {
		other[key] = &item{seeds: slices.Clone(s.now())}
	}
	return other
}

// synced records that the kernel's data has become durable.
func (c contents) synced() {
	for _, s := range c {
		s.seeds, s.fresh = s.now(), false
	}
}

// powerLost records that the page cache is lost.
func (c contents) powerLost() {
	for _, s := range c {
		s.fresh = false
	}
}

// written records a write; its result is uncertain unless it is fresh.
func (c contents) written(key string, seed uint64, fresh bool) {
	s := c[key]
	if s == nil {
		s = &item{seeds: []uint64{site.Never}}
		c[key] = s
	}
	s.seeds, s.fresh = append(s.seeds, seed), fresh
}

// write changes files or blocks of a published volume, without a call to the
// driver, and records their expected data. Not every write is synced.
func (w *worker) write(d *disk) error {
	for range 1 + w.rand.IntN(3) {
		seed, sync := 1+w.rand.Uint64N(math.MaxUint64), w.rand.IntN(3) > 0
		key := fmt.Sprintf("file-%d", w.rand.IntN(6))
		if d.block {
			key = fmt.Sprint(w.rand.IntN(int(d.reach / site.BlockSize)))
		}
		err := w.machine.Write(context.Background(), w.spot(d, key), seed, sync)
		switch {
		case errors.Is(err, ErrDown):
			d.data.written(key, seed, false)
			return err
		case err != nil:
			return fmt.Errorf("write %s to %s: %w", key, d, err)
		case sync:
			d.data[key] = &item{seeds: []uint64{seed}}
		default:
			d.data.written(key, seed, true)
		}
	}
	return nil
}

// read compares all data of a published volume with the model.
func (w *worker) read(d *disk) error { return w.readSome(d, len(d.data)) }

func (w *worker) readSome(d *disk, most int) error {
	for key, s := range d.data {
		if most--; most < 0 {
			return nil
		}
		if err := w.machine.Check(context.Background(), w.spot(d, key), s.now()...); err != nil {
			return fmt.Errorf("%s: %w", d, err)
		}
	}
	return nil
}
