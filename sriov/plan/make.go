package plan

import (
	"fmt"
	"slices"
	"strings"

	"github.com/cleatproject/cleat/sriov/nodestate"
)

// Make plans by the rules of the SR-IOV network operator:
//
//   - A PF that the wish does not name is left alone, unless Options say that
//     its functions were made by plans before: then they go.
//   - A PF that is not there gives a note: it keeps the others from nothing.
//   - A PF with a problem that can be told in advance gets no step at all; the
//     others do.
//   - The number of functions never changes from one to another but through 0.
//   - The MTU of a PF is only raised. A PF comes up before its functions: the
//     drivers of some ask it for their address.
//   - A function that has no administrative address gets the one that its
//     network device has, so that it keeps it under every driver; it gets it
//     before it goes to vfio-pci. One that the PF's table has is set again before
//     a change of driver. Where no device tells one, it is made from
//     the PF's, the same each time. InfiniBand GUIDs are made so where Options
//     have no static ones.
//   - Functions of PFs that others manage are never made nor removed, and the
//     PF keeps its mode and MTU; what does not fit is a problem.
//   - A function that is in a pod, by what the node shows (a network driver but
//     no network device) or by Options, is judged by its driver only: what else
//     can be read of it is the doing of the pod's network.
//   - Functions that no group names are left alone.
//
// It does nothing by halves: a wish that Spec.Check refuses gives problems and
// no steps.
func Make(spec nodestate.Spec, s State, o Options) Plan {
	if err := spec.Check(); err != nil {
		return Plan{Problems: refused(err)}
	}
	p := &planner{guids: o.GUIDs, held: map[string]bool{}, fresh: map[string]bool{}}
	for _, address := range o.Fresh {
		p.fresh[address] = true
	}
	for _, address := range o.Held {
		p.held[address] = true
	}
	p.system(spec, s)
	named := map[string]bool{}
	for _, i := range spec.Interfaces {
		named[i.PCIAddress] = true
		n := slices.IndexFunc(s.PFs, func(pf PF) bool { return pf.Address == i.PCIAddress })
		if n < 0 {
			p.note(i.PCIAddress, "%s", missing(i, s))
			continue
		}
		p.wanted(i, s.PFs[n])
	}
	for _, pf := range s.PFs {
		if !named[pf.Address] && slices.Contains(o.Managed, pf.Address) {
			p.release(pf)
		}
	}
	return p.plan
}

// planner collects a plan.
type planner struct {
	plan  Plan
	guids []GUIDPool
	held  map[string]bool
	fresh map[string]bool // by address of the PF
}

func (p *planner) problem(pf, format string, args ...any) {
	p.plan.Problems = append(p.plan.Problems, Problem{PF: pf, Reason: fmt.Sprintf(format, args...)})
}

func (p *planner) note(pf, format string, args ...any) {
	p.plan.Notes = append(p.plan.Notes, Note{PF: pf, Text: fmt.Sprintf(format, args...)})
}

// do adds steps that disturb no function.
func (p *planner) do(steps ...Step) { p.plan.Steps = append(p.plan.Steps, steps...) }

// touch says that steps disturb a function; it is told of each once.
func (p *planner) touch(address string) {
	p.plan.Touches = append(p.plan.Touches, address)
}

// refused are the problems of a wish that makes no sense.
func refused(err error) []Problem {
	all := []error{err}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		all = joined.Unwrap()
	}
	var problems []Problem
	for _, err := range all {
		problems = append(problems, Problem{Reason: err.Error()})
	}
	return problems
}

// missing says that a PF is not there, and where it may be.
func missing(i nodestate.Interface, s State) string {
	for _, pf := range s.PFs {
		if i.Name != "" && hasName(pf, i.Name) {
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

func hasName(pf PF, name string) bool { return pf.Netdev == name || slices.Contains(pf.Names, name) }

// system looks at what is wanted of the whole node.
func (p *planner) system(spec nodestate.Spec, s State) {
	switch want := spec.System.RDMAMode; {
	case want == "" || want == s.RDMAMode:
	case s.RDMAMode == "":
		p.note("", "the wish says RDMA mode %q; the kernel does not tell its mode", want)
	default:
		p.problem("", "the RDMA subsystem is in mode %q, want %q: it is not changed here, since that takes an idle node; set the option netns_mode=%d of the module ib_core and restart the node",
			s.RDMAMode, want, map[string]int{nodestate.Shared: 1}[want])
	}
}
