package plan

import (
	"slices"

	"github.com/cleatproject/cleat/sriov/nodestate"
)

// Follow compares a node with the state that the operator's daemon, and not
// cleat, configures. Problems are the differences that this daemon resolves, by
// the rules with which it decides whether a PF needs an update
// (NeedToUpdateSriov in api/v1/helper.go of sriov-network-operator). All else
// that Compute finds is a note, as the operator would leave it for ever:
// administrative addresses, GUIDs, link types, trust, a PF that is down, or
// settings that the operator does not know.
//
// Two of its rules never come to an end, and are not here: it finds a PF with a
// higher MTU than desired, but lowers none, and every externally managed PF,
// whose functions are compared as others.
func Follow(spec nodestate.Spec, s State, o Options) Plan {
	all := Compute(spec, s, o)
	f := &planner{plan: Plan{Notes: all.Notes}, options: o}
	if n := len(all.Steps); n > 0 {
		f.note("", "%d differences are left to the operator, the first: %s", n, all.Steps[0])
	}
	for _, found := range all.Problems {
		f.note(found.PF, "%s", found.Text)
	}
	for _, i := range spec.Interfaces {
		n := slices.IndexFunc(s.PFs, func(pf PF) bool { return pf.Address == i.PCIAddress })
		// The operator finds no PF without a network device.
		if n >= 0 && s.PFs[n].Netdev != "" {
			f.followPF(i, s.PFs[n])
		}
	}
	return f.plan
}

func (p *planner) followPF(i nodestate.Interface, pf PF) {
	if i.MTU > pf.MTU {
		p.problem(pf.Address, "the MTU is %d, want %d", pf.MTU, i.MTU)
	}
	if pf.mode() != i.Mode() {
		p.problem(pf.Address, "the embedded switch is in mode %q, want %q", pf.mode(), i.Mode())
	}
	if i.ExternallyManaged && pf.NumVFs < i.NumVFs || !i.ExternallyManaged && pf.NumVFs != i.NumVFs {
		p.problem(pf.Address, "%d virtual functions are configured, want %d", pf.NumVFs, i.NumVFs)
	}
	if i.NumVFs == 0 {
		return
	}
	for _, v := range pf.VFs {
		g, grouped := i.Group(v.Index)
		if !grouped {
			if isOperatorUserspace(v.Driver) || v.VDPA != "" {
				p.problem(pf.Address, "VF %d is in no group, and has the driver %q and the vDPA type %q", v.Index, v.Driver, v.VDPA)
			}
			continue
		}
		p.followVF(g, pf, v)
	}
}

func (p *planner) followVF(g nodestate.VFGroup, pf PF, v VF) {
	switch netdevice := g.Type() == nodestate.NetDevice; {
	case v.Driver == "", !netdevice && v.Driver != g.Type(), netdevice && isOperatorUserspace(v.Driver):
		p.problem(pf.Address, "VF %d has the driver %q, want that of a %s", v.Index, v.Driver, g.Type())
	case netdevice && g.MTU != 0 && v.MTU != 0 && v.MTU != g.MTU && !slices.Contains(p.options.Held, v.Address):
		p.problem(pf.Address, "VF %d has the MTU %d, want %d", v.Index, v.MTU, g.MTU)
	}
	if g.VDPAType != v.VDPA {
		p.problem(pf.Address, "VF %d has the vDPA type %q, want %q", v.Index, v.VDPA, g.VDPAType)
	}
}

// isOperatorUserspace has only the operator's list: it leaves other drivers.
func isOperatorUserspace(driver string) bool {
	return driver == nodestate.VFIO || driver == "igb_uio" || driver == "uio_pci_generic"
}
