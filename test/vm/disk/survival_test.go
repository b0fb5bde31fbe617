package disk

import (
	"bytes"
	"os"
	"testing"

	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/test/vm/disk/nbd"
)

// damage writes and flushes data, causes a power loss, and returns the medium's
// contents.
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
	testkit.Must(t, d.LosePower())
	left := testkit.Value(os.ReadFile(d.spec.Path))(t)
	return left, d.Stats().LastLoss
}

func TestSeedMakesPowerLossReproducible(t *testing.T) {
	first, loss := damage(t, Spec{Seed: 5})
	again, lossAgain := damage(t, Spec{Seed: 5})
	if !bytes.Equal(first, again) || loss != lossAgain {
		t.Errorf("same history and seed: got loss %v, then %v", loss, lossAgain)
	}
	if other, _ := damage(t, Spec{Seed: 6}); bytes.Equal(first, other) {
		t.Error("another seed caused the same damage")
	}
}

func TestPowerLossesVaryWithTheSeed(t *testing.T) {
	var lost, stale, kept, torn, nearlyAll, nearlyNone int
	for seed := range uint64(24) {
		_, l := damage(t, Spec{Seed: seed, Size: 2 << 20})
		if l.Writes != 3*16 || l.Blocks != 16*17/2 {
			t.Fatalf("got loss %+v, want 48 writes to 136 blocks", l)
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
		"power losses that kept nearly all": nearlyAll, "power losses that kept nearly nothing": nearlyNone} {
		if n == 0 {
			t.Errorf("24 power losses had no %s", name)
		}
	}
}

func TestWritesTearOnlyBetweenPhysicalBlocks(t *testing.T) {
	for _, block := range []int{512, 4096} {
		torn := 0
		for seed := range uint64(10) {
			left, _ := damage(t, Spec{Seed: seed, Size: 2 << 20, Block: block})
			for at := 0; at < len(left); at += block {
				if piece := left[at : at+block]; !bytes.Equal(piece, bytes.Repeat(piece[:1], block)) {
					t.Fatalf("physical block size %d: the block at %d is torn", block, at)
				}
			}
			for at := 0; at < len(left); at += 4096 {
				if piece := left[at : at+4096]; !bytes.Equal(piece, bytes.Repeat(piece[:1], 4096)) {
					torn++
				}
			}
		}
		if (torn > 0) != (block == 512) {
			t.Errorf("physical block size %d: got %d torn ranges of 4096 bytes", block, torn)
		}
	}
}

// Only a power loss reveals that a full cache wrote out its oldest blocks.
func TestCacheIsBounded(t *testing.T) {
	const limit = 256 << 10
	d := open(t, Spec{Size: 8 << 20, Cache: limit, Survival: SurviveNone})
	g := attach(t, d)
	for round := range byte(2) {
		for block := range 1024 {
			g.do(write(block, 'a'+round))
			if d.cache.cost > limit {
				t.Fatalf("got a cache of %d bytes, want at most %d", d.cache.cost, limit)
			}
		}
	}
	if got, want := g.first(1024), string(bytes.Repeat([]byte("b"), 1024)); got != want {
		t.Errorf("the disk does not read the latest written data")
	}
	evicted := d.Stats().Evicted
	cyclePower(t, d)
	got := attach(t, d).first(1024)
	old := bytes.Count([]byte(got), []byte("a"))
	if written := int64(bytes.Count([]byte(got), []byte("b"))); evicted != 1024+written || old == 0 || old > limit/blockSize {
		t.Errorf("%d blocks were evicted; after the power loss %d have data of the first round, %d of the second", evicted, old, written)
	}
	if bytes.Contains([]byte(got), []byte("ab")) {
		t.Error("newer blocks were evicted before older ones")
	}
}

// Zeroing a range larger than the cache neither grows the cache nor evicts its
// contents.
func TestHugeDiscardDoesNotGrowCache(t *testing.T) {
	d := open(t, Spec{Size: 8 << 30, Cache: 1 << 20, Survival: SurviveNone})
	g := attach(t, d)
	g.do(write(1<<20, 'a'))
	g.do(nbd.Request{Command: nbd.Trim, Length: 2 << 30})
	if s := d.Stats(); s.Evicted != 0 || s.UnflushedBytes != blockSize {
		t.Errorf("after a discard of 2 GiB: %v", s)
	}
}

func TestObsoleteVersionsLeaveTheQueue(t *testing.T) {
	d := open(t, Spec{})
	g := attach(t, d)
	for range 4000 {
		g.do(write(0, 'a'))
		g.do(fua(write(0, 'b')))
	}
	if n := len(d.cache.queue); n > 1025 || d.cache.cost != 0 || d.cache.dead != n {
		t.Errorf("got %d queue entries, %d obsolete, cost %d", n, d.cache.dead, d.cache.cost)
	}
}
