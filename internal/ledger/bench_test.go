package ledger

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"testing"

	"github.com/cleatproject/cleat/volume"
)

// crowded makes a ledger with so many fences in each family, none of which
// covers the client c.
func crowded(b *testing.B, fences int) (l *Ledger, c volume.Client, list []volume.Fence) {
	b.Helper()
	l, _ = openLedger(b, filepath.Join(b.TempDir(), "l.db"))
	for i := range fences {
		hi, mid, lo := byte(i>>16), byte(i>>8), byte(i)
		f, g := fenceOf("0.0.0.0/32", "a", volume.Fenced), fenceOf("::/128", "a", volume.Fenced)
		f.Block = netip.PrefixFrom(netip.AddrFrom4([4]byte{10, hi, mid, lo}), 32)
		g.Block = netip.PrefixFrom(netip.AddrFrom16([16]byte{0: 0x20, 1: 1, 13: hi, 14: mid, 15: lo}), 128)
		list = append(list, f, g)
	}
	setFences(b, l, list...)
	c = client("n", "192.0.2.1", "2001:db8::1")
	recordClients(b, l, c)
	return l, c, list
}

func BenchmarkEnter(b *testing.B) {
	for _, n := range []int{0, 10000} {
		b.Run(fmt.Sprint("fences=", n), func(b *testing.B) {
			l, c, _ := crowded(b, n)
			for b.Loop() {
				leave, err := l.Enter(b.Context(), c)
				if err != nil {
					b.Fatal(err)
				}
				leave()
			}
		})
	}
}

// BenchmarkGrant makes a grant and takes it back: two durable transactions.
func BenchmarkGrant(b *testing.B) {
	for _, n := range []int{0, 10000} {
		b.Run(fmt.Sprint("fences=", n), func(b *testing.B) {
			l, c, _ := crowded(b, n)
			for b.Loop() {
				if _, err := l.Grant(b.Context(), Grant{Volume: "v", Client: c, Mode: "m"}); err != nil {
					b.Fatal(err)
				}
				if err := l.Revoke(b.Context(), "v", "n"); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkChangeFences writes all fences and removes them again.
func BenchmarkChangeFences(b *testing.B) {
	for _, n := range []int{1, 1000, 10000} {
		b.Run(fmt.Sprint("fences=", n), func(b *testing.B) {
			l, _, list := crowded(b, n)
			for b.Loop() {
				setFences(b, l)
				setFences(b, l, list[:n]...)
			}
		})
	}
}

// BenchmarkQuiet waits for a client among a thousand beside 10,000 fences.
func BenchmarkQuiet(b *testing.B) {
	l, c, list := crowded(b, 5000)
	for i := range 1000 {
		recordClients(b, l, client(fmt.Sprint("m", i), fmt.Sprintf("198.51.%d.%d", i/256, i%256)))
	}
	leave, err := l.Enter(b.Context(), c)
	if err != nil {
		b.Fatal(err)
	}
	defer leave()
	var blocks []netip.Prefix
	for _, f := range list {
		blocks = append(blocks, f.Block)
	}
	for b.Loop() {
		if err := l.Quiet(b.Context(), blocks); err != nil {
			b.Fatal(err)
		}
	}
}
