package inventory

import (
	"cmp"
	"os"
	"path/filepath"
	"strings"
)

// DeviceNodes reports which device nodes a machine has.
type DeviceNodes struct {
	Sysfs string // "": /sys
	Dev   string // "": /dev
}

// Exists reports whether the machine has a device node, by its path on it:
// /dev/vfio/12.
//
// The /dev of a container, also of a privileged one, has the nodes of its start:
// it misses those of functions that were bound later. Nodes that /dev does not
// have are therefore looked up in sysfs: the kernel creates a node on the machine
// for each device there.
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

// sysfsPattern matches the path of a node's device in sysfs; "": not known.
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
		return "bus/vdpa/devices/*/" + base // it is of no class
	}
	return ""
}
