package disk

import (
	"math"
	"slices"
	"sync/atomic"
)

// cache is the volatile write cache of a drive. It keeps every unflushed
// version of every physical block, because a drive can write out any of them,
// at any time and in any order.
//
// Callers hold the disk's lock unless noted otherwise.
type cache struct {
	medium *medium
	unit   int64 // size of a physical block in bytes
	limit  int64 // maximum cost

	last    atomic.Uint64        // number of the latest write; also read without the lock
	chains  map[int64][]*version // per block: versions not on the medium, oldest first
	queue   []*version           // the same versions by age, including obsolete ones
	dead    int                  // obsolete versions in queue
	cost    int64                // memory in use, in bytes
	evicted int64                // blocks written out because the cache was full
}

// version is the content of a block after one write.
type version struct {
	block int64  // number of the write, in ascending order
	write uint64 // nil: zeroes
	data  []byte // it, or a newer version, is on the medium
	gone  bool   // it is on the medium, or something newer is
}

// overhead is the approximate memory cost of a version besides its data, in
// bytes.
const overhead = 160

func newCache(m *medium, unit, limit int64) *cache {
	return &cache{medium: m, unit: unit, limit: limit, chains: map[int64][]*version{}}
}

// pieces calls f for each block that a range touches: [from, to) is the touched
// part of the block, start its offset in the range.
func (c *cache) pieces(off, length int64, f func(block, from, to, start int64) error) error {
	for at := off; at < off+length; {
		block := at / c.unit
		from := at - block*c.unit
		to := min(c.unit, from+off+length-at)
		if err := f(block, from, to, at-off); err != nil {
			return err
		}
		at += to - from
	}
	return nil
}

// read fills buf with the latest written data.
func (c *cache) read(buf []byte, off int64) error {
	if err := c.medium.read(buf, off); err != nil || len(c.chains) == 0 {
		return err
	}
	return c.pieces(off, int64(len(buf)), func(block, from, to, start int64) error {
		if chain := c.chains[block]; len(chain) > 0 {
			piece := buf[start : start+to-from]
			if newest := chain[len(chain)-1]; newest.data == nil {
				clear(piece)
			} else {
				copy(piece, newest.data[from:to])
			}
		}
		return nil
	})
}

// write stores length bytes at off; nil data is zeroes. With through, the data
// is on the medium on return. The cache keeps a reference to data.
func (c *cache) write(off, length int64, data []byte, through bool) error {
	number := c.last.Load() + 1
	defer c.last.Store(number)
	if data == nil && length/c.unit*overhead > c.limit {
		through = true // it would evict all other versions, and then most of itself
	}
	out := strip{medium: c.medium}
	err := c.pieces(off, length, func(block, from, to, start int64) error {
		var piece []byte
		if data != nil {
			piece = data[start : start+to-from : start+to-from]
		}
		whole, err := c.merge(block, from, to, piece)
		switch {
		case err != nil:
			return err
		case through:
			return out.add(block*c.unit, c.unit, whole)
		}
		c.put(&version{block: block, write: number, data: whole})
		return nil
	})
	if err != nil {
		return err
	}
	if !through {
		return c.evict()
	}
	if err := out.end(); err != nil {
		return err
	}
	return c.pieces(off, length, func(block, _, _, _ int64) error {
		c.forget(block)
		return nil
	})
}

// merge returns the content of a block after a partial write; nil piece is
// zeroes.
func (c *cache) merge(block, from, to int64, piece []byte) ([]byte, error) {
	if to-from == c.unit {
		return piece, nil
	}
	whole := make([]byte, c.unit)
	if err := c.read(whole, block*c.unit); err != nil {
		return nil, err
	}
	if piece == nil {
		clear(whole[from:to])
	}
	copy(whole[from:to], piece)
	return whole, nil
}

func (c *cache) put(v *version) {
	c.chains[v.block] = append(c.chains[v.block], v)
	c.queue = append(c.queue, v)
	c.cost += v.cost()
}

// bytes is the size of the cached data; zeroes count as 0.
func (c *cache) bytes() int64 { return c.cost - overhead*int64(len(c.queue)-c.dead) }

func (v *version) cost() int64 { return overhead + int64(len(v.data)) }

// forget drops all versions of a block, because newer data is on the medium.
func (c *cache) forget(block int64) {
	for _, v := range c.chains[block] {
		c.cost -= v.cost()
		c.dead++
		v.gone, v.data = true, nil
	}
	delete(c.chains, block)
	if c.dead > 1024 && c.dead > len(c.queue)/2 {
		c.queue = slices.DeleteFunc(c.queue, func(v *version) bool { return v.gone })
		c.dead = 0
	}
}

// flush writes the latest version of each block, up to the given write number,
// to the medium.
func (c *cache) flush(upTo uint64) error {
	n := 0
	for n < len(c.queue) && c.queue[n].write <= upTo {
		n++
	}
	out := strip{medium: c.medium}
	for _, v := range c.queue[:n] {
		chain := c.chains[v.block]
		if v.gone || chain[0] != v {
			continue // the block is handled at its oldest version
		}
		last := v
		for _, later := range chain {
			if later.write <= upTo {
				last = later
			}
		}
		if err := out.add(last.block*c.unit, c.unit, last.data); err != nil {
			return err
		}
	}
	if err := out.end(); err != nil {
		return err
	}
	c.drop(n)
	return nil
}

func (c *cache) flushAll() error { return c.flush(math.MaxUint64) }

// evict writes out the oldest versions if the cache is over its limit.
func (c *cache) evict() error {
	if c.cost <= c.limit {
		return nil
	}
	goal := c.limit - c.limit/8 // below the limit, so that adjacent blocks are written together
	out := strip{medium: c.medium}
	n := 0
	for left := c.cost; left > goal; n++ {
		if v := c.queue[n]; !v.gone {
			if err := out.add(v.block*c.unit, c.unit, v.data); err != nil {
				return err
			}
			left -= v.cost()
		}
	}
	if err := out.end(); err != nil {
		return err
	}
	c.evicted += out.blocks
	c.drop(n)
	return nil
}

// drop removes the n oldest versions, which are the first of their blocks.
func (c *cache) drop(n int) {
	for _, v := range c.queue[:n] {
		if v.gone {
			c.dead--
			continue
		}
		c.cost -= v.cost()
		if chain := c.chains[v.block]; len(chain) > 1 {
			c.chains[v.block] = chain[1:]
		} else {
			delete(c.chains, v.block)
		}
	}
	c.queue = slices.Delete(c.queue, 0, n)
}
