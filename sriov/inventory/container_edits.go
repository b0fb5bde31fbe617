package inventory

import (
	"fmt"
	"path"
	"slices"
	"strings"
)

const (
	nodePermissions = "rw"
	vfioMaster      = "/dev/vfio/vfio"
	vhostNet        = "/dev/vhost-net"
	tun             = "/dev/net/tun"
)

// deviceNode is a device node with its paths on the machine and in a container.
type deviceNode struct{ host, container string }

func sameNode(path string) deviceNode { return deviceNode{path, path} }

// containerEdits is what a container gets with one device.
type containerEdits struct {
	info  map[string]map[string]string // by upstream's name of the provider
	nodes []deviceNode
}

// edits collects what a container gets with a device, and which of the needed
// nodes do not exist.
func (s AllocateSettings) edits(r Resource, m Member) (containerEdits, []*MissingNodeError) {
	g := containerEdits{info: map[string]map[string]string{"generic": {"deviceID": m.ID}}}
	if m.Function == nil {
		return g, []*MissingNodeError{{ID: m.ID, Why: "nothing is known of it: it is in a pod since before it was discovered"}}
	}
	if extra := r.Info(m.Address()); extra != nil {
		g.info["extra"] = extra
	}
	selector := selectorOf(r, m)
	missing := s.driver(&g, m)
	// As upstream, vdpaType excludes isRdma.
	switch {
	case r.Type == NetDevice && selector.VDPAType != "":
		missing = append(missing, s.vdpa(&g, m, selector.VDPAType)...)
	case r.Type != Accelerator && selector.RDMA:
		missing = append(missing, s.rdma(&g, m)...)
	}
	if r.Type != Accelerator && selector.VhostNet {
		s.vhost(&g)
	}
	return g, missing
}

// selectorOf is the selector that took a device. A device that a pod holds can be
// in a pool without a selector that takes it: the container gets nothing more.
func selectorOf(r Resource, m Member) Selector {
	if m.Selector < 0 || m.Selector >= len(r.Selectors) {
		return Selector{}
	}
	return r.Selectors[m.Selector]
}

// driver adds what the driver of a PCI function needs: upstream's drivers. The
// parent of an auxiliary device never has one of them.
func (s AllocateSettings) driver(g *containerEdits, m Member) []*MissingNodeError {
	if m.Auxiliary != nil {
		return nil
	}
	switch m.Function.Driver {
	case "vfio-pci":
		g.info["vfio"] = map[string]string{"mount": vfioMaster}
		// In the container a group without IOMMU has the name of other groups.
		group := m.Function.IOMMUGroup
		inside := strings.TrimPrefix(group, "noiommu-")
		if !isBaseName(inside) {
			return []*MissingNodeError{{ID: m.ID, Why: "it is in no IOMMU group; switch the IOMMU on, or vfio's enable_unsafe_noiommu_mode"}}
		}
		n := deviceNode{"/dev/vfio/" + group, "/dev/vfio/" + inside}
		g.info["vfio"]["dev-mount"] = n.container
		return s.must(g, m.ID, "vfio-pci creates it for the IOMMU group of the function", sameNode(vfioMaster), n)
	case "uio", "igb_uio":
		g.info["uio"] = map[string]string{}
		if !isBaseName(m.Function.UIO) {
			return []*MissingNodeError{{ID: m.ID, Why: fmt.Sprintf("its driver %s created no user-space I/O device for it", m.Function.Driver)}}
		}
		device := "/dev/" + m.Function.UIO
		g.info["uio"]["mount"] = device
		return s.must(g, m.ID, m.Function.Driver+" creates it for the function", sameNode(device))
	}
	return nil
}

// vdpa adds the vDPA device of a function; only vhost has a device node.
func (s AllocateSettings) vdpa(g *containerEdits, m Member, wanted string) []*MissingNodeError {
	v := m.Function.VDPA
	if v == nil {
		return []*MissingNodeError{{ID: m.ID, Why: "it has no vDPA device, which the vdpaType of its selector asks for"}}
	}
	g.info["vdpa"] = map[string]string{}
	if found := vdpaType(v.Driver); found != wanted {
		return []*MissingNodeError{{ID: m.ID, Why: fmt.Sprintf("its vDPA device %s has the type %s, want %s as the vdpaType of its selector", v.Name, found, wanted)}}
	}
	if wanted != vhostType {
		return nil
	}
	if base := strings.TrimPrefix(v.Path, "/dev/"); !isBaseName(base) {
		return []*MissingNodeError{{ID: m.ID, Why: fmt.Sprintf("its vDPA device %s has no node below /dev", v.Name)}}
	}
	g.info["vdpa"]["mount"] = v.Path
	return s.must(g, m.ID, "vhost_vdpa creates it for the vDPA device "+v.Name, sameNode(v.Path))
}

// The types of vDPA devices as vdpaType and Multus have them.
const (
	vhostType   = "vhost"
	virtioType  = "virtio"
	invalidType = "invalid"
)

func vdpaType(driver string) string {
	switch driver {
	case "vhost_vdpa":
		return vhostType
	case "virtio_vdpa":
		return virtioType
	}
	return invalidType
}

// rdma adds the nodes of a device's RDMA devices. The information has the first
// node of the last device for each role, as upstream's.
func (s AllocateSettings) rdma(g *containerEdits, m Member) []*MissingNodeError {
	info := map[string]string{}
	g.info["rdma"] = info
	devices := m.Function.RDMA
	if m.Auxiliary != nil {
		devices = m.Auxiliary.RDMA
	}
	if len(devices) == 0 {
		return []*MissingNodeError{{ID: m.ID, Why: "it has no RDMA device here, which isRdma of its selector asks for; in exclusive mode that may still be in a pod's namespace"}}
	}
	info["rdma_dev"] = devices[0].Name
	var missing []*MissingNodeError
	for _, d := range devices {
		for _, c := range slices.Backward(d.Devices) {
			info[c.Role] = c.Path
		}
		for _, c := range d.Devices {
			missing = append(missing, s.must(g, m.ID, "it belongs to the RDMA device "+d.Name, sameNode(c.Path))...)
		}
	}
	return missing
}

// vhost adds the nodes for virtio-user. Upstream adds both or none, and reports
// both if the first exists.
func (s AllocateSettings) vhost(g *containerEdits) {
	if !s.exists(vhostNet) {
		return
	}
	g.info["vhost"] = map[string]string{"net-mount": vhostNet, "tun-mount": tun}
	if s.exists(tun) {
		g.nodes = append(g.nodes, sameNode(vhostNet), sameNode(tun))
	}
}

// must adds nodes below /dev and reports which do not exist.
func (s AllocateSettings) must(g *containerEdits, id, why string, nodes ...deviceNode) []*MissingNodeError {
	var missing []*MissingNodeError
	for _, n := range nodes {
		if !isBelowDev(n.host) {
			missing = append(missing, &MissingNodeError{ID: id, Why: fmt.Sprintf("%q is no device node below /dev; %s", n.host, why)})
			continue
		}
		g.nodes = append(g.nodes, n)
		if !s.exists(n.host) {
			missing = append(missing, &MissingNodeError{ID: id, Node: n.host, Why: why})
		}
	}
	return missing
}

// uniqueNodes removes nodes with a path on the machine that came before.
func uniqueNodes(nodes []deviceNode) []deviceNode {
	var all []deviceNode
	seen := map[string]bool{}
	for _, n := range nodes {
		if !seen[n.host] {
			seen[n.host] = true
			all = append(all, n)
		}
	}
	return all
}

// isBaseName reports whether a name is that of a file without a directory.
func isBaseName(name string) bool {
	return name != "" && name[0] != '.' && isPlainName(name)
}

// isBelowDev reports whether a name is a clean path below /dev.
func isBelowDev(name string) bool {
	rest, ok := strings.CutPrefix(name, "/dev/")
	return ok && path.Clean(name) == name && isPlainName(strings.ReplaceAll(rest, "/", ""))
}

// isPlainName reports whether a text has only the characters of names of devices
// and resources.
func isPlainName(text string) bool {
	for _, c := range []byte(text) {
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9':
		case strings.IndexByte("._-:", c) >= 0:
		default:
			return false
		}
	}
	return text != ""
}
