package grants

import (
	"path/filepath"
	"testing"

	"github.com/cleatproject/cleat/sriov/config"
	"github.com/cleatproject/cleat/sriov/discovery"
	"github.com/cleatproject/cleat/sriov/podresources"
	"github.com/cleatproject/cleat/sriov/pool"
)

// A plugin that restarts while a pod has a device keeps it in its pool, as it
// was, with the kubelet's word and without.
func TestPoolDoesNotShrink(t *testing.T) {
	const id = "0000:05:00.4"
	c, _, err := config.Parse([]byte(`{"resourceList":[{"resourceName":"ib","selectors":[{"linkTypes":["infiniband"],"isRdma":true}]},{"resourceName":"rest","selectors":[{}]}]}`), config.Options{})
	if err != nil {
		t.Fatal(err)
	}
	whole := vf(id)
	given := pool.Assign(c, &discovery.Snapshot{Functions: []discovery.Function{whole}}, pool.Options{}).Pools[0].Members
	path := filepath.Join(t.TempDir(), "grants")
	g, s := open(t, path)
	if err := g.Put(t.Context(), []Record{Of("intel.com/ib", given[0], start)}); err != nil {
		t.Fatal(err)
	}
	closing(t, s)

	g, s = open(t, path)
	defer closing(t, s)
	moved := vf(id)
	moved.Netdevs, moved.RDMA, moved.RDMACapable, moved.PKey = nil, nil, false, ""
	now := &discovery.Snapshot{Functions: []discovery.Function{moved}}
	for _, known := range []bool{true, false} {
		held, drop := Merge(g.All(), []podresources.Holder{holder("intel.com/ib", id)}, known, now, start.Add(10*Grace))
		a := pool.Assign(c, now, pool.Options{Held: held})
		if len(drop) > 0 || len(a.Pools[0].Members) != 1 || len(a.Pools[1].Members) != 0 {
			t.Fatalf("the kubelet is known: %t: forgotten %v, pools %+v", known, drop, a.Pools)
		}
		if m := a.Pools[0].Members[0]; !m.Held || m.Wrong != "" || len(m.Function.Netdevs) != 1 || m.Function.RDMA[0].Devices[0].Path != "/dev/infiniband/uverbs3" {
			t.Errorf("the kubelet is known: %t: %+v of %+v", known, m, m.Function)
		}
	}
}
