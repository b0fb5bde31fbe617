package disk

import (
	"math"
	"slices"
	"sync/atomic"
)

// cache is the volatile write cache of a drive over its medium. It keeps, of
// every physical block, all that was written to it since the last flush, since
// a drive may write out any of it, at any time and in any order.
//
// Its methods are called under the disk's lock, save where it is said.
type cache struct {
	medium *medium
	unit   int64 // size of a physical block, in bytes
	limit  int64 // of cost

	last   atomic.Uint64        // the latest write; read without the lock too
	chains map[int64][]*version // by block: what is not on the medium, oldest first
	queue  []*version           // the same by age, and some that are gone
	dead   int                  // how many in the queue are gone
	cost   int64                // memory in use, in bytes
	aged   int64                // blocks written out for want of room
}

// version is what a block held after one write.
type version struct {
	block int64  // offset / unit
	write uint64 // number of the write; they count up
	data  []byte // nil: zeroes
	gone  bool   // it is on the medium, or something newer is
}

// overhead is about what a version costs beside its data, in bytes.
const overhead = 160

func newCache(m *medium, unit, limit int64) *cache {
	return &cache{medium: m, unit: unit, limit: limit, chains: map[int64][]*version{}}
}

// pieces calls f for each block that a range touches, with the part of the
// range, from its beginning, and the part of the block that meet there.
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

// read fills buf with what was written last.
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

// write takes in length bytes at off; data nil is zeroes. With through they
// are on the medium when it returns. The cache keeps data.
func (c *cache) write(off, length int64, data []byte, through bool) error {
	number := c.last.Load() + 1
	defer c.last.Store(number)
	if data == nil && length/c.unit*overhead > c.limit {
		through = true // it would push out everything else, and then most of itself
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
		return c.makeRoom()
	}
	if err := out.end(); err != nil {
		return err
	}
	return c.pieces(off, length, func(block, _, _, _ int64) error {
		c.forget(block)
		return nil
	})
}

// merge returns what a block holds once a part of it has been written; piece
// nil is zeroes.
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

// bytes is the data in the cache; zeroes have none.
func (c *cache) bytes() int64 { return c.cost - overhead*int64(len(c.queue)-c.dead) }

func (v *version) cost() int64 { return overhead + int64(len(v.data)) }

// forget drops what is known of a block, as something newer is on the medium.
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

// flush puts on the medium all that the writes up to the given number left.
func (c *cache) flush(upTo uint64) error {
	n := 0
	for n < len(c.queue) && c.queue[n].write <= upTo {
		n++
	}
	out := strip{medium: c.medium}
	for _, v := range c.queue[:n] {
		chain := c.chains[v.block]
		if v.gone || chain[0] != v {
			continue // the block is dealt with where its oldest version stands
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

// makeRoom writes the oldest versions out while there are too many.
func (c *cache) makeRoom() error {
	if c.cost <= c.limit {
		return nil
	}
	goal := c.limit - c.limit/8 // some more, so that neighbours go out together
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
	c.aged += out.blocks
	c.drop(n)
	return nil
}

// drop takes the n oldest versions out of the cache. Of a block's versions
// they are the first.
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
