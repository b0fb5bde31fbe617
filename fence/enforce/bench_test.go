package enforce

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"testing"

	"github.com/cleatproject/cleat/fence/fencetest"
	"github.com/cleatproject/cleat/fence/plan"
	"github.com/cleatproject/cleat/internal/ledger"
	"github.com/cleatproject/cleat/internal/op"
	"github.com/cleatproject/cleat/internal/store"
	"github.com/cleatproject/cleat/volume"
)

// BenchmarkFence is what the safe order costs without what enforces it: the
// durable record, the plan and the reading back, over a network in memory.
func BenchmarkFence(b *testing.B) {
	for _, n := range []int{1, 1000, 10000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			s, err := store.Open(b.Context(), filepath.Join(b.TempDir(), "fences.db"), store.Options{Role: "fences", Version: 1})
			if err != nil {
				b.Fatal(err)
			}
			defer func() { _ = s.Close() }()
			operations := op.New(b.Context(), 0)
			e, err := New(Config{Ledger: ledger.New(s), Operations: operations, Locals: []Local{{Name: "host", Fencer: fencetest.NewNetwork()}}})
			if err != nil {
				b.Fatal(err)
			}
			a := plan.Ask{Owner: volume.FenceOwner{Digest: "a"}}
			for i := range n {
				addr := netip.AddrFrom4([4]byte{10, byte(i >> 15), byte(i >> 7), byte(i << 1)}) // apart, so that none merge
				a.Blocks = append(a.Blocks, netip.PrefixFrom(addr, 32))
			}
			for b.Loop() {
				if err := e.Fence(b.Context(), a); err != nil {
					b.Fatal(err)
				}
				if err := e.Unfence(b.Context(), a); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
