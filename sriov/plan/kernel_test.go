package plan

import (
	"fmt"
	"slices"

	"pgregory.net/rapid"

	"github.com/cleatproject/cleat/sriov/nodestate"
)

// fakeKernel fails the test on steps that a kernel would refuse, or in the
// wrong order.
type fakeKernel struct {
	t     *rapid.T
	state State
	lazy  map[string]bool // not bound automatically
	// By VF address.
	groups map[string]nodestate.VFGroup
	// Functions bound before their address was set, whose driver does not
	// update it. That of a guest, through vfio-pci, starts later.
	stale map[string]bool
	made  int
}

func (m *fakeKernel) find(address string) (pf *PF, vf *VF) {
	for n := range m.state.PFs {
		pf := &m.state.PFs[n]
		if pf.Address == address {
			return pf, nil
		}
		for n := range pf.VFs {
			if pf.VFs[n].Address == address {
				return pf, &pf.VFs[n]
			}
		}
	}
	m.t.Fatalf("there is no function %s", address)
	return nil, nil
}

func (m *fakeKernel) mustBe(ok bool, s Step, why string) {
	if !ok {
		m.t.Fatalf("%v: %s", s, why)
	}
}

func (m *fakeKernel) do(s Step, touches []string) {
	pf, vf := m.find(s.Function())
	touched := func(v VF) bool { return slices.Contains(touches, v.Address) }
	if vf != nil {
		m.mustBe(touched(*vf), s, "it disturbs a function that is not in Touches")
	}
	switch s := s.(type) {
	case SetNumVFs:
		m.mustBe(!slices.ContainsFunc(pf.VFs, func(v VF) bool { return !touched(v) }), s, "it removes functions that are not in Touches")
		m.number(s, pf)
	case SetESwitch:
		m.mustBe(!slices.ContainsFunc(pf.VFs, func(v VF) bool { return !touched(v) }), s, "it removes functions that are not in Touches")
		m.mustBe(pf.Driver != "ice" || pf.NumVFs == 0, s, "ice has functions")
		m.mustBe(!slices.ContainsFunc(pf.VFs, func(v VF) bool { return v.Driver != "" }), s, "a function has a driver")
		pf.ESwitch, pf.TCOffload = s.Mode, drawOffload(m.t, s.Mode)
		// Some drivers recreate the network device.
		if rapid.Bool().Draw(m.t, "device again") {
			pf.MTU, pf.Up = 1500, false
		}
	case SetMTU:
		if vf != nil {
			m.mustBe(vf.Netdev != "", s, "it has no network device")
			vf.MTU = s.MTU
			return
		}
		m.mustBe(pf.Netdev != "" && s.MTU > pf.MTU, s, "no device, or no more than it has")
		pf.MTU = s.MTU
	case SetFlowSteering:
		m.mustBe(pf.Vendor == mellanox && pf.FlowSteering != "" && pf.mode() == nodestate.Legacy, s, "no such parameter, or in switchdev mode")
		pf.FlowSteering = s.Mode
	case SetTCOffload:
		m.mustBe(pf.ESwitch == nodestate.Switchdev && pf.TCOffload == nodestate.Off, s, "not in switchdev mode, or not off")
		pf.TCOffload = nodestate.On
	case SetUp:
		m.mustBe(vf == nil && pf.Netdev != "", s, "no device of a PF")
		pf.Up = true
	case Bind:
		_, grouped := m.groups[vf.Address]
		m.mustBe(s.Driver == "" || !grouped || !vf.Known || pf.Link != Ether || !isUnset(vf.AdminMAC), s, "it has no address yet")
		m.bind(s, pf, vf)
	case Unbind:
		m.unbind(vf)
	case SetVDPA:
		m.mustBe(s.Type == "" || vf.VDPA == "" && vf.Driver == driverOf(pf) && pf.ESwitch == nodestate.Switchdev, s, "a vDPA device cannot be created")
		vf.VDPA = s.Type
	default:
		m.table(s, pf, vf)
	}
}

// drawOffload draws hw-tc-offload after a change of the mode.
func drawOffload(t *rapid.T, mode string) string {
	if mode != nodestate.Switchdev {
		return ""
	}
	return rapid.SampledFrom([]string{"", nodestate.On, nodestate.Off, nodestate.Off, Fixed}).Draw(t, "offload")
}

func (m *fakeKernel) table(s Step, pf *PF, vf *VF) {
	m.mustBe(vf != nil && vf.Known, s, "the table has no such function")
	at := func(address string, index int) {
		m.mustBe(address == pf.Address && index == vf.Index, s, "PF or index are not those of the address")
	}
	switch s := s.(type) {
	case SetMAC:
		at(s.PF, s.VF)
		m.mustBe(pf.Link == Ether, s, "it is not Ethernet")
		m.stale[vf.Address] = m.groups[vf.Address].IsRDMA && vf.Driver == driverOf(pf)
		vf.AdminMAC = s.MAC
	case SetGUID:
		at(s.PF, s.VF)
		m.mustBe(pf.Link == InfiniBand, s, "it is not InfiniBand")
		m.stale[vf.Address] = vf.Driver == driverOf(pf)
		vf.NodeGUID, vf.PortGUID = s.GUID, s.GUID
	case SetTrust:
		at(s.PF, s.VF)
		m.mustBe(vf.Trust != s.On, s, "it is already set")
		vf.Trust = s.On
	case SetVLAN:
		at(s.PF, s.VF)
		vf.VLAN, vf.QoS, vf.QinQ = s.VLAN, s.QoS, s.QinQ
	case SetRates:
		at(s.PF, s.VF)
		vf.MinRate, vf.MaxRate = s.Min, s.Max
	case SetLinkState:
		at(s.PF, s.VF)
		vf.LinkState = s.State
	case SetSpoofCheck:
		at(s.PF, s.VF)
		m.mustBe(vf.SpoofCheck != s.On, s, "it is already set")
		vf.SpoofCheck = s.On
	default:
		m.t.Fatalf("unknown step %T", s)
	}
}

func (m *fakeKernel) number(s SetNumVFs, pf *PF) {
	if s.Number == 0 {
		pf.NumVFs, pf.VFs = 0, nil
		return
	}
	m.mustBe(pf.NumVFs == 0, s, "device or resource busy")
	m.mustBe(s.Number <= pf.TotalVFs, s, "numerical result out of range")
	m.mustBe(pf.Driver == "ice" || pf.ESwitch != nodestate.Switchdev, s, "not in this mode")
	pf.NumVFs = s.Number
	for n := range s.Number {
		pf.VFs = append(pf.VFs, VF{Index: n, Address: fakeVFAddress(pf.Address, n), Known: true, GUIDs: pf.Link == InfiniBand})
		if !m.lazy[pf.Address] {
			m.bind(Bind{}, pf, &pf.VFs[n])
		}
	}
}

func fakeVFAddress(pf string, index int) string {
	return fmt.Sprintf("%s%02x.%d", pf[:len(pf)-4], 8+index/8, index%8)
}

func driverOf(pf *PF) string { return pf.Driver + "vf" }

func (m *fakeKernel) bind(s Bind, pf *PF, vf *VF) {
	want := s.Driver
	if want == "" {
		want = driverOf(pf)
	}
	if vf.Driver == want {
		return
	}
	m.unbind(vf)
	vf.Driver = want
	if want != driverOf(pf) {
		return
	}
	m.made++
	vf.Netdev, vf.MTU, vf.MAC = fmt.Sprintf("eth%d", m.made), 1500, vf.AdminMAC
	if isUnset(vf.MAC) {
		vf.MAC = fmt.Sprintf("02:aa:00:00:%02x:%02x", m.made/256, m.made%256)
	}
}

func (m *fakeKernel) unbind(vf *VF) {
	vf.Driver, vf.Netdev, vf.MAC, vf.MTU, vf.VDPA, vf.RDMA = "", "", "", 0, "", nil
	delete(m.stale, vf.Address)
}
