package nft

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/cleatproject/cleat/test/testkit"
)

// spread returns n separate blocks, half of them of each family.
func spread(n int) []netip.Prefix {
	var all []netip.Prefix
	for i := range n {
		if i%2 == 0 {
			all = append(all, netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 14), byte(i >> 6), byte(i << 2)}), 32))
			continue
		}
		all = append(all, netip.PrefixFrom(netip.AddrFrom16([16]byte{0x20, 1, 0xd, 0xb8, 0, byte(i >> 16), byte(i >> 8), byte(i)}), 64))
	}
	return all
}

func BenchmarkApplyAndHeld(b *testing.B) {
	for _, n := range []int{1, 1000, 10000, 65536} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			testkit.EnterNetNS(b)
			f, all := open(b, config(b, "4420")), spread(n)
			b.Run("apply", func(b *testing.B) {
				for b.Loop() {
					apply(b, f, all...)
				}
			})
			b.Run("held", func(b *testing.B) {
				for b.Loop() {
					if got, err := f.Held(b.Context()); err != nil || len(got) != n {
						b.Fatalf("%d held: %v", len(got), err)
					}
				}
			})
		})
	}
}
