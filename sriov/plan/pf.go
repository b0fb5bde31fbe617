package plan

import (
	"strings"

	"github.com/cleatproject/cleat/sriov/nodestate"
)

// mode is that of the embedded switch.
func (pf PF) mode() string {
	if pf.ESwitch == "" {
		return Legacy
	}
	return pf.ESwitch
}

// modeFirst reports whether the driver wants the switch's mode before the
// functions; all others are like mlx5_core, which wants the functions first.
func (pf PF) modeFirst() bool { return pf.Driver == "ice" }

// wanted plans a PF that the wish names.
func (p *planner) wanted(i nodestate.Interface, pf PF) {
	if i.Name != "" && !hasName(pf, i.Name) {
		p.note(pf.Address, "its network device is %q, the wish says %q: the address counts", pf.Netdev, i.Name)
	}
	before := len(p.plan.Problems)
	p.possible(i, pf)
	if i.ExternallyManaged {
		p.external(i, pf)
	} else if len(pf.VFs) != pf.NumVFs && pf.NumVFs == i.NumVFs {
		p.problem(pf.Address, "it has %d virtual functions but shows %d: they come or go at this moment; read again", pf.NumVFs, len(pf.VFs))
	}
	if len(p.plan.Problems) > before {
		return
	}
	if pf.Netdev != "" {
		if i.MTU > pf.MTU {
			p.do(SetMTU{Address: pf.Address, MTU: i.MTU})
		}
		if !pf.Up {
			p.do(SetUp{Address: pf.Address})
		}
	}
	if !i.ExternallyManaged && (pf.NumVFs != i.NumVFs || pf.mode() != i.Mode()) {
		p.rebuild(i, pf)
		return
	}
	p.functions(i, pf)
}

// possible finds what no step can solve.
func (p *planner) possible(i nodestate.Interface, pf PF) {
	if i.NumVFs > pf.TotalVFs {
		p.problem(pf.Address, "numVfs is %d, but it can have at most %d virtual functions", i.NumVFs, pf.TotalVFs)
	}
	if want := strings.ToLower(i.LinkType); want != "" && pf.Link != "" && want != linkType(pf.Link) {
		p.problem(pf.Address, "its link is %q, want linkType %q: the firmware of the adapter decides that, it is not changed here", pf.Link, want)
	}
	if i.NumVFs == 0 {
		return
	}
	if pool := p.static(pf); pool != nil && pf.Link == InfiniBand && pool.count() < i.NumVFs {
		p.problem(pf.Address, "the file of static GUIDs has %d GUIDs for it, numVfs is %d", pool.count(), i.NumVFs)
	}
	switch {
	case pf.Driver == "":
		p.problem(pf.Address, "it has no driver, which alone makes virtual functions: bind one")
	case pf.Netdev == "":
		p.problem(pf.Address, "it has no network device here (driver %q), which is needed for its functions; it may be in another network namespace", pf.Driver)
	case pf.Link != Ether && i.Mode() == Switchdev:
		p.problem(pf.Address, "eSwitchMode %q is for Ethernet only, its link is %q", Switchdev, pf.Link)
	}
}

// linkType is what a wish calls a link.
func linkType(link string) string {
	switch link {
	case Ether:
		return nodestate.Ethernet
	case InfiniBand:
		return nodestate.InfiniBand
	}
	return link
}

// external checks a PF whose functions others make.
func (p *planner) external(i nodestate.Interface, pf PF) {
	if i.NumVFs > pf.NumVFs {
		p.problem(pf.Address, "it is managed externally and has %d virtual functions, want at least %d: whoever manages it must make them", pf.NumVFs, i.NumVFs)
	} else if len(pf.VFs) < pf.NumVFs {
		p.problem(pf.Address, "it has %d virtual functions but shows %d: they come or go at this moment; read again", pf.NumVFs, len(pf.VFs))
	}
	if pf.mode() != i.Mode() {
		p.problem(pf.Address, "it is managed externally and its embedded switch is in mode %q, want %q: whoever manages it must change that, or the wish", pf.mode(), i.Mode())
	}
	if i.MTU > pf.MTU {
		p.problem(pf.Address, "it is managed externally and its MTU is %d, want at least %d: whoever manages it must raise it", pf.MTU, i.MTU)
	}
}

// rebuild changes the number of functions, or the mode of the switch. What the
// functions will be is known only afterwards.
func (p *planner) rebuild(i nodestate.Interface, pf PF) {
	renumber, switches := pf.NumVFs != i.NumVFs, pf.mode() != i.Mode()
	if switches && pf.ESwitch == "" && (!renumber || pf.modeFirst()) {
		p.problem(pf.Address, "its driver %q tells no mode of an embedded switch, want %q: the driver or the kernel may be too old", pf.Driver, i.Mode())
		return
	}
	for _, v := range pf.VFs {
		p.touch(v.Address)
	}
	// The functions are to be judged, or the mode comes last, or the PF may be
	// down again after it.
	if i.NumVFs > 0 || switches || i.Mode() != Legacy {
		p.plan.More = true
	}
	if pf.modeFirst() {
		p.remove(pf)
		if switches {
			p.do(SetESwitch{PF: pf.Address, Mode: i.Mode()})
		}
		p.create(i, pf)
		return
	}
	if !renumber {
		p.switchMode(i, pf)
		return
	}
	// Some drivers make no functions in the other mode.
	if pf.mode() != Legacy {
		p.unbind(pf)
		p.do(SetESwitch{PF: pf.Address, Mode: Legacy})
	}
	p.remove(pf)
	p.create(i, pf)
}

// switchMode changes the mode over the heads of the functions, which may have
// no driver meanwhile.
func (p *planner) switchMode(i nodestate.Interface, pf PF) {
	p.unbind(pf)
	p.do(SetESwitch{PF: pf.Address, Mode: i.Mode()})
	for _, v := range pf.VFs {
		// Those in a group are bound when they are judged, which is soon.
		if _, grouped := i.Group(v.Index); !grouped && v.Driver != "" {
			p.do(Bind{Address: v.Address, Driver: keptDriver(v)})
		}
	}
}

// keptDriver is what gives a function the driver back that it has.
func keptDriver(v VF) string {
	if userspace(v.Driver) {
		return v.Driver
	}
	return ""
}

func (p *planner) unbind(pf PF) {
	for _, v := range pf.VFs {
		if v.Driver != "" {
			p.do(Unbind{Address: v.Address})
		}
	}
}

func (p *planner) remove(pf PF) {
	if pf.NumVFs > 0 {
		p.do(SetNumVFs{PF: pf.Address, Number: 0})
	}
}

func (p *planner) create(i nodestate.Interface, pf PF) {
	if i.NumVFs > 0 {
		p.do(SetNumVFs{PF: pf.Address, Number: i.NumVFs})
	}
}

// release takes its functions from a PF that the wish does not name any more.
// Its MTU stays: nobody knows what it was.
func (p *planner) release(pf PF) {
	if pf.NumVFs == 0 && pf.mode() == Legacy {
		return
	}
	p.rebuild(nodestate.Interface{PCIAddress: pf.Address}, pf)
}

// functions plans the virtual functions that groups name.
func (p *planner) functions(i nodestate.Interface, pf PF) {
	groups := make([]*nodestate.VFGroup, i.NumVFs)
	for n, g := range i.VFGroups {
		if r, err := nodestate.ParseRange(g.VFRange); err == nil {
			for index := r.First; index <= min(r.Last, len(groups)-1); index++ {
				groups[index] = &i.VFGroups[n]
			}
		}
	}
	f := &functions{planner: p, pf: pf}
	for _, v := range pf.VFs {
		if v.Index < len(groups) && groups[v.Index] != nil {
			f.function(*groups[v.Index], v)
			groups[v.Index] = nil
		}
	}
	f.report()
	for index, g := range groups {
		if g != nil {
			p.problem(pf.Address, "VF %d is not there, though it has %d virtual functions; read again", index, pf.NumVFs)
		}
	}
}
