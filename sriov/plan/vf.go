package plan

import (
	"fmt"
	"slices"
	"strings"

	"github.com/cleatproject/cleat/sriov/nodestate"
)

// functions plans the virtual functions of one PF.
type functions struct {
	*planner
	pf PF

	// Indexes of those that are only told of.
	absent, tableless, noGUIDs, noRDMA []int
}

// userspace reports whether a driver hands functions to programs. Such a
// function has no network device; it is not in a pod because of that.
func userspace(driver string) bool {
	return strings.Contains(driver, "vfio") || driver == "igb_uio" || driver == "uio_pci_generic"
}

// function plans one, by its group. Its order is the operator's: first what
// the PF's table says, then the driver, then what only a driver makes.
func (f *functions) function(g nodestate.VFGroup, v VF) {
	vfio := g.Type() == nodestate.VFIO
	network := v.Driver != "" && !userspace(v.Driver)
	right := network
	if vfio {
		right = v.Driver == nodestate.VFIO
	}
	if right && f.inPod(v, network) {
		return
	}
	var steps []Step
	if v.VDPA != "" && v.VDPA != g.VDPAType {
		steps = append(steps, SetVDPA{Address: v.Address})
	}
	// What vfio-pci has already is left as it is: a guest may have it.
	if !vfio || !right {
		identity := f.identity(v)
		// RDMA devices take their GUID from the address when they are made.
		if len(identity) > 0 && !vfio && network && (f.pf.Link == InfiniBand || g.IsRDMA) {
			// Without a driver first: who is stopped half-way sees that the
			// driver has yet to come.
			steps = append(steps, Unbind{Address: v.Address})
			right = false
		}
		steps = append(steps, identity...)
		if len(identity) == 0 && (!right || f.fresh[f.pf.Address]) {
			steps = append(steps, f.keepMAC(v)...)
		}
	}
	steps = append(steps, f.switches(g, v)...)
	switch {
	case !right && vfio:
		steps = append(steps, Bind{Address: v.Address, Driver: nodestate.VFIO})
	case !right:
		steps = append(steps, Bind{Address: v.Address})
		f.plan.More = true // its network device, if it gets one, is judged then
	case !vfio && g.MTU != 0 && v.MTU != g.MTU:
		steps = append(steps, SetMTU{Address: v.Address, MTU: g.MTU})
	}
	if g.VDPAType != "" && v.VDPA != g.VDPAType {
		steps = append(steps, SetVDPA{Address: v.Address, Type: g.VDPAType})
	}
	if len(steps) > 0 {
		f.do(steps...)
		f.touch(v.Address)
		return
	}
	if g.IsRDMA && len(v.RDMA) == 0 {
		f.noRDMA = append(f.noRDMA, v.Index)
	}
}

// inPod reports whether a function is in a pod, whose network may change it.
func (f *functions) inPod(v VF, network bool) bool {
	if f.held[v.Address] {
		return true
	}
	if network && v.Netdev == "" {
		f.absent = append(f.absent, v.Index)
		return true
	}
	return false
}

// identity are the steps that give a function its address.
func (f *functions) identity(v VF) []Step {
	if !v.Known {
		f.tableless = append(f.tableless, v.Index)
		return nil
	}
	switch f.pf.Link {
	case Ether:
		if none(v.AdminMAC) {
			if mac, ok := macFor(f.pf, v); ok {
				return []Step{SetMAC{PF: f.pf.Address, VF: v.Index, Address: v.Address, MAC: mac}}
			}
		}
	case InfiniBand:
		if !v.GUIDs {
			f.noGUIDs = append(f.noGUIDs, v.Index)
			return nil
		}
		if pool := f.static(f.pf); pool != nil && v.Index < pool.count() {
			if want := pool.at(v.Index); !strings.EqualFold(v.NodeGUID, want) || !strings.EqualFold(v.PortGUID, want) {
				return []Step{SetGUID{PF: f.pf.Address, VF: v.Index, Address: v.Address, GUID: want}}
			}
			return nil
		}
		if none(v.NodeGUID) || none(v.PortGUID) {
			if guid, ok := guidFor(f.pf, v); ok {
				return []Step{SetGUID{PF: f.pf.Address, VF: v.Index, Address: v.Address, GUID: guid}}
			}
		}
	}
	return nil
}

// keepMAC sets the address that a table shows already, when a function is new or
// about to get another driver: with some PFs it is just what its driver has chosen
// by chance, and only what was set outlives that driver.
func (f *functions) keepMAC(v VF) []Step {
	if f.pf.Link != Ether || !v.Known || none(v.AdminMAC) {
		return nil
	}
	return []Step{SetMAC{PF: f.pf.Address, VF: v.Index, Address: v.Address, MAC: v.AdminMAC}}
}

// switches are the steps for trust and spoof check.
func (f *functions) switches(g nodestate.VFGroup, v VF) []Step {
	if g.Trust == "" && g.SpoofCheck == "" {
		return nil
	}
	if !v.Known {
		f.problem(f.pf.Address, "the table of functions of %s has no VF %d, so trust and spoofChk cannot be set; leave them out of its group", f.pf.Netdev, v.Index)
		return nil
	}
	var steps []Step
	if on := g.Trust == nodestate.On; g.Trust != "" && on != v.Trust {
		steps = append(steps, SetTrust{PF: f.pf.Address, VF: v.Index, Address: v.Address, On: on})
	}
	if on := g.SpoofCheck == nodestate.On; g.SpoofCheck != "" && on != v.SpoofCheck {
		steps = append(steps, SetSpoofCheck{PF: f.pf.Address, VF: v.Index, Address: v.Address, On: on})
	}
	return steps
}

// report says once what holds for many.
func (f *functions) report() {
	for _, r := range []struct {
		indexes []int
		text    string
	}{
		{f.absent, "a network driver but no network device here: a pod has it, or the driver made none; address and MTU are not judged"},
		{f.tableless, "not in the PF's table of functions: no address is set"},
		{f.noGUIDs, "the kernel does not tell the GUIDs: none is set"},
		{f.noRDMA, "no RDMA device, though the wish says isRdma: is the module for the RDMA of the driver loaded?"},
	} {
		if len(r.indexes) > 0 {
			f.note(f.pf.Address, "VF %s: %s", spans(r.indexes), r.text)
		}
	}
}

// spans writes indexes shortly: 0-3, 5.
func spans(indexes []int) string {
	slices.Sort(indexes)
	var parts []string
	for n := 0; n < len(indexes); {
		end := n
		for end+1 < len(indexes) && indexes[end+1] == indexes[end]+1 {
			end++
		}
		if part := fmt.Sprint(indexes[n]); end == n {
			parts = append(parts, part)
		} else {
			parts = append(parts, fmt.Sprintf("%s-%d", part, indexes[end]))
		}
		n = end + 1
	}
	return strings.Join(parts, ", ")
}
