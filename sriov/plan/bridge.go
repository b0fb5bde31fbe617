package plan

import (
	"encoding/json"
	"maps"
	"slices"

	"github.com/cleatproject/cleat/sriov/nodestate"
)

// bridges plans the Open vSwitch bridges with their uplinks: missing ones are
// created, and those that this daemon created are deleted if the desired state has
// no such bridge, or another configuration of it. All others are checked.
func (p *planner) bridges(spec nodestate.Spec, s State, invalid map[string]bool) {
	desired := map[string]string{} // configuration by name
	for _, b := range spec.Bridges.OVS {
		desired[b.Name] = bridgeConfig(b)
		if s.BridgesUnknown != "" {
			p.note("", "the Open vSwitch bridge %q is not checked: %s", b.Name, s.BridgesUnknown)
			continue
		}
		for _, uplink := range b.Uplinks {
			n := slices.IndexFunc(s.PFs, func(pf PF) bool { return pf.Address == uplink.PCIAddress })
			if n >= 0 && p.options.Unreadable[uplink.PCIAddress] == "" { // otherwise it has no functions here, or they are closed already
				p.uplink(b, s.PFs[n], s, invalid[uplink.PCIAddress])
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(s.Bridges)) {
		b := s.Bridges[name]
		n := slices.IndexFunc(s.PFs, func(pf PF) bool { return pf.Address == b.PF })
		if b.Config == "" || b.Config == desired[name] || n < 0 || !p.canChangeBridge(s.PFs[n], invalid[b.PF]) {
			continue
		}
		p.do(DeleteBridge{PF: b.PF, Name: name})
		p.plan.More = true
		for _, v := range s.PFs[n].VFs { // their representors can be in the bridge
			if !slices.Contains(p.plan.Touches, v.Address) {
				p.touch(v.Address)
			}
		}
	}
}

func (p *planner) uplink(b nodestate.Bridge, pf PF, s State, invalid bool) {
	u := Unmet{PF: pf.Address, Kind: UnmetBridge}
	has, exists := s.Bridges[b.Name]
	wrong, isMember := "", false
	for name, why := range has.Interfaces {
		if pf.hasName(name) {
			wrong, isMember = why, true
		}
	}
	switch {
	case has.Config != "" && has.Config != bridgeConfig(b) && p.canChangeBridge(pf, invalid):
		// It is deleted first.
	case !exists && len(b.Uplinks) == 1 && p.canChangeBridge(pf, invalid):
		p.do(CreateBridge{PF: pf.Address, Name: b.Name, Config: bridgeConfig(b)})
	case !exists:
		p.unmet(u, "Open vSwitch has no bridge %q: run ovs-vsctl add-br %[1]s and ovs-vsctl add-port %[1]s %s", b.Name, pf.Netdev)
	case !isMember:
		p.unmet(u, "the Open vSwitch bridge %q does not have the physical function: run ovs-vsctl add-port %[1]s %s", b.Name, pf.Netdev)
	case wrong != "":
		p.unmet(u, "the Open vSwitch bridge %q does not work with the physical function: %s", b.Name, wrong)
	}
}

// canChangeBridge: other steps of the PF come first, which can create its network
// device again.
func (p *planner) canChangeBridge(pf PF, invalid bool) bool {
	return !invalid && pf.Netdev != "" && p.options.Unreadable[pf.Address] == "" && !p.accepts(Unmet{PF: pf.Address, Kind: UnmetBridge}) &&
		!slices.ContainsFunc(p.plan.Problems, func(f Finding) bool { return f.PF == pf.Address && f.Function == "" }) &&
		!slices.ContainsFunc(p.plan.Steps, func(s Step) bool { return s.Function() == pf.Address && Rebuilds(s) })
}

// bridgeConfig is the same for the same configuration: JSON sorts the keys of maps.
func bridgeConfig(b nodestate.Bridge) string {
	text, err := json.Marshal(b)
	if err != nil { // only of specs that were not decoded
		return ""
	}
	return string(text)
}
