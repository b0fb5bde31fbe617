package disk

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
)

// Survival is the part of the unflushed writes that outlives a power loss.
type Survival int

const (
	// SurviveSome: a random part, in any order, torn between physical blocks.
	SurviveSome Survival = iota
	// SurviveNone: flushed writes only.
	SurviveNone
	// SurviveAll: all writes, as if only QEMU was killed.
	SurviveAll
)

func (s Survival) String() string {
	switch s {
	case SurviveSome:
		return "some"
	case SurviveNone:
		return "none"
	case SurviveAll:
		return "all"
	}
	return fmt.Sprintf("survival %d", int(s))
}

// Loss counts the effects of a power loss on unflushed writes.
type Loss struct {
	Writes int // not flushed, or only in part
	Torn   int // of Writes: survived in part
	Blocks int // physical blocks they changed
	Lost   int // of Blocks: hold the old content
	Stale  int // of Blocks: hold an unflushed version that is not the newest
}

func (l Loss) String() string {
	return fmt.Sprintf("%d unflushed writes (%d torn) of %d blocks (%d lost, %d stale)", l.Writes, l.Torn, l.Blocks, l.Lost, l.Stale)
}

// survivors chooses the versions that survive a power loss: at most one per
// block, sorted by block.
//
// The share of surviving writes and of torn writes is drawn for each power
// loss: a drive that wrote out nearly everything and one that wrote nearly
// nothing cause different damage. An untorn write survives or is lost as a
// whole; otherwise large writes, such as journal records, would hardly ever
// survive intact. Versions of one block survive in order.
func survivors(queue []*version, s Survival, random *rand.Rand) ([]*version, Loss) {
	through, tear := random.Float64(), random.Float64()
	chosen := map[int64]*version{}
	newest := map[int64]*version{}
	var loss Loss
	for i := 0; i < len(queue); {
		end := i + 1
		for end < len(queue) && queue[end].write == queue[i].write {
			end++
		}
		torn, survives := random.Float64() < tear, random.Float64() < through
		living, kept := 0, 0
		for _, v := range queue[i:end] {
			if v.gone {
				continue
			}
			living++
			newest[v.block] = v
			if torn {
				survives = random.Float64() < through
			}
			if s == SurviveAll || s == SurviveSome && survives {
				chosen[v.block] = v
				kept++
			}
		}
		loss.Writes += min(living, 1)
		if kept > 0 && kept < living {
			loss.Torn++
		}
		i = end
	}
	loss.Blocks = len(newest)
	loss.Lost = len(newest) - len(chosen)
	left := make([]*version, 0, len(chosen))
	for block, v := range chosen {
		left = append(left, v)
		if v != newest[block] {
			loss.Stale++
		}
	}
	slices.SortFunc(left, func(a, b *version) int { return cmp.Compare(a.block, b.block) })
	return left, loss
}

// losePower writes the surviving versions to the medium and empties the cache.
func (c *cache) losePower(s Survival, random *rand.Rand) (Loss, error) {
	left, loss := survivors(c.queue, s, random)
	c.chains, c.queue, c.dead, c.cost = map[int64][]*version{}, nil, 0, 0
	out := strip{medium: c.medium}
	for _, v := range left {
		if err := out.add(v.block*c.unit, c.unit, v.data); err != nil {
			return loss, err
		}
	}
	return loss, out.end()
}
