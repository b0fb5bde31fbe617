package plan

import (
	"cmp"
	"slices"
	"strings"

	"github.com/cleatproject/cleat/sriov/nodestate"
)

// Same reports whether a function is as it was before a pod held it, except for
// what its group specifies.
func Same(g nodestate.VFGroup, pf PF, before, v VF) bool {
	inHost := before.Netdev != "" && v.Netdev != ""
	switch {
	case before.Known && !v.Known,
		!sameAddress(formerMAC(pf, before, v), v.AdminMAC),
		before.VLAN != v.VLAN, before.QoS != v.QoS, before.QinQ != v.QinQ,
		before.LinkState != v.LinkState, before.MinRate != v.MinRate, before.MaxRate != v.MaxRate,
		g.Trust == "" && before.Trust != v.Trust,
		g.SpoofCheck == "" && before.SpoofCheck != v.SpoofCheck,
		formerGUID(pf, before, v) != "",
		inHost && g.MTU == 0 && before.MTU != v.MTU,
		inHost && before.usesAdminMAC() && !v.usesAdminMAC():
		return false
	}
	return true
}

// formerMAC is the address that a function had before a pod held it, or gets if
// it had none.
func formerMAC(pf PF, before, v VF) string {
	if !isUnset(before.AdminMAC) || isUnset(v.AdminMAC) {
		return before.AdminMAC
	}
	mac, _ := macFor(pf, before)
	return mac
}

// formerGUID is the GUID that a function had before a pod held it, or gets if it
// had none; "" if it has that one, or none yet.
func formerGUID(pf PF, before, v VF) string {
	guid, ok := guidFor(pf, before)
	if !ok || !v.GUIDs || isUnset(v.NodeGUID) && isUnset(v.PortGUID) || sameAddress(guid, v.NodeGUID) && sameAddress(guid, v.PortGUID) {
		return ""
	}
	return guid
}

func sameAddress(a, b string) bool { return strings.EqualFold(a, b) || isUnset(a) && isUnset(b) }

func (v VF) usesAdminMAC() bool {
	return v.Netdev != "" && !isUnset(v.AdminMAC) && strings.EqualFold(v.MAC, v.AdminMAC)
}

// InPod reports whether a pod has the function's network device, or its driver
// made none.
func (v VF) InPod() bool { return v.Driver != "" && !isUserspace(v.Driver) && v.Netdev == "" }

// isFree reports whether no pod has the function.
func (f *functions) isFree(v VF) bool {
	return !v.InPod() && !slices.Contains(f.options.Held, v.Address)
}

// baseline returns the state to which a function is reset.
func (f *functions) baseline(v VF) (VF, bool) {
	before, ok := f.options.Baselines[v.Address]
	return before, ok && v.Known && !f.options.KeepResidue && f.isFree(v)
}

// former is the baseline, or the function itself without one.
func (f *functions) former(v VF) VF {
	if before, ok := f.baseline(v); ok {
		return before
	}
	return v
}

// assignMACs finds the addresses to set: those before a pod held the function,
// and others for addresses that another function or the PF has.
func (f *functions) assignMACs(i nodestate.Interface) {
	if f.pf.Link != Ether {
		return
	}
	taken := f.taken
	taken[strings.ToLower(f.pf.MAC)] = true
	var free []VF
	for _, v := range f.pf.VFs {
		if _, grouped := i.Group(v.Index); grouped && v.Index < i.NumVFs && v.Known && f.isFree(v) {
			free = append(free, v)
			continue
		}
		taken[strings.ToLower(v.AdminMAC)], taken[strings.ToLower(v.MAC)] = true, true
	}
	for _, v := range free {
		want, restart := v.AdminMAC, false
		if before, ok := f.baseline(v); ok {
			want = formerMAC(f.pf, before, v)
			restart = before.usesAdminMAC() && v.Netdev != "" && !v.usesAdminMAC()
		}
		if isUnset(want) {
			continue // identity sets one
		}
		if taken[strings.ToLower(want)] {
			if f.options.KeepResidue {
				f.kept = append(f.kept, v.Index)
				continue
			}
			other, ok := macFor(f.pf, VF{Index: v.Index})
			if !ok || taken[other] {
				f.problemOf(v, "its MAC address %s is also that of another function, and no other can be derived from the physical function's address %q", want, f.pf.MAC)
				continue
			}
			want = other
		}
		taken[strings.ToLower(want)] = true
		if restart || !strings.EqualFold(want, v.AdminMAC) {
			f.macs[v.Address] = want
		}
	}
}

// newMAC returns an address for a function that has none.
func (f *functions) newMAC(v VF) (string, bool) {
	mac, ok := macFor(f.pf, f.former(v))
	if f.taken[mac] {
		mac, ok = macFor(f.pf, VF{Index: v.Index})
	}
	f.taken[mac] = true
	return mac, ok
}

// restoredIdentity sets the address or the GUIDs that a pod's network changed.
func (f *functions) restoredIdentity(v VF) []Step {
	if mac, ok := f.macs[v.Address]; ok {
		return []Step{SetMAC{f.entry(v), mac}}
	}
	before, ok := f.baseline(v)
	if guid := formerGUID(f.pf, before, v); ok && guid != "" && f.pf.Link == InfiniBand && f.staticGUID(v) == "" {
		return []Step{SetGUID{f.entry(v), guid}}
	}
	return nil
}

// restored resets the rest of the PF's table, except for trust and spoof check.
func (f *functions) restored(v VF) (steps []Step) {
	before, ok := f.baseline(v)
	if !ok {
		return nil
	}
	if before.VLAN != v.VLAN || before.QoS != v.QoS || before.QinQ != v.QinQ {
		steps = append(steps, SetVLAN{f.entry(v), before.VLAN, before.QoS, before.QinQ})
	}
	if before.MinRate != v.MinRate || before.MaxRate != v.MaxRate {
		steps = append(steps, SetRates{f.entry(v), before.MinRate, before.MaxRate})
	}
	if before.LinkState != v.LinkState {
		steps = append(steps, SetLinkState{f.entry(v), before.LinkState})
	}
	return steps
}

// wantedMTU is 0 for any.
func (f *functions) wantedMTU(g nodestate.VFGroup, v VF) int {
	before, ok := f.baseline(v)
	if !ok || before.Netdev == "" {
		before.MTU = 0
	}
	return cmp.Or(g.MTU, before.MTU)
}

// checkResidue adds what is left of pods without a step.
func (f *functions) checkResidue(g nodestate.VFGroup, v VF) {
	before, ok := f.options.Baselines[v.Address]
	switch {
	case !f.isFree(v):
	case ok && f.options.KeepResidue && !Same(g, f.pf, before, v):
		f.kept = append(f.kept, v.Index)
	case ok && before.Known && !v.Known && !f.options.KeepResidue:
		f.problemOf(v, "a pod held it, and it is not in the function table any more, so that what the pod's network left cannot be read; bind the physical function's driver again")
	case v.VLAN != 0 && (!ok || before.VLAN == v.VLAN):
		f.tagged = append(f.tagged, v.Index)
	}
}
