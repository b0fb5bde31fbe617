package sysfstest

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Write does what the kernel does when somebody writes to an attribute, and
// answers with its errors. The name is a path in the tree, from its root or in
// full. It knows sriov_numvfs, sriov_drivers_autoprobe and driver_override of
// functions, bind and unbind of drivers, and drivers_probe.
func (t *Tree) Write(name, value string) error {
	if rest, ok := strings.CutPrefix(name, t.Sysfs+"/"); ok {
		name = rest
	}
	name, value = filepath.Clean(name), strings.TrimSpace(value)
	dir, attribute := filepath.Split(name)
	device := filepath.Base(dir)
	if filepath.Base(filepath.Dir(filepath.Clean(dir))) == "drivers" || attribute == "drivers_probe" {
		device = value // the function is what is written
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
	f := t.functions[device]
	if f == nil {
		return &os.PathError{Op: "write", Path: name, Err: unix.ENODEV}
	}
	if err := t.write(f, attribute, driver, value); err != nil {
		return &os.PathError{Op: "write", Path: name, Err: err}
	}
	return nil
}

func (t *Tree) write(f *Function, attribute, driver, value string) error {
	switch attribute {
	case "sriov_numvfs":
		n, err := strconv.ParseUint(value, 10, 16)
		if err != nil {
			return unix.EINVAL
		}
		return t.setVirtual(f, int(n))
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
		if o := t.override[f.Address]; o != "" && o != driver {
			return unix.ENODEV
		}
		return t.bind(f.Address, driver)
	case "drivers_probe":
		return t.probe(f)
	default:
		return unix.EACCES
	}
}

// probe binds the driver that the override names, else the usual one.
func (t *Tree) probe(f *Function) error {
	driver := t.override[f.Address]
	if driver == "" {
		driver = t.usual(f.Address)
	}
	if f.Driver != "" || driver == "" {
		return nil
	}
	return t.bind(f.Address, driver)
}

// usual is the driver that the kernel would choose for a virtual function.
func (t *Tree) usual(address string) string {
	for pf, virtual := range t.virtual {
		for _, v := range virtual {
			if v == address {
				return t.functions[pf].VFDriver
			}
		}
	}
	return ""
}

// setVirtual makes or removes the virtual functions of a PF.
func (t *Tree) setVirtual(pf *Function, n int) error {
	has := len(t.virtual[pf.Address])
	switch {
	case n > pf.TotalVFs:
		return unix.ERANGE
	case n == has:
		return nil
	case n > 0 && has > 0:
		return unix.EBUSY
	}
	if n == 0 {
		for i := has - 1; i >= 0; i-- {
			if err := t.removeVirtual(pf.Address, i); err != nil {
				return err
			}
		}
	}
	for i := range n {
		if err := t.makeVirtual(pf, i); err != nil {
			return err
		}
	}
	return os.WriteFile(t.path(Device(pf.Address)+"/sriov_numvfs"), []byte(strconv.Itoa(n)+"\n"), 0o644)
}

// VirtualAddress is where a PF's virtual function with an index will be.
func VirtualAddress(pf Function, index int) string {
	var domain, bus, device, function int
	_, _ = fmt.Sscanf(pf.Address, "%x:%x:%x.%d", &domain, &bus, &device, &function)
	id := bus<<8 | device<<3 | function
	offset, stride := pf.spacing()
	id += offset + index*stride
	return fmt.Sprintf("%04x:%02x:%02x.%d", domain, id>>8, id>>3&0x1f, id&7)
}

// makeVirtual follows the order of the kernel's pci_iov_add_virtfn: the device,
// the PF's link, the own link, and the driver last.
func (t *Tree) makeVirtual(pf *Function, index int) error {
	v := Function{
		Address: VirtualAddress(*pf, index), Class: pf.Class, Vendor: pf.Vendor, Device: pf.VFDevice, NUMA: pf.NUMA,
	}
	if pf.Netdev != "" {
		v.Netdev = fmt.Sprintf("%sv%d", pf.Netdev, index)
	}
	if pf.IOMMUGroup != "" {
		v.IOMMUGroup = strconv.Itoa(1000 + t.number("group"))
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
	if !t.autoprobe[pf.Address] || pf.VFDriver == "" {
		return nil
	}
	return t.bind(v.Address, pf.VFDriver)
}

// removeVirtual follows pci_iov_remove_virtfn: both links, and only then the
// driver and the device.
func (t *Tree) removeVirtual(pf string, index int) error {
	address := t.virtual[pf][index]
	t.virtual[pf] = t.virtual[pf][:index]
	for _, name := range []string{fmt.Sprintf("%s/virtfn%d", Device(pf), index), Device(address) + "/physfn"} {
		if err := os.Remove(t.path(name)); err != nil {
			return err
		}
	}
	if err := t.unbind(address); err != nil {
		return err
	}
	delete(t.functions, address)
	delete(t.override, address)
	if err := os.Remove(t.path("bus/pci/devices/" + address)); err != nil {
		return err
	}
	return os.RemoveAll(t.path(Device(address)))
}
