package disk

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
)

// Survival says what of the unflushed writes outlives a cut.
type Survival int

const (
	// SurviveSome: a random part, in no order, torn between physical blocks.
	SurviveSome Survival = iota
	// SurviveNone: only what was flushed.
	SurviveNone
	// SurviveAll: everything, as when QEMU alone is killed.
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

// Loss tells what a cut did to the unflushed writes.
type Loss struct {
	Writes int // not flushed, in whole or in part
	Torn   int // of them: survived in part
	Blocks int // physical blocks that they were to change
	Lost   int // of them: hold what was on the medium before
	Stale  int // of them: hold an unflushed version that is not the newest
}

func (l Loss) String() string {
	return fmt.Sprintf("%d unflushed writes (%d torn) of %d blocks (%d lost, %d stale)", l.Writes, l.Torn, l.Blocks, l.Lost, l.Stale)
}

// survivors draws what a cut leaves of the cache: at most one version of each
// block, sorted by block.
//
// How many writes get through, and how many of these tear, is drawn anew for
// each cut: a drive that had written out nearly all and one that had hardly
// begun break different things. A write that does not tear survives or is lost
// as a whole; otherwise what needs all of many blocks (a record of a journal)
// would hardly ever meet the loss of something else. Where several versions of
// a block get through, the drive has written them in order.
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

// cut puts what survives on the medium and empties the cache.
func (c *cache) cut(s Survival, random *rand.Rand) (Loss, error) {
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
