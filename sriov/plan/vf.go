package plan

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/cleatproject/cleat/sriov/nodestate"
)

type functions struct {
	*planner
	pf PF

	macs  map[string]string // to set, by VF address
	taken map[string]bool   // MAC addresses of functions

	// VF indexes.
	absent, notInTable, noGUIDs, kept, tagged []int
}

// Without a network device, a function with a user-space driver is not in a
// pod.
func isUserspace(driver string) bool {
	return strings.Contains(driver, "vfio") || driver == "igb_uio" || driver == "uio_pci_generic"
}

// planVF has the operator's order: the PF's table, the driver, then settings
// that need a bound driver.
func (f *functions) planVF(g nodestate.VFGroup, v VF) {
	vfio := g.Type() == nodestate.VFIO
	network := v.Driver != "" && !isUserspace(v.Driver)
	right := network
	if vfio {
		right = v.Driver == nodestate.VFIO
	}
	if right && f.inPod(v, network) {
		return
	}
	f.checkResidue(g, v)
	f.checkVF(g, v, right)
	var steps []Step
	if v.VDPA != "" && v.VDPA != g.VDPAType {
		steps = append(steps, SetVDPA{Address: v.Address})
	}
	// A guest might use a function on vfio-pci.
	changed := len(f.restoredIdentity(v)) > 0
	if !vfio || !right || changed {
		identity := f.identity(v)
		// RDMA devices get their GUID from the address when created. A driver that
		// had another address is bound again.
		if len(identity) > 0 && !vfio && network && (f.pf.Link == InfiniBand || g.IsRDMA || changed) {
			// After a crash the next plan binds it again.
			steps = append(steps, Unbind{Address: v.Address})
			right = false
		}
		steps = append(steps, identity...)
		if len(identity) == 0 && (!right || slices.Contains(f.options.Fresh, f.pf.Address)) {
			steps = append(steps, f.keepMAC(v)...)
		}
	}
	steps = append(steps, f.flags(g, v)...)
	steps = append(steps, f.restored(v)...)
	mtu := f.wantedMTU(g, v)
	switch {
	case !right && vfio:
		steps = append(steps, Bind{Address: v.Address, Driver: nodestate.VFIO})
		_, compared := f.options.Baselines[v.Address]
		f.plan.More = f.plan.More || compared && !f.isFree(v) // compared next
	case !right:
		steps = append(steps, Bind{Address: v.Address})
		f.plan.More = true // its network device is configured next
	case !vfio && mtu != 0 && v.MTU != mtu:
		steps = append(steps, SetMTU{Address: v.Address, MTU: mtu})
	}
	if g.VDPAType != "" && v.VDPA != g.VDPAType {
		steps = append(steps, SetVDPA{Address: v.Address, Type: g.VDPAType})
	}
	if len(steps) > 0 {
		f.do(steps...)
		f.touch(v.Address)
	}
}

func (f *functions) inPod(v VF, network bool) bool {
	if slices.Contains(f.options.Held, v.Address) {
		return true
	}
	if network && v.Netdev == "" {
		f.absent = append(f.absent, v.Index)
		return true
	}
	return false
}

func (f *functions) entry(v VF) Entry { return Entry{f.pf.Address, v.Index, v.Address} }

func (f *functions) identity(v VF) []Step {
	if !v.Known {
		f.notInTable = append(f.notInTable, v.Index)
		return nil
	}
	if steps := f.restoredIdentity(v); steps != nil {
		return steps
	}
	switch f.pf.Link {
	case Ether:
		if isUnset(v.AdminMAC) {
			if mac, ok := f.newMAC(v); ok {
				return []Step{SetMAC{f.entry(v), mac}}
			}
		}
	case InfiniBand:
		if !v.GUIDs {
			f.noGUIDs = append(f.noGUIDs, v.Index)
			return nil
		}
		if want := f.staticGUID(v); want != "" {
			if !strings.EqualFold(v.NodeGUID, want) || !strings.EqualFold(v.PortGUID, want) {
				return []Step{SetGUID{f.entry(v), want}}
			}
			return nil
		}
		if isUnset(v.NodeGUID) || isUnset(v.PortGUID) {
			if guid, ok := guidFor(f.pf, f.former(v)); ok {
				return []Step{SetGUID{f.entry(v), guid}}
			}
		}
	}
	return nil
}

// keepMAC sets the table's address again before a function is bound: it can be
// a random one, lost with the driver.
func (f *functions) keepMAC(v VF) []Step {
	if f.pf.Link != Ether || !v.Known || isUnset(v.AdminMAC) {
		return nil
	}
	return []Step{SetMAC{f.entry(v), v.AdminMAC}}
}

func (f *functions) flags(g nodestate.VFGroup, v VF) []Step {
	if before, ok := f.baseline(v); ok {
		g.Trust, g.SpoofCheck = cmp.Or(g.Trust, onOff(before.Trust)), cmp.Or(g.SpoofCheck, onOff(before.SpoofCheck))
	}
	if g.Trust == "" && g.SpoofCheck == "" {
		return nil
	}
	if !v.Known {
		f.problemOf(v, "VF %[2]d is not in the function table of %[1]s, so trust and spoofChk cannot be set; remove them from its group", f.pf.Netdev, v.Index)
		return nil
	}
	var steps []Step
	if on := g.Trust == nodestate.On; g.Trust != "" && on != v.Trust {
		steps = append(steps, SetTrust{f.entry(v), on})
	}
	if on := g.SpoofCheck == nodestate.On; g.SpoofCheck != "" && on != v.SpoofCheck {
		steps = append(steps, SetSpoofCheck{f.entry(v), on})
	}
	return steps
}

// addNotes adds one note per finding.
func (f *functions) addNotes() {
	for _, r := range []struct {
		indexes []int
		text    string
	}{
		{f.absent, "has a network driver but no network device on the host: a pod has it, or the driver created no device; address and MTU are not compared"},
		{f.notInTable, "not in the PF's function table: no address is set"},
		{f.noGUIDs, "the kernel does not report the GUIDs: no GUID is set"},
		{f.kept, "changed while a pod held it, or its address is also that of another function: kept (keep-residue)"},
		{f.tagged, "it has a VLAN that the node state does not specify: kept, as set by an administrator; if a pod left it, remove it with ip link set dev PF vf N vlan 0"},
	} {
		if len(r.indexes) > 0 {
			f.note(f.pf.Address, "VF %s: %s", formatRanges(slices.Compact(slices.Sorted(slices.Values(r.indexes)))), r.text)
		}
	}
}

// formatRanges formats indexes as 0-3, 5.
func formatRanges(indexes []int) string {
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
