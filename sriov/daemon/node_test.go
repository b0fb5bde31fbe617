package daemon

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/cleatproject/cleat/sriov/nodestate"
	"github.com/cleatproject/cleat/sriov/plan"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	pf0 = "0000:3b:00.0"
	pf1 = "0000:5e:00.0"
)

type node struct {
	mu         sync.Mutex
	state      plan.State
	fail       func(plan.Step) error
	check      func(plan.Step) // before each step
	unreadable error
	steps      []string
	created    int
	// showsRandom: the table shows the address that a new function's driver
	// chose, as igb's.
	showsRandom bool
}

func newNode() *node {
	pf := func(address, name string) plan.PF {
		return plan.PF{Address: address, Vendor: "8086", Device: "1592", Driver: "ice", Netdev: name, Names: []string{name}, Link: plan.Ether,
			MAC: "0c:42:a1:00:00:01", MTU: 1500, Up: true, TotalVFs: 8, ESwitch: nodestate.Legacy}
	}
	return &node{state: plan.State{PFs: []plan.PF{pf(pf0, "ens1"), pf(pf1, "ens2")}}}
}

func vfAddress(pf string, index int) string { return fmt.Sprintf("%s02.%d", pf[:8], index) }

func (n *node) Read(context.Context) (plan.State, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.copy(), n.unreadable
}

func (n *node) copy() plan.State {
	s := plan.State{RDMAMode: n.state.RDMAMode, PFs: slices.Clone(n.state.PFs)}
	for i := range s.PFs {
		s.PFs[i].VFs = slices.Clone(s.PFs[i].VFs)
	}
	return s
}

func (n *node) change(f func(*plan.State)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	f(&n.state)
}

func (n *node) Do(_ context.Context, s plan.Step) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.steps = append(n.steps, s.String())
	if n.check != nil {
		n.check(s)
	}
	if n.fail != nil {
		if err := n.fail(s); err != nil {
			return err
		}
	}
	return n.do(s)
}

func (n *node) find(address string) (pf *plan.PF, vf *plan.VF) {
	for i := range n.state.PFs {
		pf := &n.state.PFs[i]
		if pf.Address == address {
			return pf, nil
		}
		for j := range pf.VFs {
			if pf.VFs[j].Address == address {
				return pf, &pf.VFs[j]
			}
		}
	}
	return nil, nil
}

func (n *node) do(step plan.Step) error {
	pf, vf := n.find(step.Function())
	if pf == nil {
		return fmt.Errorf("%s: no such device", step.Function())
	}
	switch s := step.(type) {
	case plan.SetNumVFs:
		pf.NumVFs, pf.VFs = s.Number, nil
		for i := range s.Number {
			pf.VFs = append(pf.VFs, plan.VF{Index: i, Address: vfAddress(pf.Address, i), Known: true, Instance: fmt.Sprint(n.created)})
			n.bind(&pf.VFs[i], "")
			if n.showsRandom {
				pf.VFs[i].AdminMAC = pf.VFs[i].MAC
			}
		}
	case plan.SetMTU:
		if vf != nil {
			vf.MTU = s.MTU
		} else {
			pf.MTU = s.MTU
		}
	case plan.SetUp:
		pf.Up = true
	case plan.SetMAC:
		vf.AdminMAC, vf.MAC = s.MAC, s.MAC
	case plan.SetVLAN:
		vf.VLAN, vf.QoS, vf.QinQ = s.VLAN, s.QoS, s.QinQ
	case plan.SetTrust:
		vf.Trust = s.On
	case plan.SetSpoofCheck:
		vf.SpoofCheck = s.On
	case plan.Bind:
		n.bind(vf, s.Driver)
	case plan.Unbind:
		vf.Driver, vf.Netdev, vf.MAC, vf.MTU = "", "", "", 0
	default:
		return fmt.Errorf("what is %T?", s)
	}
	return nil
}

func (n *node) bind(vf *plan.VF, driver string) {
	vf.Driver, vf.Netdev, vf.MAC, vf.MTU = driver, "", "", 0
	if driver == "" || driver == "iavf" {
		n.created++
		vf.Driver, vf.Netdev, vf.MTU = "iavf", fmt.Sprintf("eth%d", n.created), 1500
		if vf.MAC = vf.AdminMAC; vf.MAC == "" {
			vf.MAC = fmt.Sprintf("02:aa:00:00:%02x:%02x", n.created/256%256, n.created%256)
		}
	}
}

func specOf(vfs, mtu int) nodestate.Spec {
	i := nodestate.Interface{PCIAddress: pf0, NumVFs: vfs, MTU: mtu}
	if vfs > 1 {
		i.VFGroups = append(i.VFGroups, nodestate.VFGroup{ResourceName: "net", VFRange: fmt.Sprintf("0-%d", vfs-2)})
	}
	if vfs > 0 {
		i.VFGroups = append(i.VFGroups, nodestate.VFGroup{ResourceName: "dpdk", DeviceType: nodestate.VFIO, VFRange: fmt.Sprintf("%d-%d", vfs-1, vfs-1)})
	}
	return nodestate.Spec{Interfaces: []nodestate.Interface{i}}
}
