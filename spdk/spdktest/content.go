package spdktest

import "slices"

// content is what an lvol has itself; the rest is that of its parent.
type content struct {
	clusters uint64             // size
	solid    uint64             // the first clusters are allocated, written or not
	written  map[uint64]cluster // allocated clusters by number
}

// cluster has blocks that are never modified, so that clusters can share them.
// A nil block is zero.
type cluster [][]byte

const contentBlock = 64 << 10

func (c *content) has(i uint64) bool {
	_, written := c.written[i]
	return written || i < c.solid
}

func (c *content) allocated() uint64 {
	all := c.solid
	for i := range c.written {
		if i >= c.solid {
			all++
		}
	}
	return all
}

func (c *content) put(i uint64, data cluster) {
	if c.written == nil {
		c.written = map[uint64]cluster{}
	}
	c.written[i] = data
}

// resize returns the clusters that are freed.
func (c *content) resize(clusters uint64) (freed []cluster) {
	c.clusters, c.solid = clusters, min(c.solid, clusters)
	for i, data := range c.written {
		if i >= clusters {
			freed = append(freed, data)
			delete(c.written, i)
		}
	}
	return freed
}

// merge takes over the clusters of a deleted parent that c does not have, and
// returns the others.
func (c *content) merge(parent content) (freed []cluster) {
	for i, data := range parent.written {
		if i < c.clusters && !c.has(i) {
			c.put(i, data)
		} else {
			freed = append(freed, data)
		}
	}
	c.solid = max(c.solid, min(parent.solid, c.clusters))
	return freed
}

// at returns the data of a cluster, nil if it is zero.
func (l *lvol) at(i uint64) cluster {
	for ; l != nil && i < l.clusters; l = l.parent {
		if l.has(i) {
			return l.written[i]
		}
	}
	return nil
}

// own allocates a cluster, unless it is allocated. It returns false if the store
// is full. A cluster that the parents do not have is not written: it keeps what a
// deleted lvol left in it. One beyond the end of a parent is copied, as zeros.
func (l *lvol) own(i uint64) bool {
	switch {
	case l.has(i):
	case l.store.free() == 0:
		return false
	case l.parent.isZeroes(i):
		l.put(i, l.store.claim())
	default:
		l.put(i, slices.Clone(l.parent.at(i)))
	}
	return true
}

// isZeroes reports whether SPDK knows that a cluster of a parent is zero, as
// blob_bs_is_zeroes does. nil: no parent.
func (l *lvol) isZeroes(i uint64) bool {
	return l == nil || i < l.clusters && !l.has(i) && l.parent.isZeroes(i)
}

// solidify allocates the clusters up to a number without writing to them.
func (l *lvol) solidify(clusters uint64) {
	for i := l.solid; i < clusters && len(l.store.dirty) > 0; i++ {
		if !l.has(i) {
			l.put(i, l.store.claim())
		}
	}
	l.solid = max(l.solid, clusters)
}

// claim returns the data of a free cluster, one with data if there is any.
func (s *lvstore) claim() cluster {
	last := len(s.dirty) - 1
	if last < 0 {
		return nil
	}
	data := s.dirty[last]
	s.dirty = s.dirty[:last]
	return data
}

// release frees clusters. SPDK clears them if the clear method is possible with
// the base bdev, and ignores it otherwise.
func (l *lvol) release(freed ...cluster) {
	if l.clear == "write_zeroes" || l.clear != "none" && l.store.base.can("unmap") {
		return
	}
	for _, data := range freed {
		if data != nil {
			l.store.dirty = append(l.store.dirty, data)
		}
	}
}

// read copies data at an offset that is within the lvol.
func (l *lvol) read(into []byte, offset uint64) {
	for len(into) > 0 {
		i, block, begin, n := l.locate(offset, len(into))
		var data []byte
		if c := l.at(i); block < len(c) {
			data = c[block]
		}
		if data == nil {
			clear(into[:n])
		} else {
			copy(into[:n], data[begin:])
		}
		into, offset = into[n:], offset+uint64(n)
	}
}

// write returns the number of bytes written before the store was full.
func (l *lvol) write(from []byte, offset uint64) int {
	left := len(from)
	for left > 0 {
		i, block, begin, n := l.locate(offset, left)
		if !l.own(i) {
			break
		}
		c := l.written[i]
		if len(c) <= block {
			c = append(c, make([][]byte, block+1-len(c))...)
		}
		data := make([]byte, contentBlock)
		copy(data, c[block])
		copy(data[begin:], from[len(from)-left:][:n])
		c[block] = data
		l.put(i, c)
		left, offset = left-n, offset+uint64(n)
	}
	return len(from) - left
}

// locate returns the cluster, its block, the position in the block, and how much
// of a length is there.
func (l *lvol) locate(offset uint64, length int) (i uint64, block, begin, n int) {
	in := offset % l.store.cluster
	begin = int(in % contentBlock)
	n = int(min(uint64(length), contentBlock-uint64(begin), l.store.cluster-in))
	return offset / l.store.cluster, int(in / contentBlock), begin, n
}
