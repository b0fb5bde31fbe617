package plan

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/cleatproject/cleat/sriov/nodestate"
)

const maxRounds = 5

// From any state, a few rounds of planning and applying, some interrupted,
// reach the desired state. The kernel refuses no step, and nothing else
// changes.
func TestPlansConverge(t *testing.T) { rapid.Check(t, checkPlansConverge) }

func FuzzPlansConverge(f *testing.F) { f.Fuzz(rapid.MakeFuzz(checkPlansConverge)) }

func checkPlansConverge(t *rapid.T) {
	m := &fakeKernel{t: t, lazy: map[string]bool{}, groups: map[string]nodestate.VFGroup{}, stale: map[string]bool{}}
	var spec nodestate.Spec
	o := Options{}
	for n := range rapid.IntRange(1, 3).Draw(t, "PFs") {
		m.state.PFs = append(m.state.PFs, drawPF(t, m, n))
		pf := &m.state.PFs[n]
		if rapid.IntRange(0, 3).Draw(t, "desired") > 0 {
			spec.Interfaces = append(spec.Interfaces, drawDesired(t, *pf))
		}
		if rapid.IntRange(0, 2).Draw(t, "managed") == 0 {
			o.Managed = append(o.Managed, pf.Address)
		}
		for _, v := range pf.VFs {
			if rapid.IntRange(0, 9).Draw(t, "held") == 0 {
				o.Held = append(o.Held, v.Address)
			}
		}
	}
	// No step provides the others.
	o.Baselines, o.Accept = drawBaselines(t, m.state, o.Held), []string{UnmetBridge, UnmetDriver, UnmetGUID, UnmetRDMA}
	if rapid.Bool().Draw(t, "accept") {
		o.Accept = Kinds()
	}
	for _, i := range spec.Interfaces {
		for index := range i.NumVFs {
			if g, ok := i.Group(index); ok {
				m.groups[fakeVFAddress(i.PCIAddress, index)] = g
			}
		}
	}
	if err := spec.Check(); err != nil {
		t.Fatalf("the test draws an invalid state: %v", err)
	}
	first := slices.Clone(m.state.PFs)
	for n := range first {
		first[n].VFs = slices.Clone(first[n].VFs)
	}
	for range rapid.IntRange(0, 2).Draw(t, "stopped") {
		p := Compute(spec, m.state, o)
		for _, s := range p.Steps[:rapid.IntRange(0, len(p.Steps)).Draw(t, "done")] {
			m.do(s, p.Touches)
		}
	}
	for round := 0; ; round++ {
		p := Compute(spec, m.state, o)
		checkHeld(t, m, o, p)
		if !reflect.DeepEqual(Follow(spec, m.state, o).Problems, Follow(spec, m.state, Options{Held: o.Held}).Problems) {
			t.Fatal("in mode follow, what pods left closes functions")
		}
		if again := Compute(spec, m.state, o); !reflect.DeepEqual(p, again) {
			t.Fatalf("two plans of one:\n%+v\n%+v", p, again)
		}
		if len(p.Steps) == 0 {
			if p.More || len(p.Touches) > 0 {
				t.Fatalf("no step, but more to come, or something touched: %+v", p)
			}
			checkReached(t, m, spec, o, first, p)
			return
		}
		if round == maxRounds {
			t.Fatalf("still to do: %v", p.Steps)
		}
		for _, s := range p.Steps {
			m.do(s, p.Touches)
		}
		if left := Compute(spec, m.state, o); !p.More && len(left.Steps) > 0 {
			t.Fatalf("there is more to do: %v, after %v", left.Steps, p.Steps)
		}
	}
}

// drawBaselines draws what free functions were like before a pod held them.
func drawBaselines(t *rapid.T, s State, held []string) map[string]VF {
	all := map[string]VF{}
	for _, pf := range s.PFs {
		for _, v := range pf.VFs {
			if slices.Contains(held, v.Address) || !v.Known || rapid.Bool().Draw(t, "never held") {
				continue
			}
			mac := rapid.SampledFrom([]string{"", v.AdminMAC, "02:00:00:00:00:98", "02:00:00:00:00:99", pf.MAC}).Draw(t, "MAC before")
			if pf.Link == Ether {
				v.AdminMAC = mac
				if v.Netdev != "" && !isUnset(mac) && rapid.Bool().Draw(t, "MAC used before") {
					v.MAC = mac
				}
			}
			v.VLAN, v.QinQ = rapid.SampledFrom([]int{0, 5}).Draw(t, "VLAN before"), rapid.Bool().Draw(t, "QinQ before")
			v.MaxRate, v.LinkState = rapid.IntRange(0, 1).Draw(t, "rate before"), rapid.IntRange(LinkAuto, LinkDown).Draw(t, "link before")
			v.Trust, v.SpoofCheck = rapid.Bool().Draw(t, "trust before"), rapid.Bool().Draw(t, "spoof check before")
			all[v.Address] = v
		}
	}
	return all
}

// checkHeld finds steps on functions of pods; only a wrong driver, or another
// number or mode, needs them.
func checkHeld(t *rapid.T, m *fakeKernel, o Options, p Plan) {
	for _, address := range o.Held {
		if !slices.Contains(p.Touches, address) {
			continue
		}
		pf, v := m.find(address)
		g := m.groups[address]
		rebuilt := slices.ContainsFunc(p.Steps, func(s Step) bool {
			_, numbered := s.(SetNumVFs)
			_, switched := s.(SetESwitch)
			return s.Function() == pf.Address && (numbered || switched)
		})
		right := v.Driver != "" && !isUserspace(v.Driver)
		if g.Type() == nodestate.VFIO {
			right = v.Driver == nodestate.VFIO
		}
		if right && !rebuilt {
			t.Fatalf("%s is held, and touched by %v", address, p.Steps)
		}
	}
}

// checkFree finds functions that pods can get with what another pod left.
func checkFree(t *rapid.T, m *fakeKernel, i nodestate.Interface, pf PF, o Options, p Plan) {
	for _, v := range pf.VFs {
		g, ok := i.Group(v.Index)
		inPod := v.Driver == driverOf(&pf) && v.Netdev == "" || slices.Contains(o.Held, v.Address)
		blocked := slices.ContainsFunc(p.Problems, func(f Finding) bool { return f.Function == v.Address })
		if !ok || v.Index >= i.NumVFs || inPod || blocked || !v.Known {
			continue
		}
		for _, other := range append(slices.Clone(pf.VFs), VF{Index: -1, AdminMAC: pf.MAC}) {
			if pf.Link == Ether && other.Index != v.Index && !isUnset(v.AdminMAC) && strings.EqualFold(v.AdminMAC, other.AdminMAC) {
				t.Fatalf("%+v has the address of %+v", v, other)
			}
		}
		before, wasHeld := o.Baselines[v.Address]
		if !wasHeld {
			continue
		}
		// An address that another function has now is not restored.
		if before.AdminMAC, before.MAC = v.AdminMAC, v.MAC; !Same(g, pf, before, v) {
			t.Fatalf("left on %+v, which was %+v", v, before)
		}
	}
}

func drawPF(t *rapid.T, m *fakeKernel, n int) PF {
	pf := PF{
		Address: fmt.Sprintf("0000:%x0:00.%d", 3+n, n), Driver: rapid.SampledFrom([]string{"ice", "mlx5_core", "igb"}).Draw(t, "driver"),
		Netdev: fmt.Sprintf("ens%d", n), Link: rapid.SampledFrom([]string{Ether, Ether, InfiniBand}).Draw(t, "link"),
		MAC: fmt.Sprintf("0c:42:a1:00:00:%02x", n), MTU: rapid.SampledFrom([]int{1500, 9000}).Draw(t, "PF MTU"), Up: rapid.Bool().Draw(t, "up"),
		TotalVFs: rapid.IntRange(0, 10).Draw(t, "totalvfs"), ESwitch: rapid.SampledFrom([]string{"", nodestate.Legacy, nodestate.Switchdev}).Draw(t, "mode"),
	}
	pf.Names = []string{pf.Netdev}
	if pf.Link == InfiniBand {
		pf.ESwitch, pf.MAC = "", "00:00:10:49:fe:80:00:00:00:00:00:00:0c:42:a1:03:00:00:00:"+fmt.Sprintf("%02x", n)
	}
	if rapid.IntRange(0, 9).Draw(t, "no device") == 0 {
		pf.Netdev, pf.Names, pf.Link, pf.MAC, pf.MTU, pf.Up = "", nil, "", "", 0, false
	}
	if pf.Driver == "mlx5_core" {
		pf.Vendor, pf.FlowSteering = mellanox, rapid.SampledFrom([]string{"", "dmfs", SMFS}).Draw(t, "steering")
	}
	m.lazy[pf.Address] = rapid.Bool().Draw(t, "lazy")
	mode := pf.ESwitch
	if pf.Driver != "ice" {
		pf.ESwitch = nodestate.Legacy // functions were created in it
	}
	if number := rapid.IntRange(0, pf.TotalVFs).Draw(t, "numvfs"); number > 0 {
		m.number(SetNumVFs{PF: pf.Address, Number: number}, &pf)
	}
	pf.ESwitch, pf.TCOffload = mode, drawOffload(t, mode)
	for n := range pf.VFs {
		drawVF(t, m, &pf, &pf.VFs[n])
	}
	return pf
}

func drawVF(t *rapid.T, m *fakeKernel, pf *PF, v *VF) {
	switch rapid.IntRange(0, 5).Draw(t, "VF") {
	case 0:
		m.unbind(v)
	case 1:
		m.bind(Bind{Driver: rapid.SampledFrom([]string{"vfio-pci", "uio_pci_generic", "mlx5_vfio_pci"}).Draw(t, "bound")}, pf, v)
	case 2:
		m.bind(Bind{}, pf, v)
		v.Netdev, v.MAC, v.MTU = "", "", 0 // in a pod
	case 3:
		m.bind(Bind{}, pf, v)
		v.MTU = rapid.SampledFrom([]int{1400, 1500, 9000}).Draw(t, "VF MTU")
	}
	v.AdminMAC = rapid.SampledFrom([]string{"", "00:00:00:00:00:00", "02:00:00:00:00:99"}).Draw(t, "MAC")
	v.VLAN, v.MaxRate, v.LinkState = rapid.SampledFrom([]int{0, 7}).Draw(t, "VLAN"), rapid.IntRange(0, 1).Draw(t, "rate"), rapid.IntRange(LinkAuto, LinkDown).Draw(t, "link state")
	v.Trust, v.SpoofCheck = rapid.Bool().Draw(t, "trust"), rapid.Bool().Draw(t, "spoof check")
	if v.GUIDs = pf.Link == InfiniBand && rapid.IntRange(0, 9).Draw(t, "GUIDs") > 0; v.GUIDs {
		v.NodeGUID = rapid.SampledFrom([]string{"", "00:00:00:00:00:00:00:00", "02:00:00:00:00:00:00:99"}).Draw(t, "node GUID")
		v.PortGUID = rapid.SampledFrom([]string{"", v.NodeGUID}).Draw(t, "port GUID")
	}
	if pf.ESwitch == nodestate.Switchdev && v.Driver == driverOf(pf) {
		v.VDPA = rapid.SampledFrom([]string{"", "virtio", "vhost"}).Draw(t, "vDPA")
	}
	if rapid.IntRange(0, 9).Draw(t, "unknown") == 0 {
		v.Known, v.AdminMAC, v.Trust, v.SpoofCheck, v.GUIDs, v.NodeGUID, v.PortGUID = false, "", false, false, false, "", ""
		v.VLAN, v.MaxRate, v.LinkState = 0, 0, LinkAuto
	}
}

func drawDesired(t *rapid.T, pf PF) nodestate.Interface {
	i := nodestate.Interface{
		PCIAddress: pf.Address, NumVFs: rapid.IntRange(0, min(pf.TotalVFs+1, 10)).Draw(t, "desired number"),
		MTU:               rapid.SampledFrom([]int{0, 1500, 9000}).Draw(t, "desired PF MTU"),
		LinkType:          rapid.SampledFrom([]string{"", "", "", "eth", "IB"}).Draw(t, "desired link"),
		ESwitchMode:       rapid.SampledFrom([]string{"", nodestate.Legacy, nodestate.Switchdev}).Draw(t, "desired mode"),
		ExternallyManaged: rapid.IntRange(0, 4).Draw(t, "external") == 0,
	}
	if i.LinkType == "IB" {
		i.ESwitchMode = ""
	}
	for next := 0; next < i.NumVFs; {
		first := rapid.IntRange(next, i.NumVFs-1).Draw(t, "first")
		last := rapid.IntRange(first, i.NumVFs-1).Draw(t, "last")
		g := nodestate.VFGroup{
			VFRange: fmt.Sprintf("%d-%d", first, last), DeviceType: rapid.SampledFrom([]string{"", "netdevice", "vfio-pci"}).Draw(t, "type"),
			MTU:   rapid.SampledFrom([]int{0, 1400, 9000}).Draw(t, "desired MTU"),
			Trust: rapid.SampledFrom([]string{"", "on", "off"}).Draw(t, "desired trust"), SpoofCheck: rapid.SampledFrom([]string{"", "on", "off"}).Draw(t, "desired check"),
		}
		if g.Type() == nodestate.NetDevice {
			g.IsRDMA = rapid.Bool().Draw(t, "RDMA")
			if i.Mode() == nodestate.Switchdev {
				g.VDPAType = rapid.SampledFrom([]string{"", "virtio", "vhost"}).Draw(t, "desired vDPA")
			}
		}
		i.VFGroups = append(i.VFGroups, g)
		next = last + 1
	}
	return i
}

func checkReached(t *rapid.T, m *fakeKernel, spec nodestate.Spec, o Options, first []PF, p Plan) {
	for n, pf := range m.state.PFs {
		w := slices.IndexFunc(spec.Interfaces, func(i nodestate.Interface) bool { return i.PCIAddress == pf.Address })
		bad := slices.ContainsFunc(p.Problems, func(problem Finding) bool { return problem.PF == pf.Address && problem.Function == "" })
		switch {
		case w < 0 && slices.Contains(o.Managed, pf.Address):
			if pf.NumVFs != 0 || pf.mode() != nodestate.Legacy {
				t.Fatalf("not released: %+v", pf)
			}
		case w < 0:
			if !reflect.DeepEqual(pf, first[n]) {
				t.Fatalf("touched without a desired state: %+v, was %+v", pf, first[n])
			}
		default:
			i := spec.Interfaces[w]
			if i.ExternallyManaged && (pf.NumVFs != first[n].NumVFs || pf.ESwitch != first[n].ESwitch || pf.MTU != first[n].MTU) {
				t.Fatalf("managed externally, but changed: %+v, was %+v", pf, first[n])
			}
			if !bad {
				checkDesired(t, m, i, pf, o, p)
				checkFree(t, m, i, pf, o, p)
			}
		}
	}
}

func checkDesired(t *rapid.T, m *fakeKernel, i nodestate.Interface, pf PF, o Options, p Plan) {
	if pf.NumVFs < i.NumVFs || pf.NumVFs > i.NumVFs && !i.ExternallyManaged || pf.mode() != i.Mode() {
		t.Fatalf("number or mode: %+v, want %+v", pf, i)
	}
	if pf.Netdev != "" && (!pf.Up || pf.MTU < i.MTU) {
		t.Fatalf("up or MTU: %+v, want %+v", pf, i)
	}
	if i.NumVFs > 0 && i.Mode() == nodestate.Switchdev && !slices.Contains(o.Accept, UnmetOffload) && (pf.TCOffload == nodestate.Off || pf.isSteeredWrong()) {
		t.Fatalf("it does not offload: %+v", pf)
	}
	for _, v := range pf.VFs {
		g, ok := i.Group(v.Index)
		blocked := slices.ContainsFunc(p.Problems, func(f Finding) bool { return f.Function == v.Address })
		if !ok || v.Index >= i.NumVFs || blocked {
			continue
		}
		network := v.Driver == driverOf(&pf)
		if network == (g.Type() == nodestate.VFIO) || g.Type() == nodestate.VFIO && v.Driver != "vfio-pci" {
			t.Fatalf("driver: %+v, want %+v", v, g)
		}
		if slices.Contains(o.Held, v.Address) || network && v.Netdev == "" {
			continue
		}
		if m.stale[v.Address] {
			t.Fatalf("its driver does not know its address: %+v", v)
		}
		if network && v.Known && (pf.Link == Ether && isUnset(v.AdminMAC) || v.GUIDs && (isUnset(v.NodeGUID) || isUnset(v.PortGUID))) {
			t.Fatalf("no address: %+v", v)
		}
		if network && (g.MTU != 0 && v.MTU != g.MTU || v.VDPA != g.VDPAType) {
			t.Fatalf("MTU or vDPA: %+v, want %+v", v, g)
		}
		if g.Trust != "" && v.Trust != (g.Trust == "on") || g.SpoofCheck != "" && v.SpoofCheck != (g.SpoofCheck == "on") {
			t.Fatalf("trust or spoof check: %+v, want %+v", v, g)
		}
	}
}
