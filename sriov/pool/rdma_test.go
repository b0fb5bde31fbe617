package pool

import (
	"strings"
	"testing"

	"github.com/cleatproject/cleat/sriov/discovery"
)

// What can do RDMA and has nothing to give to a container is in its pool, as
// upstream has it, and nobody is given it.
func TestCapableWithoutDevice(t *testing.T) {
	const vf, sf = "0000:02:02.0", "mlx5_core.sf.5"
	asks := parsed(t, `{"resourceName":"n","selectors":[{"isRdma":true}]},{"resourceName":"x","deviceType":"accelerator","selectors":[{}]},
		{"resourceName":"s","deviceType":"auxNetDevice","selectors":[{"auxTypes":["sf"],"isRdma":true}]}`)
	without := parsed(t, `{"resourceName":"n","selectors":[{}]},{"resourceName":"s","deviceType":"auxNetDevice","selectors":[{"auxTypes":["sf"]}]}`)
	tell := func(rdma []discovery.RDMA, capable bool) *discovery.Snapshot {
		s := host()
		change(s, vf, func(f *discovery.Function) { f.RDMA, f.RDMACapable = rdma, capable })
		changeSF(s, sf, func(a *discovery.Auxiliary) { a.RDMA, a.RDMACapable = rdma, capable })
		return s
	}
	device := []discovery.RDMA{{Name: "mlx5_3"}}
	for name, c := range map[string]struct {
		s                   *discovery.Snapshot
		vf, sf, vfAny, held string
	}{
		"a device here":    {tell(device, true), "n 0", "s 0", "n 0", "n 0 held"},
		"only its devices": {tell(device, false), "n 0", "s 0", "n 0", "n 0 held"},
		"only capable":     {tell(nil, true), "n 0: it can do RDMA", "s 0: it can do RDMA", "n 0", "n 0 held"},
		"neither":          {tell(nil, false), "free", "free", "n 0", "n 0 held"},
	} {
		t.Run(name, func(t *testing.T) {
			is := func(what string, got []string, want string) {
				t.Helper()
				text, _, _ := strings.Cut(strings.Join(got, ", "), " and has no RDMA device here")
				if text != want {
					t.Errorf("%s: %q, want %q", what, got, want)
				}
			}
			a := Assign(asks, c.s, Options{})
			is("the function", places(a, vf), c.vf)
			is("the scalable function", places(a, sf), c.sf)
			is("nobody asks for RDMA", places(Assign(without, c.s, Options{}), vf), c.vfAny)
			tellsTheSame(t, asks, c.s, Options{})
			held := Options{Held: []Held{{"intel.com/n", vf, found(t, tell(device, true), vf)}}}
			is("a pod has it", places(Assign(asks, c.s, held), vf), c.held)
		})
	}

	held := Options{Held: []Held{{"intel.com/s", sf, found(t, tell(device, true), sf)}}}
	if m := Assign(asks, tell(nil, false), held).Pools[2].Members; len(m) != 1 || !m[0].Auxiliary.RDMACapable || m[0].Wrong != "" {
		t.Errorf("a pod has the scalable function: %+v", m)
	}

	down := tell(nil, true)
	change(down, "0000:02:00.0", func(f *discovery.Function) {
		f.Netdevs = []discovery.Netdev{{Name: "enp2s2f1", Link: "ether"}}
	})
	if got := strings.Join(places(Assign(asks, down, Options{LinkHealth: true}), vf), ""); !strings.Contains(got, "enp2s2f1 is down; it can do RDMA and") {
		t.Errorf("two things are wrong with it: %q", got)
	}
}
