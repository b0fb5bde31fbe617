package plan

import (
	"fmt"
	"slices"

	"github.com/cleatproject/cleat/sriov/nodestate"
)

// Kinds of Unmet.
const (
	UnmetOffload  = "hw-tc-offload"
	UnmetSteering = "flow-steering"
	UnmetBridge   = "bridge"
	UnmetDriver   = "driver" // of a VF that was assigned to a virtual machine
	UnmetGUID     = "guid"
	UnmetRDMA     = "rdma"
)

// Kinds returns the kinds of Unmet.
func Kinds() []string {
	return []string{UnmetOffload, UnmetSteering, UnmetBridge, UnmetDriver, UnmetGUID, UnmetRDMA}
}

func (p *planner) accepts(u Unmet) bool {
	return slices.Contains(p.options.Accept, u.Kind) || slices.Contains(p.options.Accepted, u)
}

func (p *planner) unmet(u Unmet, format string, args ...any) {
	p.plan.Unmet = append(p.plan.Unmet, u)
	found := Finding{PF: u.PF, Function: u.Function, Text: fmt.Sprintf(format, args...)}
	switch {
	case slices.Contains(p.options.Accept, u.Kind):
		found.Text += "; accepted"
	case slices.Contains(p.options.Accepted, u):
		found.Text += "; accepted until it is resolved, as it was so before an upgrade"
	default:
		found.Text += fmt.Sprintf(", or accept it: --accept=%s", u.Kind)
		p.plan.Problems = append(p.plan.Problems, found)
		return
	}
	p.plan.Notes = append(p.plan.Notes, found)
}

// mellanox is a PCI vendor.
const mellanox = "15b3"

// needsSteering reports whether a step sets the flow steering mode. Externally
// managed PFs have no such step.
func (p *planner) needsSteering(i nodestate.Interface, pf PF) bool {
	return i.NumVFs > 0 && i.Mode() == nodestate.Switchdev && pf.isSteeredWrong() && !p.accepts(Unmet{PF: pf.Address, Kind: UnmetSteering})
}

func (pf PF) isSteeredWrong() bool {
	return pf.Vendor == mellanox && pf.FlowSteering != "" && pf.FlowSteering != SMFS
}

// configureSwitch has what the operator sets on PFs in switchdev mode, unless they
// are externally managed.
func (p *planner) configureSwitch(i nodestate.Interface, pf PF) {
	if i.NumVFs == 0 || i.Mode() != nodestate.Switchdev {
		return
	}
	switch u := (Unmet{PF: pf.Address, Kind: UnmetOffload}); {
	case pf.TCOffload == Fixed:
		p.unmet(u, "eSwitchMode is %q, but hw-tc-offload is off and the driver %q cannot turn it on: use a card or a driver that offloads tc rules", nodestate.Switchdev, pf.Driver)
	case pf.TCOffload == nodestate.Off && (i.ExternallyManaged || p.accepts(u)):
		p.unmet(u, "eSwitchMode is %q, but hw-tc-offload is off: run ethtool -K %s hw-tc-offload on", nodestate.Switchdev, pf.Netdev)
	case pf.TCOffload == nodestate.Off:
		p.do(SetTCOffload{PF: pf.Address})
	}
	if pf.isSteeredWrong() {
		p.unmet(Unmet{PF: pf.Address, Kind: UnmetSteering},
			"eSwitchMode is %q, but the flow steering mode is %s, want %s: run devlink dev param set pci/%s name flow_steering_mode value %[3]s cmode runtime in legacy mode",
			nodestate.Switchdev, pf.FlowSteering, SMFS, pf.Address)
	}
}

// checkAssigned checks a VF that was assigned to this virtual machine. It
// reports whether the interface is one.
func (p *planner) checkAssigned(i nodestate.Interface, s State) bool {
	n := slices.IndexFunc(s.Others, func(f Function) bool { return f.Address == i.PCIAddress })
	g, grouped := i.Group(0)
	if n < 0 || !grouped {
		return false
	}
	driver := s.Others[n].Driver
	u := Unmet{PF: i.PCIAddress, Function: i.PCIAddress, Kind: UnmetDriver}
	switch vfio := g.Type() == nodestate.VFIO; {
	case slices.Contains(p.options.Held, i.PCIAddress):
	case vfio && driver != nodestate.VFIO:
		p.unmet(u, "a function without virtual functions, as in a virtual machine, has the driver %q, want %s: run driverctl set-override %s %[2]s", driver, nodestate.VFIO, i.PCIAddress)
	case !vfio && (driver == "" || isUserspace(driver)):
		p.unmet(u, "a function without virtual functions, as in a virtual machine, has the driver %q, want a network driver: run driverctl unset-override %s", driver, i.PCIAddress)
	}
	return true
}

// checkVF checks what a VF has when its steps are done.
func (f *functions) checkVF(g nodestate.VFGroup, v VF, right bool) {
	u := Unmet{PF: f.pf.Address, Function: v.Address}
	if f.pf.Link == InfiniBand && v.Known && v.GUIDs && f.staticGUID(v) == "" && (isUnset(v.NodeGUID) || isUnset(v.PortGUID)) {
		_, derivable := guidFor(f.pf, v)
		if !derivable || right && g.Type() == nodestate.VFIO {
			u.Kind = UnmetGUID
			f.unmet(u, "it has no GUID, so that it has no link: set one in the file of static GUIDs")
		}
	}
	if g.IsRDMA && right && len(v.RDMA) == 0 {
		u.Kind = UnmetRDMA
		f.unmet(u, "isRdma is set, but it has no RDMA device: load the RDMA module of its driver")
	}
}
