package inventory

import (
	"cmp"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

const (
	nodePermissions = "rw"
	vfioMaster      = "/dev/vfio/vfio"
	vhostNet        = "/dev/vhost-net"
	tun             = "/dev/net/tun"
)

type deviceNode struct{ host, container string }

func sameNode(path string) deviceNode { return deviceNode{path, path} }

type containerEdits struct {
	settings AllocateSettings
	id       string
	info     map[string]map[string]string // by upstream's name of the provider
	nodes    []deviceNode
	errs     []error
}

func (g *containerEdits) fail(format string, args ...any) {
	g.errs = append(g.errs, fmt.Errorf("device %s cannot be used in a container: %s", g.id, fmt.Sprintf(format, args...)))
}

func (g *containerEdits) exists(node string) bool {
	return g.settings.Exists == nil || g.settings.Exists(node)
}

func (s AllocateSettings) edits(r Resource, m Member) *containerEdits {
	g := &containerEdits{settings: s, id: m.ID, info: map[string]map[string]string{"generic": {"deviceID": m.ID}}}
	if m.Function == nil {
		g.fail("its properties are not known: a pod held it before it was discovered")
		return g
	}
	if extra := r.Info(m.Address()); extra != nil {
		g.info["extra"] = extra
	}
	g.driver(m)
	selector := selectorOf(r, m)
	// As upstream, vdpaType excludes isRdma.
	switch {
	case r.Type == NetDevice && selector.VDPAType != "":
		g.vdpa(m.Function.VDPA, selector.VDPAType)
	case r.Type != Accelerator && selector.RDMA:
		g.rdma(m)
	}
	if r.Type != Accelerator && selector.VhostNet {
		g.vhost()
	}
	return g
}

// selectorOf returns the zero Selector for a held device without a matching
// one: no extra device nodes.
func selectorOf(r Resource, m Member) Selector {
	if m.Selector < 0 || m.Selector >= len(r.Selectors) {
		return Selector{}
	}
	return r.Selectors[m.Selector]
}

// driver adds the nodes for upstream's driver types. The parent of an auxiliary
// device never has such a driver.
func (g *containerEdits) driver(m Member) {
	if m.Auxiliary != nil {
		return
	}
	switch driver := m.Function.Driver; driver {
	case "vfio-pci":
		info := map[string]string{"mount": vfioMaster}
		g.info["vfio"] = info
		// Inside the container, a no-IOMMU group has the name of an ordinary
		// group.
		group := m.Function.IOMMUGroup
		inside := strings.TrimPrefix(group, "noiommu-")
		if !isBaseName(inside) {
			g.fail("it has no IOMMU group; enable the IOMMU, or vfio's enable_unsafe_noiommu_mode")
			return
		}
		info["dev-mount"] = "/dev/vfio/" + inside
		g.need("vfio-pci creates it for the IOMMU group of the function", sameNode(vfioMaster), deviceNode{"/dev/vfio/" + group, info["dev-mount"]})
	case "uio", "igb_uio":
		info := map[string]string{}
		g.info["uio"] = info
		if !isBaseName(m.Function.UIO) {
			g.fail("its driver %s created no user-space I/O device for it", driver)
			return
		}
		info["mount"] = "/dev/" + m.Function.UIO
		g.need(driver+" creates it for the function", sameNode(info["mount"]))
	}
}

// vdpa adds the vDPA device; only type vhost has a node.
func (g *containerEdits) vdpa(v *VDPA, wanted string) {
	if v == nil {
		g.fail("it has no vDPA device, but its selector has a vdpaType")
		return
	}
	info := map[string]string{}
	g.info["vdpa"] = info
	found := vdpaType(v.Driver)
	switch {
	case found != wanted:
		g.fail("its vDPA device %s has the type %s, want %s as the vdpaType of its selector", v.Name, found, wanted)
	case wanted != vhostType:
	case !isBaseName(strings.TrimPrefix(v.Path, "/dev/")):
		g.fail("its vDPA device %s has no node below /dev", v.Name)
	default:
		info["mount"] = v.Path
		g.need("vhost_vdpa creates it for the vDPA device "+v.Name, sameNode(v.Path))
	}
}

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

// rdma adds the nodes of RDMA devices. As upstream, the information has the
// first node of the last device, for each role.
func (g *containerEdits) rdma(m Member) {
	info := map[string]string{}
	g.info["rdma"] = info
	devices := m.Function.RDMA
	if m.Auxiliary != nil {
		devices = m.Auxiliary.RDMA
	}
	if len(devices) == 0 {
		g.fail("it has no RDMA device in this network namespace, but its selector has isRdma; in exclusive mode the RDMA device can still be in a pod's namespace")
		return
	}
	info["rdma_dev"] = devices[0].Name
	for _, d := range devices {
		for _, c := range slices.Backward(d.Devices) {
			info[c.Role] = c.Path
		}
		for _, c := range d.Devices {
			g.need("it belongs to the RDMA device "+d.Name, sameNode(c.Path))
		}
	}
}

// vhost adds the nodes for virtio-user. As upstream, both or none, but both are
// reported if /dev/vhost-net exists.
func (g *containerEdits) vhost() {
	if !g.exists(vhostNet) {
		return
	}
	g.info["vhost"] = map[string]string{"net-mount": vhostNet, "tun-mount": tun}
	if g.exists(tun) {
		g.nodes = append(g.nodes, sameNode(vhostNet), sameNode(tun))
	}
}

// need adds nodes below /dev that must exist; why is their purpose, for errors.
func (g *containerEdits) need(why string, nodes ...deviceNode) {
	for _, n := range nodes {
		if !isBelowDev(n.host) {
			g.fail("%q is not a device node below /dev; %s", n.host, why)
			continue
		}
		g.nodes = append(g.nodes, n)
		if !g.exists(n.host) {
			g.fail("%s does not exist; %s", n.host, why)
		}
	}
}

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

var (
	plainName  = regexp.MustCompile(`^[a-zA-Z0-9._:-]+$`)
	baseName   = regexp.MustCompile(`^[a-zA-Z0-9_:-][a-zA-Z0-9._:-]*$`)
	deviceName = regexp.MustCompile(`^[a-zA-Z0-9]([a-zA-Z0-9._:-]*[a-zA-Z0-9])?$`)
)

func isBaseName(name string) bool { return baseName.MatchString(name) }

func isBelowDev(name string) bool {
	rest, ok := strings.CutPrefix(name, "/dev/")
	return ok && path.Clean(name) == name && plainName.MatchString(strings.ReplaceAll(rest, "/", ""))
}

// DeviceNodes reports which device nodes the machine has.
type DeviceNodes struct {
	Sysfs string // "": /sys
	Dev   string // "": /dev
}

// Exists reports whether the machine has a device node.
//
// The /dev of a container lacks nodes that were created after its start: they
// are looked up in sysfs.
func (h DeviceNodes) Exists(path string) bool {
	rest, ok := strings.CutPrefix(path, "/dev/")
	if !ok || !isBelowDev(path) {
		return false
	}
	if _, err := os.Lstat(filepath.Join(cmp.Or(h.Dev, "/dev"), rest)); err == nil {
		return true
	}
	pattern := sysfsPattern(rest)
	if pattern == "" {
		return false
	}
	found, err := filepath.Glob(filepath.Join(cmp.Or(h.Sysfs, "/sys"), pattern))
	return err == nil && len(found) > 0
}

// sysfsPattern returns a glob for the sysfs path of a node's device; "" if
// unknown.
func sysfsPattern(rest string) string {
	dir, base := filepath.Split(rest)
	kind := strings.TrimRight(base, "0123456789")
	switch {
	case rest == "vfio/vfio", rest == "vhost-net", rest == "net/tun", rest == "infiniband/rdma_cm":
		return "class/misc/" + base
	case dir == "vfio/":
		return "class/vfio/" + base
	case dir == "" && kind == "uio":
		return "class/uio/" + base
	case dir == "infiniband/" && kind == "uverbs":
		return "class/infiniband_verbs/" + base
	case dir == "infiniband/" && (kind == "umad" || kind == "issm"):
		return "class/infiniband_mad/" + base
	case dir == "" && kind == "vhost-vdpa-":
		return "bus/vdpa/devices/*/" + base // vhost-vdpa devices have no class
	}
	return ""
}
