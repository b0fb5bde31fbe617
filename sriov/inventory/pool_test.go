package inventory

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cleatproject/cleat/test/testkit"
)

func TestFirstItemOfPFCounts(t *testing.T) {
	for _, c := range []struct {
		fields string
		want   []string
	}{
		{`"pfNames":["ens1#0","ENS1#1-2"]`, []string{"0000:06:00.2"}},
		{`"pfNames":["ENS1#1-2","ens1"]`, []string{"0000:06:00.3", "0000:06:00.4"}},
		{`"pfNames":["ens1#","ens1"]`, nil},
		{`"rootDevices":["0000:06:00.0#2","0000:06:00.0"]`, []string{"0000:06:00.4"}},
		{`"rootDevices":["0000:06:00.0#9","0000:02:00.0#1"]`, []string{"0000:02:02.1"}},
	} {
		a := Assign(parsed(t, `{"resourceName":"a","selectors":[{`+c.fields+`}]}`), host(), AssignOptions{})
		testkit.Diff(t, c.fields, c.want, ids(a.Pools[0], false))
	}
}

func TestRootInAnyLetterCase(t *testing.T) {
	s := &Snapshot{Functions: []Function{{Address: "0000:af:00.2", Kind: NetworkClass, Driver: "iavf", PF: "0000:af:00.0"}}}
	a := Assign(parsed(t, `{"resourceName":"a","selectors":[{"rootDevices":["0000:AF:00.0"]}]}`), s, AssignOptions{})
	testkit.Diff(t, "pool", []string{"0000:af:00.2"}, ids(a.Pools[0], false))
}

func TestAuxiliaryOfVF(t *testing.T) {
	parent := Function{Address: "0000:06:00.2", Kind: NetworkClass, Driver: "mlx5_core", PF: "0000:06:00.0", PFNames: []string{"ens1"}}
	s := &Snapshot{Functions: []Function{parent}, Auxiliary: []Auxiliary{{Name: "mlx5_core.sf.9", Type: "sf", Index: 7, Parent: parent}}}
	for fields, want := range map[string][]string{
		`"rootDevices":["0000:06:00.2#7"]`: {"mlx5_core.sf.9"},
		`"rootDevices":["0000:06:00.0#7"]`: nil,
		`"pfNames":["ens1#7"]`:             {"mlx5_core.sf.9"},
	} {
		a := Assign(parsed(t, `{"resourceName":"a","deviceType":"auxNetDevice","selectors":[{"auxTypes":["sf"],`+fields+`}]}`), s, AssignOptions{})
		testkit.Diff(t, fields, want, ids(a.Pools[0], false))
	}
}

// As upstream, it is in its pool; but unhealthy.
func TestRDMACapableWithoutDevice(t *testing.T) {
	const vf, sf = "0000:02:02.0", "mlx5_core.sf.5"
	asks := parsed(t, `{"resourceName":"n","selectors":[{"isRdma":true}]},{"resourceName":"x","deviceType":"accelerator","selectors":[{}]},
		{"resourceName":"s","deviceType":"auxNetDevice","selectors":[{"auxTypes":["sf"],"isRdma":true}]}`)
	without := parsed(t, `{"resourceName":"n","selectors":[{}]},{"resourceName":"s","deviceType":"auxNetDevice","selectors":[{"auxTypes":["sf"]}]}`)
	with := func(rdma []RDMA, capable bool) *Snapshot {
		s := host()
		change(s, vf, func(f *Function) { f.RDMA, f.RDMACapable = rdma, capable })
		changeSF(s, sf, func(a *Auxiliary) { a.RDMA, a.RDMACapable = rdma, capable })
		return s
	}
	device := []RDMA{{Name: "mlx5_3"}}
	for name, c := range map[string]struct {
		s                   *Snapshot
		vf, sf, vfAny, held string
	}{
		"RDMA device":                          {with(device, true), "n 0", "s 0", "n 0", "n 0 held"},
		"RDMA device, not reported as capable": {with(device, false), "n 0", "s 0", "n 0", "n 0 held"},
		"capable without a device":             {with(nil, true), "n 0: it is RDMA capable", "s 0: it is RDMA capable", "n 0", "n 0 held"},
		"neither":                              {with(nil, false), "free", "free", "n 0", "n 0 held"},
	} {
		t.Run(name, func(t *testing.T) {
			is := func(what string, got []string, want string) {
				t.Helper()
				text, _, _ := strings.Cut(strings.Join(got, ", "), " but has no RDMA device in this network namespace")
				if text != want {
					t.Errorf("%s: %q, want %q", what, got, want)
				}
			}
			a := Assign(asks, c.s, AssignOptions{})
			is("the function", places(a, vf), c.vf)
			is("the scalable function", places(a, sf), c.sf)
			is("without isRdma", places(Assign(without, c.s, AssignOptions{}), vf), c.vfAny)
			checkExplain(t, asks, c.s, AssignOptions{})
			held := AssignOptions{Held: []HeldDevice{{"intel.com/n", vf, found(t, with(device, true), vf)}}}
			is("held", places(Assign(asks, c.s, held), vf), c.held)
		})
	}

	held := AssignOptions{Held: []HeldDevice{{"intel.com/s", sf, found(t, with(device, true), sf)}}}
	if m := Assign(asks, with(nil, false), held).Pools[2].Members; len(m) != 1 || !m[0].Auxiliary.RDMACapable || m[0].Wrong != "" {
		t.Errorf("the held scalable function: %+v", m)
	}

	down := with(nil, true)
	change(down, "0000:02:00.0", func(f *Function) {
		f.Netdevs = []Netdev{{Name: "enp2s2f1", Link: "ether"}}
	})
	if got := strings.Join(places(Assign(asks, down, AssignOptions{LinkHealth: true}), vf), ""); !strings.Contains(got, "enp2s2f1 is down; it is RDMA capable but") {
		t.Errorf("got %q, want both reasons", got)
	}
}

// crowd has 64 VFs per PF, and resources with equal shares.
func crowd(functions, resources int) (*Snapshot, string) {
	const perPF = 64
	s := &Snapshot{}
	for i := range functions {
		pf, vf := i/perPF, i%perPF
		s.Functions = append(s.Functions, Function{
			Address: fmt.Sprintf("%04x:%02x:%02x.%d", pf, 1+vf/256, vf/8, vf%8), Kind: NetworkClass, Vendor: "8086", Device: "154c", Driver: "vfio-pci",
			PF: fmt.Sprintf("%04x:00:00.0", pf), PFNames: []string{fmt.Sprintf("eth%d", pf)}, VF: vf,
		})
	}
	var texts, items []string
	for pf := range (functions + perPF - 1) / perPF {
		items = append(items, fmt.Sprintf("eth%d", pf))
	}
	for r := range resources {
		var ranges []string
		for _, i := range items {
			ranges = append(ranges, fmt.Sprintf("%q", fmt.Sprintf("%s#%d-%d", i, r*perPF/resources, (r+1)*perPF/resources-1)))
		}
		texts = append(texts, fmt.Sprintf(`{"resourceName":"r%d","selectors":[{"vendors":["8086"],"drivers":["vfio-pci"],"pfNames":[%s]}]}`, r, strings.Join(ranges, ",")))
	}
	return s, strings.Join(texts, ",")
}

func TestAssignManyFunctions(t *testing.T) {
	s, text := crowd(2048, 32)
	a := Assign(parsed(t, text), s, AssignOptions{})
	for _, p := range a.Pools {
		if len(p.Members) != 64 {
			t.Errorf("%s has %d members, want 64", p.Resource.FullName(), len(p.Members))
		}
	}
	if len(a.Free)+len(a.LeftOut)+len(a.Warnings) > 0 {
		t.Errorf("free %d, left out %d, warnings %v", len(a.Free), len(a.LeftOut), a.Warnings)
	}
}
