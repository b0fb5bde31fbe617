package grants

import (
	"fmt"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/cleatproject/cleat/sriov/inventory"
	"github.com/cleatproject/cleat/sriov/podresources"
	"github.com/cleatproject/cleat/test/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func held(all []inventory.HeldDevice) []string {
	var texts []string
	for _, h := range all {
		text := h.Resource + " " + h.ID
		if h.Last != nil {
			text += " known"
		}
		texts = append(texts, text)
	}
	return texts
}

func names(records []Record) []string {
	var texts []string
	for _, r := range records {
		texts = append(texts, r.Resource+" "+r.ID)
	}
	return texts
}

func holder(resource, id string) podresources.Holder {
	return podresources.Holder{Resource: resource, ID: id, Namespace: "ns", Pod: "p", Container: "c"}
}

func TestMergeKnown(t *testing.T) {
	const id = "0000:05:00.4"
	old, young := record("intel.com/a", function(vf(id)), Grace), record("intel.com/a", function(vf(id)), Grace-1)
	future, far := record("intel.com/a", function(vf(id)), 1-Grace), record("intel.com/a", function(vf(id)), -Grace)
	elsewhere := record("intel.com/b", function(vf(id)), time.Hour)
	for name, c := range map[string]struct {
		records    []Record
		holders    []podresources.Holder
		held, drop []string
	}{
		"nothing":                                {nil, nil, nil, nil},
		"a holder with a record":                 {[]Record{old}, []podresources.Holder{holder("intel.com/a", id)}, []string{"intel.com/a " + id + " known"}, nil},
		"two containers of a pod":                {[]Record{old}, []podresources.Holder{holder("intel.com/a", id), {Resource: "intel.com/a", ID: id, Pod: "p", Container: "init"}}, []string{"intel.com/a " + id + " known"}, nil},
		"a holder without a record":              {nil, []podresources.Holder{holder("intel.com/a", id)}, []string{"intel.com/a " + id}, nil},
		"others' resources":                      {[]Record{old}, []podresources.Holder{holder("nvidia.com/gpu", "GPU-1")}, []string{"nvidia.com/gpu GPU-1"}, []string{"intel.com/a " + id}},
		"a record without a holder":              {[]Record{old}, nil, nil, []string{"intel.com/a " + id}},
		"a recent record that is not listed yet": {[]Record{young}, nil, []string{"intel.com/a " + id + " known"}, nil},
		"a record before a clock change":         {[]Record{future}, nil, []string{"intel.com/a " + id + " known"}, nil},
		"a record before a large clock change":   {[]Record{far}, nil, nil, []string{"intel.com/a " + id}},
		"allocated again by another resource":    {[]Record{elsewhere, young}, nil, []string{"intel.com/a " + id + " known"}, []string{"intel.com/b " + id}},
		"an old holder, allocated again":         {[]Record{elsewhere, young}, []podresources.Holder{holder("intel.com/b", id)}, []string{"intel.com/a " + id + " known", "intel.com/b " + id + " known"}, nil},
	} {
		got, drop := Merge(c.records, c.holders, true, &inventory.Snapshot{}, start)
		if diff := cmp.Diff(c.held, held(got)) + cmp.Diff(c.drop, names(drop)); diff != "" {
			t.Errorf("%s: held, then dropped (-want +got):\n%s", name, diff)
		}
	}
}

func TestMergeUnknown(t *testing.T) {
	const id, aux = "0000:05:00.4", "mlx5_core.sf.4"
	whole, vfio, roce := vf(id), vf(id), vf(id)
	vfio.Driver, vfio.Netdevs, vfio.RDMA = "vfio-pci", nil, nil
	roce.Netdevs = nil
	without := func(f inventory.Function, change ...func(*inventory.Function)) *inventory.Function {
		for _, c := range change {
			c(&f)
		}
		return &f
	}
	noLink, noRDMA := func(f *inventory.Function) { f.Netdevs = nil }, func(f *inventory.Function) { f.RDMA = nil }
	unbound := func(f *inventory.Function) { f.Driver, f.Netdevs, f.RDMA = "", nil, nil }
	scalable := sf(aux)
	noAuxLink, noAuxRDMA, noAuxDriver := sf(aux), sf(aux), sf(aux)
	noAuxLink.Netdev, noAuxRDMA.RDMA = nil, nil
	noAuxDriver.Netdev, noAuxDriver.Driver = nil, ""
	const isHeld, isOver, stays = "held", "over", "stays"
	for name, c := range map[string]struct {
		given  inventory.Device
		f      *inventory.Function
		a      *inventory.Auxiliary
		age    time.Duration
		became string
	}{
		"its network device is missing":            {function(whole), without(whole, noLink), nil, Grace, isHeld},
		"its RDMA device is missing":               {function(whole), without(whole, noRDMA), nil, Grace, isHeld},
		"both are missing":                         {function(whole), without(whole, noLink, noRDMA), nil, Grace, isHeld},
		"both returned":                            {function(whole), &whole, nil, Grace, isOver},
		"both are still here":                      {function(whole), &whole, nil, Grace - 1, isHeld},
		"it had only RDMA, which is missing":       {function(roce), without(roce, noRDMA), nil, Grace, isHeld},
		"it had only RDMA, which returned":         {function(roce), &roce, nil, Grace, isOver},
		"it has no driver":                         {function(whole), without(whole, unbound), nil, Grace, stays},
		"it has another driver":                    {function(whole), &vfio, nil, Grace, stays},
		"bound to vfio":                            {function(vfio), &vfio, nil, Grace, stays},
		"bound to vfio and just allocated":         {function(vfio), &vfio, nil, 0, isHeld},
		"it is gone":                               {function(whole), nil, nil, Grace, stays},
		"missing and just allocated":               {function(whole), nil, nil, 0, isHeld},
		"auxiliary: its network device is missing": {auxiliary(scalable), nil, &noAuxLink, Grace, isHeld},
		"auxiliary: its RDMA device is missing":    {auxiliary(scalable), nil, &noAuxRDMA, Grace, isHeld},
		"auxiliary: all returned":                  {auxiliary(scalable), nil, &scalable, Grace, isOver},
		"auxiliary: it has no driver":              {auxiliary(scalable), nil, &noAuxDriver, Grace, stays},
		"auxiliary: a function of its name":        {inventory.Device{ID: id, Function: &scalable.Parent, Auxiliary: &scalable}, without(whole, noLink), nil, Grace, stays},
	} {
		s := &inventory.Snapshot{}
		if c.f != nil {
			s.Functions = append(s.Functions, *c.f)
		}
		if c.a != nil {
			s.Auxiliary = append(s.Auxiliary, *c.a)
		}
		got, drop := Merge([]Record{record("intel.com/a", c.given, c.age)}, []podresources.Holder{holder("intel.com/b", "stale")}, false, s, start)
		became := stays
		switch {
		case len(got) == 1 && len(drop) == 0 && got[0].Last != nil && got[0].ID == c.given.ID:
			became = isHeld
		case len(got) == 0 && len(drop) == 1:
			became = isOver
		case len(got)+len(drop) > 0:
			became = fmt.Sprint(held(got), names(drop))
		}
		if became != c.became {
			t.Errorf("%s: %s, want %s", name, became, c.became)
		}
	}
}

// For any input: reported devices are held, once each; unreported ones are not;
// held devices are not stale.
func TestMergeProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		resource := func() string { return rapid.SampledFrom([]string{"intel.com/a", "intel.com/b"}).Draw(t, "resource") }
		id := func() string { return fmt.Sprintf("0000:05:00.%d", rapid.IntRange(0, 3).Draw(t, "id")) }
		var records []Record
		had := map[key]bool{}
		for range rapid.IntRange(0, 8).Draw(t, "records") {
			r := record(resource(), function(vf(id())), time.Duration(rapid.IntRange(-3, 6).Draw(t, "age"))*time.Minute)
			if k := (key{r.Resource, r.ID}); !had[k] {
				had[k] = true
				records = append(records, r)
			}
		}
		var holders []podresources.Holder
		for range rapid.IntRange(0, 4).Draw(t, "holders") {
			holders = append(holders, holder(resource(), id()))
		}
		s := &inventory.Snapshot{}
		for i := range 4 {
			f := vf(fmt.Sprintf("0000:05:00.%d", i))
			if rapid.Bool().Draw(t, "away") {
				f.Netdevs = nil
			}
			if rapid.Bool().Draw(t, "there") {
				s.Functions = append(s.Functions, f)
			}
		}
		known := rapid.Bool().Draw(t, "known")
		got, drop := Merge(records, holders, known, s, start)

		count, ids := map[key]int{}, map[string]int{}
		for _, h := range got {
			k := key{h.Resource, h.ID}
			count[k]++
			ids[h.ID]++
			if (h.Last != nil) != had[k] {
				t.Errorf("%v: its device is known: %t, there is a record: %t", k, h.Last != nil, had[k])
			}
			if count[k] > 1 {
				t.Errorf("%v is held twice", k)
			}
		}
		reported := map[key]bool{}
		for _, h := range holders {
			k := key{h.Resource, h.ID}
			reported[k] = true
			if known && count[k] != 1 {
				t.Errorf("%v is held by a pod, and %d times", k, count[k])
			}
		}
		for k := range count {
			if !had[k] && !(known && reported[k]) {
				t.Errorf("%v is held, but was not reported", k)
			}
		}
		for id, n := range ids {
			if !known && n > 1 {
				t.Errorf("%s is held %d times", id, n)
			}
		}
		for _, r := range drop {
			if k := (key{r.Resource, r.ID}); !had[k] || count[k] > 0 {
				t.Errorf("%v is stale; there was a record: %t, it is held: %d", k, had[k], count[k])
			}
		}
		slices.Reverse(records)
		slices.Reverse(holders)
		slices.Reverse(s.Functions)
		got2, drop2 := Merge(records, holders, known, s, start)
		if diff := cmp.Diff(got, got2) + cmp.Diff(drop, drop2); diff != "" {
			t.Errorf("the result depends on the order:\n%s", diff)
		}
	})
}

// With and without a report of the kubelet.
func TestPoolDoesNotShrink(t *testing.T) {
	const id = "0000:05:00.4"
	c, _, err := inventory.ParseConfig([]byte(`{"resourceList":[{"resourceName":"ib","selectors":[{"linkTypes":["infiniband"],"isRdma":true}]},{"resourceName":"rest","selectors":[{}]}]}`), inventory.ParseOptions{})
	testkit.Must(t, err)
	whole := vf(id)
	given := inventory.Assign(c, &inventory.Snapshot{Functions: []inventory.Function{whole}}, inventory.AssignOptions{}).Pools[0].Members
	path := filepath.Join(t.TempDir(), "grants")
	g, s := open(t, path)
	testkit.Must(t, g.Put(t.Context(), []Record{Of("intel.com/ib", given[0], start)}))
	closing(t, s)

	g, s = open(t, path)
	defer closing(t, s)
	moved := vf(id)
	moved.Netdevs, moved.RDMA, moved.RDMACapable, moved.PKey = nil, nil, false, ""
	now := &inventory.Snapshot{Functions: []inventory.Function{moved}}
	for _, known := range []bool{true, false} {
		held, drop := Merge(g.All(), []podresources.Holder{holder("intel.com/ib", id)}, known, now, start.Add(10*Grace))
		a := inventory.Assign(c, now, inventory.AssignOptions{Held: held})
		if len(drop) > 0 || len(a.Pools[0].Members) != 1 || len(a.Pools[1].Members) != 0 {
			t.Fatalf("the kubelet is known: %t: forgotten %v, pools %+v", known, drop, a.Pools)
		}
		if m := a.Pools[0].Members[0]; !m.Held || m.Wrong != "" || len(m.Function.Netdevs) != 1 || m.Function.RDMA[0].Devices[0].Path != "/dev/infiniband/uverbs3" {
			t.Errorf("the kubelet is known: %t: %+v of %+v", known, m, m.Function)
		}
	}
}
