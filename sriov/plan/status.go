package plan

import (
	"fmt"
	"slices"
	"strings"

	"github.com/cleatproject/cleat/sriov/nodestate"
)

// Status returns the observed state of all PFs in the operator's terms.
// SyncStatus and LastSyncError are the caller's; link speed, representors and
// bridges are not known.
func Status(spec nodestate.Spec, s State) nodestate.Status {
	status := nodestate.Status{System: nodestate.System{RDMAMode: s.RDMAMode}}
	for _, pf := range s.PFs {
		found := nodestate.FoundInterface{
			Name: pf.Netdev, MAC: pf.MAC, Driver: pf.Driver, PCIAddress: pf.Address, Vendor: pf.Vendor, DeviceID: pf.Device,
			MTU: pf.MTU, NumVFs: pf.NumVFs, TotalVFs: pf.TotalVFs, ESwitchMode: pf.mode(),
			ExternallyManaged: slices.ContainsFunc(spec.Interfaces, func(i nodestate.Interface) bool {
				return i.PCIAddress == pf.Address && i.ExternallyManaged
			}),
		}
		found.LinkType = map[string]string{Ether: nodestate.FoundEthernet, InfiniBand: nodestate.FoundInfiniBand}[pf.Link]
		if pf.Netdev != "" {
			found.LinkAdminState = map[bool]string{true: nodestate.LinkUp, false: nodestate.LinkDown}[pf.Up]
		}
		for _, name := range pf.Names {
			if name != pf.Netdev {
				found.AltNames = append(found.AltNames, name)
			}
		}
		for _, v := range pf.VFs {
			found.VFs = append(found.VFs, nodestate.FoundVF{
				Name: v.Netdev, MAC: v.MAC, Driver: v.Driver, PCIAddress: v.Address, Vendor: pf.Vendor, DeviceID: v.Device,
				VLAN: v.VLAN, MTU: v.MTU, Index: v.Index, VDPAType: v.VDPA, GUID: sysfsGUID(v.NodeGUID),
			})
		}
		status.Interfaces = append(status.Interfaces, found)
	}
	return status
}

// sysfsGUID formats 00:11:22:33:44:55:66:77 as 0011:2233:4455:6677.
func sysfsGUID(guid string) string {
	digits := strings.ReplaceAll(guid, ":", "")
	if len(digits) != 16 {
		return ""
	}
	return strings.Join([]string{digits[:4], digits[4:8], digits[8:12], digits[12:]}, ":")
}

// NotDone returns what the operator implements but plans do not (see
// docs/sriov.md).
func NotDone(spec nodestate.Spec) []string {
	var made, vfio []string
	for _, i := range spec.Interfaces {
		if i.NumVFs > 0 && !i.ExternallyManaged {
			made = append(made, i.PCIAddress)
		}
		if slices.ContainsFunc(i.VFGroups, func(g nodestate.VFGroup) bool { return g.Type() == nodestate.VFIO }) {
			vfio = append(vfio, i.PCIAddress)
		}
	}
	var all []string
	for _, of := range []struct {
		pfs  []string
		text string
	}{
		{vfio, "vfio-pci: kernel arguments (intel_iommu=on, iommu=pt) are not set, and the node is not rebooted for them"},
		{made, "udev rules, NetworkManager and firmware are not configured, and the node is neither drained nor rebooted"},
	} {
		if len(of.pfs) > 0 {
			all = append(all, strings.Join(of.pfs, ", ")+": "+of.text)
		}
	}
	if mode := spec.System.RDMAMode; mode != "" {
		all = append(all, fmt.Sprintf("RDMA mode %q is checked, but not set", mode))
	}
	for _, b := range spec.Bridges.OVS {
		if n := len(b.Uplinks); n != 1 {
			all = append(all, fmt.Sprintf("the Open vSwitch bridge %q is checked, but not created: it has %d uplinks, want 1", b.Name, n))
		}
	}
	return all
}
