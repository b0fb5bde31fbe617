package disk

import (
	"bytes"
	"os"
	"testing"

	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/test/vm/disk/nbd"
)

// damage makes a history with a flush in the middle, cuts, and returns what is
// on the medium.
func damage(t *testing.T, spec Spec) ([]byte, Loss) {
	t.Helper()
	d := open(t, spec)
	g := attach(t, d)
	for round := range byte(6) {
		for block := range 16 {
			r := write(16*block, 'a'+round)
			r.Data = bytes.Repeat(r.Data, 1+block)
			g.do(r)
		}
		if round == 2 {
			g.do(flush)
		}
	}
	testkit.Must(t, d.Cut())
	left := testkit.Value(os.ReadFile(d.spec.Path))(t)
	return left, d.Stats().LastLoss
}

func TestSeedRepeatsACut(t *testing.T) {
	first, loss := damage(t, Spec{Seed: 5})
	again, lossAgain := damage(t, Spec{Seed: 5})
	if !bytes.Equal(first, again) || loss != lossAgain {
		t.Errorf("the same history and seed: %v, then %v", loss, lossAgain)
	}
	if other, _ := damage(t, Spec{Seed: 6}); bytes.Equal(first, other) {
		t.Error("another seed damaged the same")
	}
}

// Over a number of seeds a cut does everything that it may do.
func TestSomeSurvive(t *testing.T) {
	var lost, stale, kept, torn, nearlyAll, nearlyNone int
	for seed := range uint64(24) {
		_, l := damage(t, Spec{Seed: seed, Size: 2 << 20})
		if l.Writes != 3*16 || l.Blocks != 16*17/2 {
			t.Fatalf("the cut reports %+v, want 48 writes to 136 blocks", l)
		}
		lost, stale, kept, torn = lost+l.Lost, stale+l.Stale, kept+l.Blocks-l.Lost-l.Stale, torn+l.Torn
		if l.Lost+l.Stale < l.Blocks/8 {
			nearlyAll++
		}
		if l.Lost > l.Blocks*7/8 {
			nearlyNone++
		}
	}
	for name, n := range map[string]int{"lost blocks": lost, "stale blocks": stale, "kept blocks": kept, "torn writes": torn,
		"cuts that left nearly all": nearlyAll, "cuts that left nearly nothing": nearlyNone} {
		if n == 0 {
			t.Errorf("24 cuts had no %s", name)
		}
	}
}

// A cut tears between physical blocks, and nowhere else.
func TestTornAtPhysicalBlocks(t *testing.T) {
	for _, block := range []int{512, 4096} {
		torn := 0
		for seed := range uint64(10) {
			left, _ := damage(t, Spec{Seed: seed, Size: 2 << 20, Block: block})
			for at := 0; at < len(left); at += block {
				if piece := left[at : at+block]; !bytes.Equal(piece, bytes.Repeat(piece[:1], block)) {
					t.Fatalf("with physical blocks of %d bytes, that at %d is torn", block, at)
				}
			}
			for at := 0; at < len(left); at += 4096 {
				if piece := left[at : at+4096]; !bytes.Equal(piece, bytes.Repeat(piece[:1], 4096)) {
					torn++
				}
			}
		}
		if (torn > 0) != (block == 512) {
			t.Errorf("physical blocks of %d bytes: %d aligned pieces of 4096 are torn", block, torn)
		}
	}
}

// The cache has a bound: beyond it the oldest blocks are written out, which
// nothing but a cut shows.
func TestCacheIsBounded(t *testing.T) {
	const limit = 256 << 10
	d := open(t, Spec{Size: 8 << 20, Cache: limit, Survival: SurviveNone})
	g := attach(t, d)
	for round := range byte(2) {
		for block := range 1024 {
			g.do(write(block, 'a'+round))
			if d.cache.cost > limit {
				t.Fatalf("the cache holds %d bytes of at most %d", d.cache.cost, limit)
			}
		}
	}
	if got, want := g.first(1024), string(bytes.Repeat([]byte("b"), 1024)); got != want {
		t.Errorf("the disk does not read what was written last")
	}
	aged := d.Stats().Aged
	cutAndPowerOn(t, d)
	got := attach(t, d).first(1024)
	old := bytes.Count([]byte(got), []byte("a"))
	if written := int64(bytes.Count([]byte(got), []byte("b"))); aged != 1024+written || old == 0 || old > limit/blockSize {
		t.Errorf("%d blocks were written out; after the cut %d have the first round, %d the second", aged, old, written)
	}
	if bytes.Contains([]byte(got), []byte("ab")) {
		t.Error("newer blocks were written out before older ones")
	}
}

// Zeroing more than the cache can remember does not grow it, nor does it push
// out what is there.
func TestHugeDiscard(t *testing.T) {
	d := open(t, Spec{Size: 8 << 30, Cache: 1 << 20, Survival: SurviveNone})
	g := attach(t, d)
	g.do(write(1<<20, 'a'))
	g.do(nbd.Request{Command: nbd.Trim, Length: 2 << 30})
	if s := d.Stats(); s.Aged != 0 || s.UnflushedBytes != blockSize {
		t.Errorf("after a discard of 2 GiB: %v", s)
	}
}

// Blocks that are written with and without FUA in turn do not fill the queue.
func TestQueueIsSwept(t *testing.T) {
	d := open(t, Spec{})
	g := attach(t, d)
	for range 4000 {
		g.do(write(0, 'a'))
		g.do(fua(write(0, 'b')))
	}
	if n := len(d.cache.queue); n > 1025 || d.cache.cost != 0 || d.cache.dead != n {
		t.Errorf("the queue has %d entries, of which %d are gone; the cost is %d", n, d.cache.dead, d.cache.cost)
	}
}
