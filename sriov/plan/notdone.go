package plan

import (
	"fmt"
	"slices"
	"strings"

	"github.com/cleatproject/cleat/sriov/nodestate"
)

// NotDone is what a desired state implies, or asks for, that the operator does
// and no plan does. docs/sriov.md has the whole list.
func NotDone(spec nodestate.Spec) []string {
	var made, switchdev, vfio []string
	for _, i := range spec.Interfaces {
		if i.NumVFs > 0 && !i.ExternallyManaged {
			made = append(made, i.PCIAddress)
		}
		if i.Mode() == nodestate.Switchdev {
			switchdev = append(switchdev, i.PCIAddress)
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
		{switchdev, "hw-tc-offload and the flow steering mode smfs are not set with switchdev: set them with ethtool and devlink"},
		{vfio, "kernel arguments for vfio-pci (intel_iommu=on, iommu=pt) are not set, and the node is not rebooted for them"},
		{made, "no udev rules are written and NetworkManager is not configured, the firmware is not changed, and the node is neither drained nor rebooted"},
	} {
		if len(of.pfs) > 0 {
			all = append(all, strings.Join(of.pfs, ", ")+": "+of.text)
		}
	}
	if mode := spec.System.RDMAMode; mode != "" {
		all = append(all, fmt.Sprintf("RDMA mode %q is checked and not set", mode))
	}
	for _, b := range spec.Bridges.OVS {
		all = append(all, fmt.Sprintf("the bridge %q of Open vSwitch is not made", b.Name))
	}
	return all
}
