package inventory

import (
	"cmp"
	"maps"
	"slices"
)

// Prefer chooses size of the available ids of a pool for one container, for
// GetPreferredAllocation. The result has must first, sorted, then the others by
// preference.
//
// Devices are on as few NUMA nodes as possible, preferring those of must, then
// the node with the fewest sufficient devices. Within a node they are spread
// over PFs. Unhealthy and unknown devices come last.
func Prefer(p Pool, available, must []string, size int) []string {
	chosen := sortedUnique(must)
	if size = max(size, 0); len(chosen) >= size {
		return chosen[:size]
	}
	c := newChoice(p, available, chosen)
	for _, n := range c.order(size - len(chosen)) {
		chosen = append(chosen, c.spread(c.nodes[n], size-len(chosen))...)
	}
	return append(chosen, c.last[:min(len(c.last), size-len(chosen))]...)
}

func sortedUnique(ids []string) []string {
	return slices.Compact(slices.Sorted(slices.Values(ids)))
}

type choice struct {
	nodes map[int]map[string][]string // by NUMA node and PF
	count map[int]int
	must  map[int]bool
	taken map[string]int // by PF
	last  []string       // last resort
}

func newChoice(p Pool, available, must []string) *choice {
	c := &choice{nodes: map[int]map[string][]string{}, count: map[int]int{}, must: map[int]bool{}, taken: map[string]int{}}
	members := make(map[string]*Member, len(p.Members))
	for i := range p.Members {
		members[p.Members[i].ID] = &p.Members[i]
	}
	for _, id := range must {
		if m := members[id]; m != nil {
			c.must[m.Function.NUMA] = true
			c.taken[m.Function.PF]++
		}
	}
	for _, id := range sortedUnique(available) {
		if _, is := slices.BinarySearch(must, id); is {
			continue
		}
		m := members[id]
		if m == nil || m.Wrong != "" {
			c.last = append(c.last, id)
			continue
		}
		node := m.Function.NUMA
		if c.nodes[node] == nil {
			c.nodes[node] = map[string][]string{}
		}
		c.nodes[node][m.Function.PF] = append(c.nodes[node][m.Function.PF], id)
		c.count[node]++
	}
	return c
}

func (c *choice) order(need int) []int {
	rest, here := slices.Sorted(maps.Keys(c.count)), 0
	for n := range c.must {
		here += c.count[n]
	}
	if here >= need { // the required nodes suffice
		rest = slices.DeleteFunc(rest, func(n int) bool { return !c.must[n] })
	}
	var order []int
	for need > 0 && len(rest) > 0 {
		next := slices.MinFunc(rest, func(a, b int) int { return c.compare(a, b, need) })
		order = append(order, next)
		need -= c.count[next]
		rest = slices.DeleteFunc(rest, func(n int) bool { return n == next })
	}
	return order
}

func (c *choice) compare(a, b, need int) int {
	fitsA, fitsB := c.count[a] >= need, c.count[b] >= need
	if fitsA && fitsB {
		// Devices without a known node can be far from each other.
		return cmp.Or(before(b == NoNode, a == NoNode), cmp.Compare(c.count[a], c.count[b]), cmp.Compare(a, b))
	}
	return cmp.Or(before(fitsA, fitsB), before(c.must[a], c.must[b]), cmp.Compare(c.count[b], c.count[a]), cmp.Compare(a, b))
}

func before(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	}
	return 1
}

// spread takes ids from the PF with the fewest devices in the container, then
// with most devices left.
func (c *choice) spread(of map[string][]string, most int) []string {
	pfs := slices.Sorted(maps.Keys(of))
	var ids []string
	for len(ids) < most && len(pfs) > 0 {
		next := slices.MinFunc(pfs, func(a, b string) int {
			return cmp.Or(cmp.Compare(c.taken[a], c.taken[b]), cmp.Compare(len(of[b]), len(of[a])), cmp.Compare(a, b))
		})
		ids = append(ids, of[next][0])
		c.taken[next]++
		if of[next] = of[next][1:]; len(of[next]) == 0 {
			pfs = slices.DeleteFunc(pfs, func(pf string) bool { return pf == next })
		}
	}
	return ids
}
