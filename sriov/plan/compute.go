package plan

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/cleatproject/cleat/sriov/nodestate"
)

// Compute computes a plan by the rules of the SR-IOV network operator:
//
//   - A PF that the desired state does not name is left alone, unless it is in
//     Options.Managed: then its functions are removed.
//   - A PF that does not exist gives a note and does not block the others.
//   - A PF with a problem gets no steps; the others do. So does a PF or VF that
//     could not be read.
//   - The number of functions is always changed by way of 0.
//   - The MTU of a PF is only raised. A PF is brought up before its functions:
//     some VF drivers request their address from it.
//   - A function without an administrative address gets that of its network
//     device before it is bound to vfio-pci, so that it keeps it under every
//     driver. An address in the PF's table is set again before a change of
//     driver. Without either it is derived from the PF's, always the same; so
//     are InfiniBand GUIDs without a static pool.
//   - Functions of externally managed PFs are never created or removed, and the
//     PF keeps its mode and MTU; differences are problems.
//   - Of a function in a pod (by Options.Held, or by a network driver without a
//     network device), only the driver is compared: the network of the pod
//     changes the rest.
//   - What the network of an ended pod left on a function (Options.Baselines) is
//     reset. An address that another function or the PF has, too, is replaced.
//   - The flow steering mode smfs of a Mellanox PF is set before the mode
//     switchdev: the driver refuses it afterwards.
//   - hw-tc-offload of a PF in switchdev mode is turned on last.
//   - A missing Open vSwitch bridge with one uplink is created. Of those that exist,
//     only what this daemon created is deleted: nothing of others is changed.
//   - What the desired state asks for and no step provides (Plan.Unmet) is a
//     problem, unless accepted.
//   - Functions without a group are left alone.
//
// A mistake in the desired state of a PF (Spec.Mistakes) is a problem of this PF;
// one of the whole spec gives problems and no steps.
func Compute(spec nodestate.Spec, s State, o Options) Plan {
	p := &planner{options: o}
	invalid := map[string]bool{}
	for _, m := range spec.Mistakes() {
		invalid[m.PF] = true
		p.problem(m.PF, "%s", m.Problem.Error())
	}
	if invalid[""] {
		return p.plan
	}
	p.system(spec, s)
	named := map[string]bool{}
	for _, pf := range o.unreadablePFs(s) {
		invalid[pf] = true
		p.problem(pf, "%s", o.Unreadable[pf])
	}
	for _, i := range spec.Interfaces {
		named[i.PCIAddress] = true
		if invalid[i.PCIAddress] {
			continue
		}
		if n := slices.IndexFunc(s.PFs, func(pf PF) bool { return pf.Address == i.PCIAddress }); n < 0 {
			if !p.checkAssigned(i, s) {
				p.note(i.PCIAddress, "%s", missing(i, s))
			}
		} else {
			p.pf(i, s.PFs[n])
		}
	}
	for _, pf := range s.PFs {
		// The original MTU is not known.
		if !named[pf.Address] && !invalid[pf.Address] && slices.Contains(o.Managed, pf.Address) && (pf.NumVFs > 0 || pf.mode() != nodestate.Legacy) {
			p.rebuild(nodestate.Interface{PCIAddress: pf.Address}, pf)
		}
	}
	p.bridges(spec, s, invalid)
	return p.plan
}

// unreadablePFs returns the addresses of Unreadable that are not those of read VFs.
func (o Options) unreadablePFs(s State) []string {
	owners := s.Owners()
	return slices.DeleteFunc(slices.Sorted(maps.Keys(o.Unreadable)), func(of string) bool {
		pf, known := owners[of]
		return known && pf != of
	})
}

type planner struct {
	plan    Plan
	options Options
}

func (p *planner) problem(pf, format string, args ...any) {
	p.plan.Problems = append(p.plan.Problems, Finding{PF: pf, Text: fmt.Sprintf(format, args...)})
}

func (f *functions) problemOf(v VF, format string, args ...any) {
	f.plan.Problems = append(f.plan.Problems, Finding{PF: f.pf.Address, Function: v.Address, Text: fmt.Sprintf(format, args...)})
}

func (p *planner) note(pf, format string, args ...any) {
	p.plan.Notes = append(p.plan.Notes, Finding{PF: pf, Text: fmt.Sprintf(format, args...)})
}

func (p *planner) do(steps ...Step) { p.plan.Steps = append(p.plan.Steps, steps...) }

// touch is called once per function.
func (p *planner) touch(address string) { p.plan.Touches = append(p.plan.Touches, address) }

// missing also suggests the intended PF.
func missing(i nodestate.Interface, s State) string {
	for _, pf := range s.PFs {
		if i.Name != "" && pf.hasName(i.Name) {
			return fmt.Sprintf("physical function not found; %s is at %s", i.Name, pf.Address)
		}
		if n := slices.IndexFunc(pf.VFs, func(v VF) bool { return v.Address == i.PCIAddress }); n >= 0 {
			return fmt.Sprintf("this is the address of a virtual function (VF %d of %s); use that of a physical function", pf.VFs[n].Index, pf.Address)
		}
	}
	var there []string
	for _, pf := range s.PFs[:min(len(s.PFs), 8)] {
		there = append(there, strings.TrimSpace(pf.Address+" "+pf.Netdev))
	}
	if len(there) == 0 {
		return "physical function not found; the node has no network function with SR-IOV support"
	}
	return "no network function with SR-IOV support at this address; the node has " + strings.Join(there, ", ")
}

func (p *planner) system(spec nodestate.Spec, s State) {
	switch want := spec.System.RDMAMode; {
	case want == "" || want == s.RDMAMode:
	case s.RDMAMode == "":
		p.note("", "the desired RDMA mode is %q, but the kernel does not report the current mode", want)
	default:
		p.problem("", "the RDMA subsystem is in mode %q, want %q; it can be changed on an idle node only: set netns_mode=%d for the module ib_core and reboot",
			s.RDMAMode, want, map[string]int{nodestate.Shared: 1}[want])
	}
}

func (pf PF) hasName(name string) bool { return pf.Netdev == name || slices.Contains(pf.Names, name) }

func (pf PF) mode() string { return cmp.Or(pf.ESwitch, nodestate.Legacy) }

// needsModeFirst: the driver requires the switch mode before functions exist.
// Others, such as mlx5_core, require the functions first.
func (pf PF) needsModeFirst() bool { return pf.Driver == "ice" }

func (p *planner) pf(i nodestate.Interface, pf PF) {
	if i.Name != "" && !pf.hasName(i.Name) {
		p.note(pf.Address, "the network device is %q, but the desired state names %q; the PCI address is used", pf.Netdev, i.Name)
	}
	before := len(p.plan.Problems)
	p.checkPF(i, pf)
	if i.ExternallyManaged {
		p.checkExternal(i, pf)
	} else if len(pf.VFs) != pf.NumVFs && pf.NumVFs == i.NumVFs {
		p.problem(pf.Address, "%d virtual functions are configured but %d exist: the number is changing, will observe again", pf.NumVFs, len(pf.VFs))
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
	if !i.ExternallyManaged && (pf.NumVFs != i.NumVFs || pf.mode() != i.Mode() || p.needsSteering(i, pf)) {
		p.rebuild(i, pf)
	} else {
		p.functions(i, pf)
		p.configureSwitch(i, pf)
	}
}

// checkPF finds problems that no step resolves.
func (p *planner) checkPF(i nodestate.Interface, pf PF) {
	if i.NumVFs > pf.TotalVFs {
		p.problem(pf.Address, "numVfs is %d, but the function supports at most %d virtual functions", i.NumVFs, pf.TotalVFs)
	}
	link := cmp.Or(map[string]string{Ether: nodestate.Ethernet, InfiniBand: nodestate.InfiniBand}[pf.Link], pf.Link)
	if want := strings.ToLower(i.LinkType); want != "" && link != "" && want != link {
		p.problem(pf.Address, "the link type is %q, want linkType %q; the adapter's firmware configuration determines it", pf.Link, want)
	}
	if i.NumVFs == 0 {
		return
	}
	if pool := p.guidPool(pf); pool != nil && pf.Link == InfiniBand && pool.count() < i.NumVFs {
		p.problem(pf.Address, "the static GUID file has %d GUIDs for this function, but numVfs is %d", pool.count(), i.NumVFs)
	}
	switch {
	case pf.Driver == "":
		p.problem(pf.Address, "no driver is bound, so virtual functions cannot be created; bind the function to its network driver")
	case pf.Netdev == "":
		p.problem(pf.Address, "the network device of this function (driver %q) is not in the host's network namespace, and is needed to configure virtual functions", pf.Driver)
	case pf.Link != Ether && i.Mode() == nodestate.Switchdev:
		p.problem(pf.Address, "eSwitchMode %q requires Ethernet, but the link type is %q", nodestate.Switchdev, pf.Link)
	}
}

func (p *planner) checkExternal(i nodestate.Interface, pf PF) {
	if i.NumVFs > pf.NumVFs {
		p.problem(pf.Address, "externally managed, with %d virtual functions, want at least %d; its owner must create them", pf.NumVFs, i.NumVFs)
	} else if len(pf.VFs) < pf.NumVFs {
		p.problem(pf.Address, "%d virtual functions are configured but %d exist: the number is changing, will observe again", pf.NumVFs, len(pf.VFs))
	}
	if pf.mode() != i.Mode() {
		p.problem(pf.Address, "externally managed, with its embedded switch in mode %q, want %q; change the switch mode or eSwitchMode in the node state", pf.mode(), i.Mode())
	}
	if i.MTU > pf.MTU {
		p.problem(pf.Address, "externally managed, with MTU %d, want at least %d; its owner must raise it", pf.MTU, i.MTU)
	}
}

// rebuild changes the number of functions, the switch mode or the flow steering
// mode.
func (p *planner) rebuild(i nodestate.Interface, pf PF) {
	renumber, switches := pf.NumVFs != i.NumVFs, pf.mode() != i.Mode()
	if switches && pf.ESwitch == "" && (!renumber || pf.needsModeFirst()) {
		p.problem(pf.Address, "the driver %q reports no embedded switch mode, want %q; the driver or the kernel might be too old", pf.Driver, i.Mode())
		return
	}
	for _, v := range pf.VFs {
		p.touch(v.Address)
	}
	// Plan again: new functions need configuration, the mode might come last,
	// and setting it might have brought the PF down.
	p.plan.More = p.plan.More || i.NumVFs > 0 || switches || i.Mode() != nodestate.Legacy
	switch {
	case pf.needsModeFirst():
		p.remove(pf)
		if switches {
			p.do(SetESwitch{PF: pf.Address, Mode: i.Mode()})
		}
		p.create(i)
	case renumber:
		if pf.mode() != nodestate.Legacy { // some drivers create no functions in switchdev mode
			p.unbind(pf)
			p.do(SetESwitch{PF: pf.Address, Mode: nodestate.Legacy})
		}
		p.remove(pf)
		p.create(i)
	default: // the mode is changed with unbound functions
		p.unbind(pf)
		if p.needsSteering(i, pf) {
			if !switches {
				p.do(SetESwitch{PF: pf.Address, Mode: nodestate.Legacy})
			}
			p.do(SetFlowSteering{PF: pf.Address, Mode: SMFS})
		}
		p.do(SetESwitch{PF: pf.Address, Mode: i.Mode()})
		for _, v := range pf.VFs {
			if _, grouped := i.Group(v.Index); grouped || v.Driver == "" {
				continue // bound by the next plan, if in a group
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

func (p *planner) functions(i nodestate.Interface, pf PF) {
	f := &functions{planner: p, pf: pf, macs: map[string]string{}, taken: map[string]bool{}}
	f.assignMACs(i)
	exists := map[int]bool{}
	for _, v := range pf.VFs {
		exists[v.Index] = true
		g, ok := i.Group(v.Index)
		switch why := p.options.Unreadable[v.Address]; {
		case !ok || v.Index >= i.NumVFs:
		case why != "":
			f.problemOf(v, "%s", why)
		default:
			f.planVF(g, v)
		}
	}
	f.addNotes()
	for index := range i.NumVFs {
		if _, ok := i.Group(index); ok && !exists[index] {
			p.problem(pf.Address, "VF %d does not exist, though %d virtual functions are configured; will observe again", index, pf.NumVFs)
		}
	}
}
