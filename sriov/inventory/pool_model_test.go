package inventory

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// model follows upstream's documentation: each selector filters the devices
// that no earlier one took.
func model(c Config, s *Snapshot) map[string][]string {
	given, pools := map[string]bool{}, map[string][]string{}
	for _, r := range c.Resources {
		pools[r.FullName()] = nil
		for n, sel := range r.Selectors {
			for _, id := range modelSelect(r.Type, sel, s) {
				if !given[id] {
					given[id] = true
					pools[r.FullName()] = append(pools[r.FullName()], fmt.Sprintf("%d:%s", n, id))
				}
			}
		}
	}
	return pools
}

func modelSelect(t DeviceType, sel Selector, s *Snapshot) []string {
	var ids []string
	if t == AuxNetDevice {
		for _, a := range s.Auxiliary {
			p := a.Parent
			if p.Driver == "" || len(p.PFNames) == 0 || a.Index < 0 {
				continue
			}
			link := modelLink(s, a.Netdev, p.PFNames[0], p.PF)
			if len(a.Netdev) == 0 && link == "" {
				link = modelLink(&Snapshot{Functions: []Function{p}}, nil, p.PFNames[0], p.Address)
			}
			if oneOf(sel.Vendors, p.Vendor) && oneOf(sel.Devices, p.Device) && oneOf(sel.Drivers, p.Driver) && oneOf(sel.AuxTypes, a.Type) &&
				modelItem(sel.PFNames, p.PFNames[0], a.Index) && modelItem(sel.RootDevices, p.Address, a.Index) &&
				oneOf(sel.LinkTypes, link) && (!sel.RDMA || len(a.RDMA) > 0) {
				ids = append(ids, a.Name)
			}
		}
	}
	for _, f := range s.Functions {
		if !oneOf(sel.Vendors, f.Vendor) || !oneOf(sel.Devices, f.Device) || !oneOf(sel.Drivers, f.Driver) || !oneOf(sel.PCIAddresses, f.Address) || f.Driver == "" {
			continue
		}
		switch {
		case t == Accelerator && f.Kind == AcceleratorClass:
			ids = append(ids, f.Address)
		case t == NetDevice && f.Kind == NetworkClass && !f.DefaultRoute && (f.VF >= 0 || f.VFs == 0) && modelNet(sel, f, s):
			ids = append(ids, f.Address)
		}
	}
	slices.Sort(ids)
	return ids
}

func modelNet(sel Selector, f Function, s *Snapshot) bool {
	name, root := "", ""
	if f.VF >= 0 {
		root = f.PF
		if len(f.PFNames) > 0 {
			name = f.PFNames[0]
		}
	}
	link := modelLink(s, f.Netdevs, name, f.PF)
	if len(sel.DDPProfiles) > 0 && (f.DDPProfile == "" || !oneOf(sel.DDPProfiles, f.DDPProfile)) {
		return false
	}
	if len(sel.PKeys) > 0 && (link != "infiniband" || f.PKey == "" || !oneOf(sel.PKeys, f.PKey)) {
		return false
	}
	if sel.RDMA && len(f.RDMA) == 0 && !f.RDMACapable {
		return false
	}
	if sel.VDPAType != "" && (f.VDPA == nil || f.VDPA.Driver != sel.VDPAType+"_vdpa") {
		return false
	}
	return oneOf(sel.ACPIIndexes, f.ACPIIndex) && modelItem(sel.PFNames, name, f.VF) && modelItem(sel.RootDevices, root, f.VF) && oneOf(sel.LinkTypes, link)
}

func oneOf(wanted []string, found string) bool {
	return len(wanted) == 0 || slices.Contains(wanted, found)
}

func modelLink(s *Snapshot, own []Netdev, pfName, pf string) string {
	if len(own) > 0 {
		return own[0].Link
	}
	for _, f := range s.Functions {
		for _, n := range f.Netdevs {
			if f.Address == pf && n.Name == pfName {
				return n.Link
			}
		}
	}
	return ""
}

func modelItem(items []PFItem, name string, index int) bool {
	if len(items) == 0 {
		return true
	}
	for _, i := range items {
		parts := strings.Split(i.Text, "#")
		if name == "" || !strings.EqualFold(parts[0], name) {
			continue
		}
		if len(parts) == 1 {
			return true
		}
		for _, part := range strings.Split(parts[1], ",") {
			ends := strings.Split(part, "-")
			low, e1 := strconv.Atoi(ends[0])
			high, e2 := strconv.Atoi(ends[len(ends)-1])
			if e1 != nil || e2 != nil || len(parts) > 2 || len(ends) > 2 {
				return false
			}
			if low <= index && index <= high {
				return true
			}
		}
		return false
	}
	return false
}

// Few values, so that filters often match and collide.
func pick(t *rapid.T, of ...string) string { return rapid.SampledFrom(of).Draw(t, "of") }

func some(t *rapid.T, of ...string) []string {
	if rapid.IntRange(0, 5).Draw(t, "filter") > 0 {
		return nil
	}
	return rapid.SliceOfN(rapid.SampledFrom(of), 1, 3).Draw(t, "list")
}

func drawItems(t *rapid.T, names ...string) []PFItem {
	var all []PFItem
	for _, name := range some(t, names...) {
		i, _ := ParsePFItem(name + pick(t, "", "#0", "#0-2", "#1,3-4", "#2-1", "#0,x,3", "#1-2-3", "#0#1", "#-1", "#"))
		all = append(all, i)
	}
	return all
}

func drawFunction(t *rapid.T, i int) Function {
	f := Function{
		Address: fmt.Sprintf("0000:0%d:00.%d", i/4+1, i%4), Kind: NetworkClass,
		Vendor: pick(t, "8086", "15b3"), Device: pick(t, "154c", "101e"), Driver: pick(t, "", "iavf", "vfio-pci", "mlx5_core"),
		VF: NoIndex, ACPIIndex: pick(t, "", "101"), DDPProfile: pick(t, "", "gtp"), PKey: pick(t, "", "0x8001"),
		RDMACapable: rapid.Bool().Draw(t, "capable"), DefaultRoute: rapid.IntRange(0, 5).Draw(t, "route") == 0,
	}
	f.PF = f.Address
	if rapid.IntRange(0, 4).Draw(t, "accelerator") == 0 {
		f.Kind = AcceleratorClass
	}
	f.PFNames = rapid.SampledFrom([][]string{nil, {"eth0"}, {"eth1", "eth0"}, {"\u212a1"}}).Draw(t, "names")
	if i%4 != 0 && rapid.Bool().Draw(t, "virtual") {
		f.PF, f.VF = fmt.Sprintf("0000:0%d:00.0", i/4+1), rapid.IntRange(0, 4).Draw(t, "index")
	} else {
		f.VFs = rapid.IntRange(0, 1).Draw(t, "vfs")
	}
	if rapid.Bool().Draw(t, "netdev") {
		f.Netdevs = []Netdev{{Name: pick(t, "eth0", "eth1"), Link: pick(t, "ether", "infiniband")}}
	}
	if rapid.Bool().Draw(t, "rdma") {
		f.RDMA = []RDMA{{Name: "mlx5_0"}}
	}
	if d := pick(t, "", "virtio_vdpa", "vhost_vdpa", "other"); d != "" {
		f.VDPA = &VDPA{Driver: d}
	}
	return f
}

func drawSnapshot(t *rapid.T) *Snapshot {
	s := &Snapshot{}
	for i := range rapid.IntRange(0, 12).Draw(t, "functions") {
		s.Functions = append(s.Functions, drawFunction(t, i))
	}
	for i := range rapid.IntRange(0, 4).Draw(t, "auxiliary") {
		a := Auxiliary{Name: fmt.Sprintf("mlx5_core.sf.%d", i), Type: pick(t, "sf", "sf", "eth"), Index: rapid.IntRange(-1, 4).Draw(t, "sf")}
		a.Parent = drawFunction(t, rapid.IntRange(0, 15).Draw(t, "parent"))
		if len(s.Functions) > 0 && rapid.Bool().Draw(t, "present") {
			a.Parent = rapid.SampledFrom(s.Functions).Draw(t, "of functions")
		}
		if rapid.Bool().Draw(t, "own netdev") {
			a.Netdev = []Netdev{{Name: "sf", Link: pick(t, "ether", "infiniband")}}
		}
		if rapid.Bool().Draw(t, "own rdma") {
			a.RDMA = []RDMA{{Name: "mlx5_1"}}
		}
		s.Auxiliary = append(s.Auxiliary, a)
	}
	return s
}

func drawConfig(t *rapid.T) Config {
	var c Config
	for i := range rapid.IntRange(0, 4).Draw(t, "resources") {
		r := Resource{Index: i, Prefix: "intel.com", Name: fmt.Sprintf("r%d", i), Type: rapid.SampledFrom(DeviceTypes()).Draw(t, "type")}
		for range rapid.IntRange(1, 3).Draw(t, "selectors") {
			s := Selector{Vendors: some(t, "8086", "15b3", "0x8086"), Devices: some(t, "154c", "101e"), Drivers: some(t, "iavf", "vfio-pci", "mlx5_core", "")}
			if r.Type != AuxNetDevice {
				s.PCIAddresses = some(t, "0000:01:00.0", "0000:01:00.1", "0000:02:00.2")
			} else {
				s.AuxTypes = []string{"sf"}
			}
			if r.Type != Accelerator {
				s.PFNames, s.RootDevices = drawItems(t, "eth0", "ETH1", "k1", ""), drawItems(t, "0000:01:00.0", "0000:02:00.0")
				s.LinkTypes, s.RDMA = some(t, "ether", "infiniband", ""), rapid.IntRange(0, 3).Draw(t, "rdma") == 0
			}
			if r.Type == NetDevice {
				s.ACPIIndexes, s.DDPProfiles, s.PKeys = some(t, "101", ""), some(t, "gtp", ""), some(t, "0x8001", "")
				if !s.RDMA {
					s.VDPAType = pick(t, "", "", "", "virtio", "vhost", "invalid")
				}
			}
			r.Selectors = append(r.Selectors, s)
		}
		c.Resources = append(c.Resources, r)
	}
	return c
}

func TestAssignMatchesModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c, s := drawConfig(t), drawSnapshot(t)
		got := map[string][]string{}
		for _, p := range Assign(c, s, AssignOptions{}).Pools {
			got[p.Resource.FullName()] = ids(p, true)
		}
		if diff := cmp.Diff(model(c, s), got); diff != "" {
			t.Fatalf("pools (-model +got):\n%s\n%+v\n%+v", diff, c, s)
		}
	})
}

func TestEachDeviceOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c, s := drawConfig(t), drawSnapshot(t)
		a := Assign(c, s, AssignOptions{})
		count := map[string]int{}
		for _, p := range a.Pools {
			for _, m := range p.Members {
				count[m.ID]++
			}
		}
		for _, d := range a.Free {
			count[d.ID]++
		}
		for _, d := range a.LeftOut {
			count[d.ID]++
			if d.Why == "" {
				t.Errorf("%s is left out without a reason", d.ID)
			}
		}
		for id, n := range count {
			if n != 1 {
				t.Errorf("%s is in %d places", id, n)
			}
		}
		if len(count) != len(s.Functions)+len(s.Auxiliary) || len(a.Pools) != len(c.Resources) {
			t.Errorf("%d devices and %d pools, want %d and %d", len(count), len(a.Pools), len(s.Functions)+len(s.Auxiliary), len(c.Resources))
		}
	})
}

func TestOrderDoesNotMatter(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c, s := drawConfig(t), drawSnapshot(t)
		shuffled := &Snapshot{Functions: slices.Clone(s.Functions), Auxiliary: slices.Clone(s.Auxiliary)}
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
		r.Shuffle(len(shuffled.Functions), func(i, j int) {
			f := shuffled.Functions
			f[i], f[j] = f[j], f[i]
		})
		r.Shuffle(len(shuffled.Auxiliary), func(i, j int) {
			a := shuffled.Auxiliary
			a[i], a[j] = a[j], a[i]
		})
		if diff := cmp.Diff(Assign(c, s, AssignOptions{}), Assign(c, shuffled, AssignOptions{})); diff != "" {
			t.Errorf("assignment (-sorted +shuffled):\n%s", diff)
		}
		if diff := cmp.Diff(Explain(c, s, AssignOptions{}), Explain(c, shuffled, AssignOptions{})); diff != "" {
			t.Errorf("explanation (-sorted +shuffled):\n%s", diff)
		}
	})
}

func TestExplainMatchesAssign(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c, s := drawConfig(t), drawSnapshot(t)
		a := Assign(c, s, AssignOptions{})
		places := map[string]string{}
		for _, p := range a.Pools {
			for _, m := range p.Members {
				places[m.ID] = fmt.Sprintf("%s %d", p.Resource.FullName(), m.Selector)
			}
		}
		why := map[string]string{}
		for _, l := range a.LeftOut {
			why[l.ID] = l.Why
		}
		for _, e := range Explain(c, s, AssignOptions{}) {
			place, taken := "", 0
			for _, v := range e.Verdicts {
				switch v.Outcome {
				case Taken:
					place, taken = fmt.Sprintf("%s %d", v.Resource, v.Selector), taken+1
				case Late:
					if taken != 1 {
						t.Errorf("%s is late for %s, but no earlier selector took it", e.ID, v.Resource)
					}
				case Refused:
					if v.Filter == "" || len(v.Wanted) == 0 {
						t.Errorf("%s: a refusal without a reason: %+v", e.ID, v)
					}
				}
			}
			if place != places[e.ID] || taken > 1 || (taken == 0) != (e.Resource == "") || e.LeftOut != why[e.ID] {
				t.Errorf("%s: explained as %q (%q, left out %q), assigned to %q (left out %q)", e.ID, place, e.Resource, e.LeftOut, places[e.ID], why[e.ID])
			}
		}
	})
}
