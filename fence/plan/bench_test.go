package plan

import (
	"net/netip"
	"testing"
	"time"

	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/volume"
)

// many asks for each second address of as many as there are blocks.
func many(blocks int) Ask {
	ask := Ask{Owner: anna}
	for i := range blocks {
		addr := netip.AddrFrom4([4]byte{10, byte(i >> 15), byte(i >> 7), byte(i << 1)})
		ask.Blocks = append(ask.Blocks, netip.PrefixFrom(addr, 32))
	}
	return ask
}

// BenchmarkPlan10000 is each decision about 10,000 records.
func BenchmarkPlan10000(b *testing.B) {
	ask := many(10_000)
	fenced := Confirm(Fence(nil, ask, early), ask, early)
	lifting := testkit.Value(Unfence(fenced, ask, late))(b)
	for name, decide := range map[string]func(){
		"Fence":  func() { Fence(nil, ask, early) },
		"Repeat": func() { Fence(fenced, ask, early) },
		"Unfence": func() {
			testkit.Value(Unfence(fenced, ask, late))(b)
		},
		"UnfenceUnknown": func() {
			if _, err := Unfence(fenced, Ask{Owner: berta, Blocks: ask.Blocks}, late); err == nil {
				b.Fatal("not refused")
			}
		},
		"Forget":   func() { Forget(lifting, ask, late) },
		"Wanted":   func() { _, _ = Wanted(fenced) },
		"Released": func() { _, _ = Released(fenced, lifting) },
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				decide()
			}
		})
	}
}

// A whole life of many fences, so that their number alone breaks nothing.
func TestMany(t *testing.T) {
	ask := many(10_000)
	now := Fence(nil, ask, time.Unix(1, 0))
	wanted, err := Wanted(now)
	if len(now) != 10_000 || len(wanted) != 10_000 || err != nil {
		t.Fatalf("%d records, %d blocks are wanted, %v", len(now), len(wanted), err)
	}
	now = testkit.Value(Unfence(Confirm(now, ask, time.Unix(2, 0)), ask, time.Unix(3, 0)))(t)
	for _, f := range now {
		if f.Phase != volume.Lifting || !f.Since.Equal(time.Unix(3, 0)) {
			t.Fatalf("%+v", f)
		}
	}
	if now = Forget(now, ask, time.Unix(4, 0)); len(now) != 0 {
		t.Errorf("%d records are left", len(now))
	}
}
