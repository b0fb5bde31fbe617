package sysfstest

import (
	"cmp"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/cleatproject/cleat/internal/linux/netlinks"
)

// Function is a PCI function of a Tree.
type Function struct {
	Address        string
	Class          uint32 // 0 is 0x020000
	Vendor, Device string // four digits
	Driver         string // "" for none
	NUMA           int    // -1 for none
	ACPIIndex      string
	IOMMUGroup     string
	Netdev         string // exists while a network driver is bound; "" for none

	// For PFs:
	TotalVFs int
	VFDevice string
	VFDriver string // unless sriov_drivers_autoprobe is 0
	Offset   int    // 0 is 16
	Stride   int    // 0 is 1
}

func (f Function) spacing() (offset, stride int) { return cmp.Or(f.Offset, 16), cmp.Or(f.Stride, 1) }

func isNetwork(driver string) bool {
	return driver != "" && !strings.Contains(driver, "vfio") && !strings.Contains(driver, "uio")
}

func (t *Tree) Add(f Function) {
	t.t.Helper()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.must(t.add(f))
	if f.TotalVFs > 0 {
		t.autoprobe[f.Address] = true
	}
	if f.Driver != "" {
		t.must(t.bind(f.Address, f.Driver))
	}
}

func (t *Tree) add(f Function) error {
	if f.Class == 0 {
		f.Class = 0x020000
	}
	f.Offset, f.Stride = f.spacing()
	files := map[string]string{
		"modalias": fmt.Sprintf("pci:v0000%sd0000%ssv00000000sd00000000bc%02Xsc%02Xi%02X",
			strings.ToUpper(f.Vendor), strings.ToUpper(f.Device), f.Class>>16, f.Class>>8&0xff, f.Class&0xff),
		"class":           fmt.Sprintf("0x%06x", f.Class),
		"vendor":          "0x" + f.Vendor,
		"device":          "0x" + f.Device,
		"numa_node":       strconv.Itoa(f.NUMA),
		"driver_override": "(null)",
	}
	if f.ACPIIndex != "" {
		files["acpi_index"] = f.ACPIIndex
	}
	if f.TotalVFs > 0 {
		files["sriov_totalvfs"] = strconv.Itoa(f.TotalVFs)
		files["sriov_numvfs"] = "0"
		files["sriov_offset"] = strconv.Itoa(f.Offset)
		files["sriov_stride"] = strconv.Itoa(f.Stride)
		files["sriov_vf_device"] = strings.TrimLeft(f.VFDevice, "0")
		files["sriov_drivers_autoprobe"] = "1"
	}
	place := Device(f.Address)
	if err := os.MkdirAll(t.path(place), 0o755); err != nil {
		return err
	}
	for name, text := range files {
		if err := os.WriteFile(t.path(place+"/"+name), []byte(text+"\n"), 0o644); err != nil {
			return err
		}
	}
	if f.IOMMUGroup != "" {
		if err := t.group(place, f.IOMMUGroup, ""); err != nil {
			return err
		}
	}
	t.functions[f.Address] = &f
	return t.link("bus/pci/devices/"+f.Address, place)
}

// name is set for groups created by VFIO.
func (t *Tree) group(place, group, name string) error {
	to := "kernel/iommu_groups/" + group
	if err := os.MkdirAll(t.path(to), 0o755); err != nil {
		return err
	}
	if name != "" {
		if err := os.WriteFile(t.path(to+"/name"), []byte(name+"\n"), 0o644); err != nil {
			return err
		}
	}
	return t.link(place+"/iommu_group", to)
}

// GroupWithoutIOMMU puts a function into a no-IOMMU group of VFIO.
func (t *Tree) GroupWithoutIOMMU(address, group string) {
	t.t.Helper()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.must(t.group(Device(address), group, "vfio-noiommu"))
}

func (t *Tree) bind(address, driver string) error {
	f := t.functions[address]
	if err := t.refuses[driver]; err != nil {
		return err
	}
	dir := "bus/pci/drivers/" + driver
	if err := os.MkdirAll(t.path(dir), 0o755); err != nil {
		return err
	}
	if err := t.link(Device(address)+"/driver", dir); err != nil {
		return err
	}
	f.Driver = driver
	if f.Netdev == "" || !isNetwork(driver) {
		return nil
	}
	index := t.nextNumber("link")
	mac, err := t.driverMAC(address, defaultMAC(index))
	if err != nil {
		return err
	}
	_, err = t.addLink(Device(address), netlinks.Link{Name: f.Netdev, Running: true, Index: index, MAC: mac})
	return err
}

func (t *Tree) unbind(address string) error {
	f := t.functions[address]
	if f.Driver == "" {
		return nil
	}
	var kept []netlinks.Link
	for _, l := range t.links {
		if f.Netdev == "" || l.Name != f.Netdev {
			kept = append(kept, l)
		}
	}
	t.links = kept
	if f.Netdev != "" {
		if err := os.RemoveAll(t.path("class/net/" + f.Netdev)); err != nil {
			return err
		}
		if err := os.RemoveAll(t.path(Device(address) + "/net")); err != nil {
			return err
		}
	}
	f.Driver = ""
	return os.Remove(t.path(Device(address) + "/driver"))
}
