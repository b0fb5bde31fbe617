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

func (c *content) resize(clusters uint64) {
	c.clusters, c.solid = clusters, min(c.solid, clusters)
	for i := range c.written {
		if i >= clusters {
			delete(c.written, i)
		}
	}
}

// merge takes over the clusters of a deleted parent that c does not have.
func (c *content) merge(parent content) {
	for i, data := range parent.written {
		if i < c.clusters && !c.has(i) {
			c.put(i, data)
		}
	}
	c.solid = max(c.solid, min(parent.solid, c.clusters))
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

// own allocates a cluster with the data of the parent, unless it is allocated.
// It returns false if the store is full.
func (l *lvol) own(i uint64) bool {
	if !l.has(i) {
		if l.store.free() == 0 {
			return false
		}
		l.put(i, slices.Clone(l.at(i)))
	}
	return true
}

// fill allocates all clusters, with the data of the parents.
func (l *lvol) fill() {
	for i := range l.clusters {
		if data := l.at(i); data != nil && !l.has(i) {
			l.put(i, slices.Clone(data))
		}
	}
	l.solid = l.clusters
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
