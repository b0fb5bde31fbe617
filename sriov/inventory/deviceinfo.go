package inventory

import (
	"encoding/json"
	"strings"
)

const infoSuffix = "-device.json"

// deviceInfo follows the Device Information Specification 1.1.0 of the
// Kubernetes Network Plumbing Working Group.
type deviceInfo struct {
	Type    string    `json:"type"`
	Version string    `json:"version"`
	PCI     *pciInfo  `json:"pci,omitempty"`
	VDPA    *vdpaInfo `json:"vdpa,omitempty"`
}

type pciInfo struct {
	Address string `json:"pci-address"`
	RDMA    string `json:"rdma-device,omitempty"` // comma-separated
}

type vdpaInfo struct {
	Parent  string `json:"parent-device"`
	Driver  string `json:"driver"` // vhost, virtio
	Path    string `json:"path,omitempty"`
	Address string `json:"pci-address"`
}

// DeviceInfo composes the device information file for Multus and CNI plugins.
// ok is false for devices other than PCI network functions, and ids that are
// invalid in a file name.
func DeviceInfo(r Resource, m Member) (file string, content []byte, ok bool) {
	file = infoPrefix(r) + m.ID + infoSuffix
	if r.Type != NetDevice || m.Function == nil || m.Auxiliary != nil || !isFileName(file) {
		return "", nil, false
	}
	info := deviceInfo{Type: "pci", Version: "1.1.0"}
	selector, f := selectorOf(r, m), m.Function
	if v := f.VDPA; v != nil && selector.VDPAType != "" {
		info.Type = "vdpa"
		info.VDPA = &vdpaInfo{Parent: v.Name, Driver: vdpaType(v.Driver), Address: f.Address}
		if info.VDPA.Driver == vhostType {
			info.VDPA.Path = v.Path
		}
	} else {
		info.PCI = &pciInfo{Address: f.Address}
		if selector.RDMA && selector.VDPAType == "" {
			var names []string
			for _, d := range f.RDMA {
				names = append(names, d.Name)
			}
			info.PCI.RDMA = strings.Join(names, ",")
		}
	}
	content, err := json.Marshal(info)
	return file, content, err == nil
}

func infoPrefix(r Resource) string { return r.Prefix + "-" + r.Name + "-" }
