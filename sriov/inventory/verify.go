package inventory

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/cleatproject/cleat/internal/linux/sysfs"
)

// ChangedError: a device differs from its snapshot.
type ChangedError struct {
	Device      string
	Gone        bool
	Differences []string // "driver is vfio-pci, was igbvf"
}

func (c *ChangedError) Error() string {
	if c.Gone {
		return c.Device + " is gone"
	}
	return c.Device + ": " + strings.Join(c.Differences, "; ")
}

// Verify checks that a device still matches its snapshot in what a container
// depends on: identity, driver, PF, index, IOMMU group, and the owners of
// device nodes. Network and RDMA devices can already be in a pod and are not
// checked. The error is a *ChangedError, or a read error.
//
// It reads only the device's files: some ten microseconds.
func Verify(ctx context.Context, c DiscoverConfig, d Device) error {
	if a := d.Auxiliary; a != nil {
		return verify(ctx, c, a.Name, a.Parent, func(v *verification) error { return v.auxiliary(*a) })
	}
	f := *d.Function
	return verify(ctx, c, f.Address, f, func(v *verification) error { return v.function(f) })
}

var errGone = errors.New("it is gone")

type verification struct {
	root        sysfs.Dir
	differences []string
}

// verify rejects path separators: functions also come from stored records.
func verify(ctx context.Context, c DiscoverConfig, device string, f Function, compare func(*verification) error) error {
	err := ctx.Err()
	for _, address := range []string{f.Address, f.PF} {
		if !isAddress(address) {
			err = fmt.Errorf("%.40q is not a PCI address", address)
		}
	}
	for _, name := range []string{device, f.UIO, cmp.Or(f.VDPA, &VDPA{}).Name} {
		if strings.Contains(name, "/") {
			err = fmt.Errorf("%.40q is not a device name", name)
		}
	}
	var v verification
	if err == nil {
		v.root, err = sysfs.Open(cmp.Or(c.Sysfs, "/sys"))
	}
	if err == nil {
		defer v.root.Close()
		err = compare(&v)
	}
	switch {
	case errors.Is(err, errGone):
		return &ChangedError{Device: device, Gone: true}
	case err != nil:
		return fmt.Errorf("verify %s: %w", device, err)
	case len(v.differences) > 0:
		return &ChangedError{Device: device, Differences: v.differences}
	}
	return nil
}

func (v *verification) compare(what, is, was string) {
	if is != was {
		v.differences = append(v.differences, fmt.Sprintf("%s is %s, was %s", what, cmp.Or(is, "missing"), cmp.Or(was, "none")))
	}
}

func (v *verification) function(f Function) error {
	bus, err := v.root.Open("bus/pci/devices")
	if err != nil {
		return err
	}
	defer bus.Close()
	dir, err := bus.Open(f.Address)
	if err != nil {
		return goneIfAbsent(err)
	}
	defer dir.Close()
	err = errors.Join(v.identity(dir, f, ""), v.membership(bus, dir, f), v.userspace(f), v.charDevices(f.RDMA, devicePath{address: f.Address}))
	if len(v.differences) > 0 && !dir.Has("device") && !dir.Has("modalias") {
		return errGone
	}
	return err
}

func (v *verification) identity(dir sysfs.Dir, f Function, of string) error {
	var is Function
	if err := readIdentity(dir, &is); err != nil {
		return goneIfAbsent(err)
	}
	driver, err := linkBase(dir, "driver")
	if err != nil {
		return err
	}
	hex := func(class uint32) string { return fmt.Sprintf("0x%06x", class) }
	v.compare(of+"vendor", is.Vendor, f.Vendor)
	v.compare(of+"device", is.Device, f.Device)
	v.compare(of+"class", hex(is.Class), hex(f.Class))
	v.compare(of+"driver", driver, f.Driver)
	return nil
}

// membership compares the IOMMU group, the links between PF and VF, and the
// number of VFs.
func (v *verification) membership(bus, dir sysfs.Dir, f Function) error {
	group, err := readGroup(dir, f.Driver)
	if err != nil {
		return err
	}
	v.compare("IOMMU group", group, f.IOMMUGroup)
	physfn, err := linkBase(dir, "physfn")
	if err != nil {
		return err
	}
	v.compare("PF", cmp.Or(physfn, f.Address), f.PF)
	if f.VF != NoIndex {
		link := fmt.Sprintf("%s/virtfn%d", f.PF, f.VF)
		address, err := linkBase(bus, link)
		if err != nil {
			return err
		}
		v.compare(link, address, f.Address)
	}
	if f.TotalVFs > 0 {
		var has sriovCapability
		if err := has.readVirtual(dir); err != nil {
			return err
		}
		v.compare("number of virtual functions", strconv.Itoa(has.count()), strconv.Itoa(f.VFs))
	}
	return nil
}

func (v *verification) userspace(f Function) error {
	if f.UIO != "" {
		if err := v.owner("class/uio", f.UIO, 2, devicePath{address: f.Address}); err != nil {
			return err
		}
	}
	if f.VDPA == nil {
		return nil
	}
	const bus = "bus/vdpa/devices"
	if err := v.owner(bus, f.VDPA.Name, 1, devicePath{address: f.Address}); err != nil {
		return err
	}
	devices, err := v.root.Open(bus)
	if err != nil {
		return ignoreAbsent(err)
	}
	defer devices.Close()
	is, err := readVDPA(devices, f.VDPA.Name)
	if err != nil {
		return ignoreAbsent(err)
	}
	v.compare(f.VDPA.Name+"'s driver", is.Driver, f.VDPA.Driver)
	v.compare(f.VDPA.Name+"'s device node", is.Path, f.VDPA.Path)
	return nil
}

func (v *verification) auxiliary(a Auxiliary) error {
	const bus = "bus/auxiliary/devices"
	devices, err := v.root.Open(bus)
	if err != nil {
		return err
	}
	defer devices.Close()
	target, err := devices.Link(a.Name)
	if ignoreAbsent(err) != nil {
		return err
	}
	at := parseDevicePath(target, 1)
	v.compare("parent", at.String(), a.Parent.Address)
	is, exists, err := readAuxiliary(devices, a.Name)
	if err != nil {
		return err
	}
	if !exists {
		return errGone
	}
	v.compare("driver", is.Driver, a.Driver)
	v.compare("SF number", strconv.Itoa(is.Index), strconv.Itoa(a.Index))
	parent, err := v.root.Open("bus/pci/devices/" + a.Parent.Address)
	if err != nil {
		return goneIfAbsent(err)
	}
	defer parent.Close()
	if err := v.identity(parent, a.Parent, a.Parent.Address+"'s "); err != nil {
		return err
	}
	return v.charDevices(a.RDMA, devicePath{a.Parent.Address, a.Name})
}

// A device below a virtio device counts as directly below the function.
func (v *verification) owner(class, name string, own int, want devicePath) error {
	target := ""
	dir, err := v.root.Open(class)
	if err == nil {
		defer dir.Close()
		target, err = dir.Link(name)
	}
	if ignoreAbsent(err) != nil {
		return err
	}
	at := parseDevicePath(target, own)
	if at.isFunction() {
		at.below = ""
	}
	v.compare("owner of "+name, at.String(), want.String())
	return nil
}

// charDevices compares owners: after a rebind the old numbers can belong to
// another device.
func (v *verification) charDevices(devices []RDMA, want devicePath) error {
	for _, d := range devices {
		for _, c := range d.Devices {
			class := "class/infiniband_mad"
			switch c.Role {
			case "uverbs":
				class = "class/infiniband_verbs"
			case "rdma_cm":
				continue // shared by all
			}
			if err := v.owner(class, base(c.Path), 2, want); err != nil {
				return err
			}
		}
	}
	return nil
}

func goneIfAbsent(err error) error {
	if sysfs.IsAbsent(err) {
		return errGone
	}
	return err
}
