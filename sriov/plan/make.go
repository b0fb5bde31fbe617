package plan

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/cleatproject/cleat/sriov/nodestate"
)

// Make plans by the rules of the SR-IOV network operator:
//
//   - A PF that the desired state does not name is left alone, unless it is one of
//     Options.Managed: then its functions are removed.
//   - A PF that does not exist gives a note: it does not hold the others back.
//   - A PF with a problem that is known in advance gets no step; the others do.
//   - The number of functions changes by way of 0 only.
//   - The MTU of a PF is only raised. A PF comes up before its functions: the
//     drivers of some ask it for their address.
//   - A function without an administrative address gets that of its network
//     device, before it is bound to vfio-pci, so that it keeps it under every
//     driver. The one that the PF's table has is set again before a change of
//     driver. Without either it is derived from the PF's, the same each time; so
//     are InfiniBand GUIDs without a static pool.
//   - Functions of externally managed PFs are never created or removed, and the PF
//     keeps its mode and MTU; what does not fit is a problem.
//   - Of a function in a pod, by Options.Held or by what it shows (a network driver
//     without a network device), only the driver is compared: the network of the
//     pod changes the rest.
//   - Functions without a group are left alone.
//
// A desired state that Spec.Check refuses gives problems and no steps.
func Make(spec nodestate.Spec, s State, o Options) Plan {
	p := &planner{options: o}
	if err := spec.Check(); err != nil {
		problems := []error{err}
		if joined, ok := err.(interface{ Unwrap() []error }); ok {
			problems = joined.Unwrap()
		}
		for _, err := range problems {
			p.problem("", "%s", err.Error())
		}
		return p.plan
	}
	p.system(spec, s)
	named := map[string]bool{}
	for _, i := range spec.Interfaces {
		named[i.PCIAddress] = true
		if n := slices.IndexFunc(s.PFs, func(pf PF) bool { return pf.Address == i.PCIAddress }); n < 0 {
			p.note(i.PCIAddress, "%s", missing(i, s))
		} else {
			p.pf(i, s.PFs[n])
		}
	}
	for _, pf := range s.PFs {
		// The MTU stays: the one before is not known.
		if !named[pf.Address] && slices.Contains(o.Managed, pf.Address) && (pf.NumVFs > 0 || pf.mode() != nodestate.Legacy) {
			p.rebuild(nodestate.Interface{PCIAddress: pf.Address}, pf)
		}
	}
	return p.plan
}

// planner collects a plan.
type planner struct {
	plan    Plan
	options Options
}

func (p *planner) problem(pf, format string, args ...any) {
	p.plan.Problems = append(p.plan.Problems, Finding{PF: pf, Text: fmt.Sprintf(format, args...)})
}

func (p *planner) note(pf, format string, args ...any) {
	p.plan.Notes = append(p.plan.Notes, Finding{PF: pf, Text: fmt.Sprintf(format, args...)})
}

func (p *planner) do(steps ...Step) { p.plan.Steps = append(p.plan.Steps, steps...) }

// touch notes that steps disturb a function; it is called once for each.
func (p *planner) touch(address string) { p.plan.Touches = append(p.plan.Touches, address) }

// missing says that a PF does not exist, and which one may be meant.
func missing(i nodestate.Interface, s State) string {
	for _, pf := range s.PFs {
		if i.Name != "" && pf.hasName(i.Name) {
			return fmt.Sprintf("there is no such function; %s is at %s", i.Name, pf.Address)
		}
		if n := slices.IndexFunc(pf.VFs, func(v VF) bool { return v.Address == i.PCIAddress }); n >= 0 {
			return fmt.Sprintf("this is a virtual function (VF %d of %s), want the address of a physical one", pf.VFs[n].Index, pf.Address)
		}
	}
	var there []string
	for _, pf := range s.PFs[:min(len(s.PFs), 8)] {
		there = append(there, strings.TrimSpace(pf.Address+" "+pf.Netdev))
	}
	if len(there) == 0 {
		return "there is no such function; the node has no network function that can have virtual ones"
	}
	return "there is no network function here that can have virtual ones; they are at " + strings.Join(there, ", ")
}

// system compares what holds for the whole node.
func (p *planner) system(spec nodestate.Spec, s State) {
	switch want := spec.System.RDMAMode; {
	case want == "" || want == s.RDMAMode:
	case s.RDMAMode == "":
		p.note("", "the desired RDMA mode is %q; the kernel does not report its mode", want)
	default:
		p.problem("", "the RDMA subsystem is in mode %q, want %q: it is not changed here, since that takes an idle node; set the option netns_mode=%d of the module ib_core and restart the node",
			s.RDMAMode, want, map[string]int{nodestate.Shared: 1}[want])
	}
}

func (pf PF) hasName(name string) bool { return pf.Netdev == name || slices.Contains(pf.Names, name) }

// mode is that of the embedded switch.
func (pf PF) mode() string { return cmp.Or(pf.ESwitch, nodestate.Legacy) }

// modeFirst reports whether the driver wants the switch's mode before the
// functions. The others are like mlx5_core, which wants the functions first.
func (pf PF) modeFirst() bool { return pf.Driver == "ice" }

// pf plans a PF that the desired state names.
func (p *planner) pf(i nodestate.Interface, pf PF) {
	if i.Name != "" && !pf.hasName(i.Name) {
		p.note(pf.Address, "its network device is %q, the desired state says %q: the address counts", pf.Netdev, i.Name)
	}
	before := len(p.plan.Problems)
	p.checkPF(i, pf)
	if i.ExternallyManaged {
		p.checkExternal(i, pf)
	} else if len(pf.VFs) != pf.NumVFs && pf.NumVFs == i.NumVFs {
		p.problem(pf.Address, "it has %d virtual functions but shows %d: they come or go at this moment; read again", pf.NumVFs, len(pf.VFs))
	}
	if len(p.plan.Problems) > before {
		return
	}
	if pf.Netdev != "" && i.MTU > pf.MTU {
		p.do(SetMTU{Address: pf.Address, MTU: i.MTU})
	}
	if pf.Netdev != "" && !pf.Up {
		p.do(SetUp{Address: pf.Address})
	}
	if !i.ExternallyManaged && (pf.NumVFs != i.NumVFs || pf.mode() != i.Mode()) {
		p.rebuild(i, pf)
	} else {
		p.functions(i, pf)
	}
}

// checkPF finds what no step can solve.
func (p *planner) checkPF(i nodestate.Interface, pf PF) {
	if i.NumVFs > pf.TotalVFs {
		p.problem(pf.Address, "numVfs is %d, but it can have at most %d virtual functions", i.NumVFs, pf.TotalVFs)
	}
	link := cmp.Or(map[string]string{Ether: nodestate.Ethernet, InfiniBand: nodestate.InfiniBand}[pf.Link], pf.Link)
	if want := strings.ToLower(i.LinkType); want != "" && link != "" && want != link {
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
	case pf.Link != Ether && i.Mode() == nodestate.Switchdev:
		p.problem(pf.Address, "eSwitchMode %q is for Ethernet only, its link is %q", nodestate.Switchdev, pf.Link)
	}
}

// checkExternal compares a PF that is managed externally.
func (p *planner) checkExternal(i nodestate.Interface, pf PF) {
	if i.NumVFs > pf.NumVFs {
		p.problem(pf.Address, "it is managed externally and has %d virtual functions, want at least %d: whoever manages it must make them", pf.NumVFs, i.NumVFs)
	} else if len(pf.VFs) < pf.NumVFs {
		p.problem(pf.Address, "it has %d virtual functions but shows %d: they come or go at this moment; read again", pf.NumVFs, len(pf.VFs))
	}
	if pf.mode() != i.Mode() {
		p.problem(pf.Address, "it is managed externally and its embedded switch is in mode %q, want %q: whoever manages it must change that, or the node state", pf.mode(), i.Mode())
	}
	if i.MTU > pf.MTU {
		p.problem(pf.Address, "it is managed externally and its MTU is %d, want at least %d: whoever manages it must raise it", pf.MTU, i.MTU)
	}
}

// rebuild changes the number of functions or the mode of the switch.
func (p *planner) rebuild(i nodestate.Interface, pf PF) {
	renumber, switches := pf.NumVFs != i.NumVFs, pf.mode() != i.Mode()
	if switches && pf.ESwitch == "" && (!renumber || pf.modeFirst()) {
		p.problem(pf.Address, "its driver %q reports no mode of an embedded switch, want %q: the driver or the kernel may be too old", pf.Driver, i.Mode())
		return
	}
	for _, v := range pf.VFs {
		p.touch(v.Address)
	}
	// Then the functions are to be configured, or the mode comes last, or it has
	// taken the PF down.
	p.plan.More = p.plan.More || i.NumVFs > 0 || switches || i.Mode() != nodestate.Legacy
	switch {
	case pf.modeFirst():
		p.remove(pf)
		if switches {
			p.do(SetESwitch{PF: pf.Address, Mode: i.Mode()})
		}
		p.create(i)
	case renumber:
		if pf.mode() != nodestate.Legacy { // some drivers create no functions in the other mode
			p.unbind(pf)
			p.do(SetESwitch{PF: pf.Address, Mode: nodestate.Legacy})
		}
		p.remove(pf)
		p.create(i)
	default: // with the functions, which must have no driver
		p.unbind(pf)
		p.do(SetESwitch{PF: pf.Address, Mode: i.Mode()})
		for _, v := range pf.VFs {
			if _, grouped := i.Group(v.Index); grouped || v.Driver == "" {
				continue // the next plan binds those in a group
			}
			driver := ""
			if isUserspace(v.Driver) {
				driver = v.Driver
			}
			p.do(Bind{Address: v.Address, Driver: driver})
		}
	}
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
		p.do(SetNumVFs{PF: pf.Address})
	}
}

func (p *planner) create(i nodestate.Interface) {
	if i.NumVFs > 0 {
		p.do(SetNumVFs{PF: i.PCIAddress, Number: i.NumVFs})
	}
}

// functions plans the virtual functions that have a group.
func (p *planner) functions(i nodestate.Interface, pf PF) {
	f := &functions{planner: p, pf: pf}
	exists := map[int]bool{}
	for _, v := range pf.VFs {
		exists[v.Index] = true
		if g, ok := i.Group(v.Index); ok && v.Index < i.NumVFs {
			f.function(g, v)
		}
	}
	f.report()
	for index := range i.NumVFs {
		if _, ok := i.Group(index); ok && !exists[index] {
			p.problem(pf.Address, "VF %d is not there, though it has %d virtual functions; read again", index, pf.NumVFs)
		}
	}
}
