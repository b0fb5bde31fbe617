package plan

import (
	"slices"
	"strings"

	"github.com/cleatproject/cleat/sriov/nodestate"
)

// Status says what the node has in the operator's words: all PFs, whether the
// wish names them or not. SyncStatus and LastSyncError are for the caller to
// say, as is what State does not have (link speed, representors, bridges).
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
		switch pf.Link {
		case Ether:
			found.LinkType = nodestate.FoundEthernet
		case InfiniBand:
			found.LinkType = nodestate.FoundInfiniBand
		}
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

// sysfsGUID writes 00:11:22:33:44:55:66:77 as 0011:2233:4455:6677.
func sysfsGUID(guid string) string {
	digits := strings.ReplaceAll(guid, ":", "")
	if len(digits) != 16 {
		return ""
	}
	return strings.Join([]string{digits[:4], digits[4:8], digits[8:12], digits[12:]}, ":")
}
