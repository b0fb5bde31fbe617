package blocklist

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/cleatproject/cleat/internal/cidr"
	"github.com/cleatproject/cleat/internal/store"
	"github.com/cleatproject/cleat/internal/store/storetest"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/volume"
)

// TestAnySequence: after any sequence of fences, with failures and restarts, an
// Apply that succeeds leaves exactly its blocks fenced, at every OSD; instances
// that were fenced once stay so; entries of other programs stay.
func TestAnySequence(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		r := &rig{cluster: newFake(2), object: storetest.NewObject(store.ErrChanged)}
		r.restart(t)
		volumes := []volume.ID{"va", "vb"}
		for i, node := range []string{"a", "b"} {
			r.open(t, volumes[i], clientOf(node, fmt.Sprintf("192.0.2.%d", i+1)))
		}
		ctx := t.Context()
		nonce := uint32(100)
		fenced := map[uint32]string{} // instances, since a successful Apply
		live := map[uint32]string{}   // recorded
		foreign := ranged("198.51.100.0/24")
		testkit.Must(rt, r.cluster.change(true, "add", "198.51.100.0/24", "157680000.0"))
		for range rapid.IntRange(1, 12).Draw(rt, "steps") {
			switch rapid.IntRange(0, 3).Draw(rt, "step") {
			case 0: // a node maps its volume again
				nonce++
				i := rapid.IntRange(0, 1).Draw(rt, "node")
				addr := fmt.Sprintf("192.0.2.%d", i+1)
				r.watch(volumes[i], Watcher{netip.MustParseAddr(addr), nonce, uint64(nonce)})
				testkit.Must(rt, r.Record(ctx))
				live[nonce] = addr
			case 1:
				r.restart(t)
			default:
				blocks := testkit.Value(cidr.Merge(prefixes(strings.Join(rapid.SliceOfDistinct(rapid.SampledFrom([]string{
					"192.0.2.1/32", "192.0.2.2/32", "192.0.2.0/30", "192.0.2.0/24", "198.51.100.0/24", "198.51.100.7/32",
				}), rapid.ID).Draw(rt, "blocks"), " "))))(rt)
				lag := rapid.IntRange(0, 2).Draw(rt, "lag")
				fault := rapid.SampledFrom([]string{"", "", "add", "rm", "dump", "osd.1", "watchers", "wait"}).Draw(rt, "fault")
				lost := rapid.Bool().Draw(rt, "lost")
				r.cluster.mu.Lock()
				r.cluster.osds[1].lag = lag
				r.cluster.fault = func(call string) (func() error, error) {
					if fault == "" || !strings.HasPrefix(call, fault) {
						return nil, nil
					}
					fault = ""
					if lost {
						return func() error { return errLost }, nil
					}
					return nil, errLost
				}
				r.cluster.mu.Unlock()
				var texts []string
				for _, b := range blocks {
					texts = append(texts, b.String())
				}
				err := r.fence(ctx, strings.Join(texts, " "))
				r.cluster.setFault(nil)
				if err != nil {
					continue
				}
				held := testkit.Value(r.Held(ctx))(rt)
				if !slices.Equal(held, blocks) {
					rt.Fatalf("held %v, want %v", held, blocks)
				}
				set := testkit.Value(cidr.Set(blocks))(rt)
				for n, addr := range live {
					if set.Contains(netip.MustParseAddr(addr)) {
						fenced[n] = addr
					}
				}
				for _, addr := range []string{"192.0.2.1", "192.0.2.2", "192.0.2.3", "192.0.2.200"} {
					want := 0
					if !set.Contains(netip.MustParseAddr(addr)) {
						want = 2
					}
					if n := r.cluster.accepts(addr, 1); want == 0 && n != 0 || want == 2 && n == 0 {
						rt.Fatalf("%d OSDs accept %s with %v fenced", n, addr, blocks)
					}
				}
			}
			for n, addr := range fenced {
				if got := r.cluster.accepts(addr, n); got != 0 {
					rt.Fatalf("%d OSDs accept the fenced instance %s/%d", got, addr, n)
				}
			}
			if m := testkit.Value(r.readMap(ctx))(rt); time.Until(m.until[foreign]) < expiry-time.Hour {
				rt.Fatalf("the other program's entry expires at %v", m.until[foreign])
			}
		}
	})
}
