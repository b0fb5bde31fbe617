package sysfstest

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/internal/linux/netlinks"
)

// Write emulates a write to a sysfs attribute with the kernel's errors. name
// can be relative to the root. Supported are sriov_numvfs,
// sriov_drivers_autoprobe, driver_override, bind, unbind (PCI and vDPA) and
// drivers_probe.
func (t *Tree) Write(name, value string) error {
	if rest, ok := strings.CutPrefix(name, t.Sysfs+"/"); ok {
		name = rest
	}
	name, value = filepath.Clean(name), strings.TrimSpace(value)
	t.faultMu.Lock()
	t.writes = append(t.writes, name+" "+value)
	t.faultMu.Unlock()
	err := t.fault(name + " " + value)
	if err == nil && isVDPA(name) {
		t.mu.Lock()
		defer t.mu.Unlock()
		err = t.writeVDPA(name, value)
	} else if err == nil {
		err = t.writePCI(name, value)
	}
	if err != nil {
		return &os.PathError{Op: "write", Path: name, Err: err}
	}
	return nil
}

func (t *Tree) writePCI(name, value string) error {
	dir, attribute := filepath.Split(name)
	device := filepath.Base(dir)
	if filepath.Base(filepath.Dir(filepath.Clean(dir))) == "drivers" || attribute == "drivers_probe" {
		device = value
	}
	driver := filepath.Base(dir)
	t.mu.Lock()
	defer t.mu.Unlock()
	if driver == "driver" { // devices/ADDRESS/driver/unbind
		device = value
		if f := t.functions[filepath.Base(filepath.Dir(filepath.Clean(dir)))]; f != nil {
			driver = f.Driver
		}
	}
	if (attribute == "bind" || attribute == "unbind") && !t.isLoaded(driver) {
		return unix.ENOENT
	}
	f := t.functions[device]
	if f == nil {
		return unix.ENODEV
	}
	return t.write(f, attribute, driver, value)
}

func (t *Tree) write(f *Function, attribute, driver, value string) error {
	switch attribute {
	case "sriov_numvfs":
		n, err := strconv.ParseUint(value, 10, 16)
		if err != nil {
			return unix.EINVAL
		}
		return t.setNumVFs(f, int(n))
	case "sriov_drivers_autoprobe":
		t.autoprobe[f.Address] = value == "1"
		return os.WriteFile(t.path(Device(f.Address)+"/"+attribute), []byte(value+"\n"), 0o644)
	case "driver_override":
		t.override[f.Address] = value
		shown := value
		if shown == "" {
			shown = "(null)"
		}
		return os.WriteFile(t.path(Device(f.Address)+"/"+attribute), []byte(shown+"\n"), 0o644)
	case "unbind":
		if f.Driver == "" || f.Driver != driver {
			return unix.ENODEV
		}
		return t.unbind(f.Address)
	case "bind":
		if f.Driver != "" {
			return unix.EBUSY
		}
		if !t.matches(f.Address, driver) {
			return unix.ENODEV
		}
		return t.bind(f.Address, driver)
	case "drivers_probe":
		return t.probe(f)
	default:
		return unix.EACCES
	}
}

func (t *Tree) probe(f *Function) error {
	driver := t.override[f.Address]
	if driver == "" {
		driver = t.defaultDriver(f.Address)
	}
	if f.Driver != "" || driver == "" || !t.isLoaded(driver) || !t.matches(f.Address, driver) {
		return nil
	}
	_ = t.bind(f.Address, driver) // the kernel only logs the error
	return nil
}

func (t *Tree) isLoaded(driver string) bool {
	_, err := os.Stat(t.path("bus/pci/drivers/" + driver))
	return err == nil || !t.strict
}

// As in the kernel, driver_override wins. While sriov_drivers_autoprobe is 0,
// VFs without an override match no driver.
func (t *Tree) matches(address, driver string) bool {
	if o := t.override[address]; o != "" {
		return o == driver
	}
	pf := t.physical(address)
	return pf == "" || t.autoprobe[pf] && driver == t.functions[pf].VFDriver
}

func (t *Tree) defaultDriver(address string) string {
	if pf := t.physical(address); pf != "" {
		return t.functions[pf].VFDriver
	}
	return ""
}

func (t *Tree) physical(address string) string {
	for pf, virtual := range t.virtual {
		if slices.Contains(virtual, address) {
			return pf
		}
	}
	return ""
}

func (t *Tree) setNumVFs(pf *Function, n int) error {
	has := len(t.virtual[pf.Address])
	attribute := t.path(Device(pf.Address) + "/sriov_numvfs")
	// A test can write the attribute before it calls Write; a rewrite could
	// overwrite its next value.
	text, err := os.ReadFile(attribute)
	if err != nil {
		return err
	}
	written := strings.TrimSpace(string(text)) == strconv.Itoa(n)
	switch {
	case n > pf.TotalVFs:
		return unix.ERANGE
	case n == has:
		return nil
	case t.strict && pf.Driver == "":
		return unix.ENOENT
	case n > 0 && has > 0:
		return unix.EBUSY
	}
	if n == 0 {
		for i := has - 1; i >= 0; i-- {
			if err := t.removeVF(pf.Address, i); err != nil {
				return err
			}
		}
	}
	for i := range n {
		if err := t.createVF(pf, i); err != nil {
			return err
		}
	}
	if written {
		return nil
	}
	return os.WriteFile(attribute, []byte(strconv.Itoa(n)+"\n"), 0o644)
}

// VirtualAddress returns the address of a VF, even before it exists.
func VirtualAddress(pf Function, index int) string {
	var domain, bus, device, function int
	_, _ = fmt.Sscanf(pf.Address, "%x:%x:%x.%d", &domain, &bus, &device, &function)
	id := bus<<8 | device<<3 | function
	offset, stride := pf.spacing()
	id += offset + index*stride
	return fmt.Sprintf("%04x:%02x:%02x.%d", domain, id>>8, id>>3&0x1f, id&7)
}

// The order is that of pci_iov_add_virtfn: device, virtfn link, physfn link,
// driver.
func (t *Tree) createVF(pf *Function, index int) error {
	v := Function{
		Address: VirtualAddress(*pf, index), Class: pf.Class, Vendor: pf.Vendor, Device: pf.VFDevice, NUMA: pf.NUMA,
	}
	if pf.Netdev != "" {
		v.Netdev = fmt.Sprintf("%sv%d", pf.Netdev, index)
	}
	if pf.IOMMUGroup != "" {
		v.IOMMUGroup = strconv.Itoa(1000 + t.nextNumber("group"))
	}
	if err := t.add(v); err != nil {
		return err
	}
	if err := t.link(fmt.Sprintf("%s/virtfn%d", Device(pf.Address), index), Device(v.Address)); err != nil {
		return err
	}
	if err := t.link(Device(v.Address)+"/physfn", Device(pf.Address)); err != nil {
		return err
	}
	t.virtual[pf.Address] = append(t.virtual[pf.Address], v.Address)
	t.table[v.Address] = &entry{VF: netlinks.VF{Index: index, Trust: netlinks.Off, Spoof: netlinks.On}}
	if !t.autoprobe[pf.Address] || pf.VFDriver == "" {
		return nil
	}
	_ = t.bind(v.Address, pf.VFDriver)
	return nil
}

// The order is that of pci_iov_remove_virtfn: both links, then driver and
// device.
func (t *Tree) removeVF(pf string, index int) error {
	address := t.virtual[pf][index]
	t.virtual[pf] = t.virtual[pf][:index]
	for _, name := range []string{fmt.Sprintf("%s/virtfn%d", Device(pf), index), Device(address) + "/physfn"} {
		if err := os.Remove(t.path(name)); err != nil {
			return err
		}
	}
	if err := t.removeRDMAOf(address); err != nil {
		return err
	}
	if err := t.unbind(address); err != nil {
		return err
	}
	delete(t.functions, address)
	delete(t.override, address)
	delete(t.table, address)
	for name, v := range t.vdpa {
		if v.address == address {
			if err := t.removeVDPA(name); err != nil {
				return err
			}
		}
	}
	if err := os.Remove(t.path("bus/pci/devices/" + address)); err != nil {
		return err
	}
	return os.RemoveAll(t.path(Device(address)))
}
