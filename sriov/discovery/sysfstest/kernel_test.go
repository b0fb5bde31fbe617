package sysfstest

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// The answers are those of igb under Linux 6.12.
func TestKernel(t *testing.T) {
	const (
		pf  = "bus/pci/devices/0000:3b:00.0/"
		vf0 = "0000:3b:02.0"
	)
	tree := New(t)
	tree.Add(Function{
		Address: "0000:3b:00.0", Vendor: "8086", Device: "10c9", Driver: "igb", Netdev: "eth0",
		TotalVFs: 7, VFDevice: "10ca", VFDriver: "igbvf",
	})
	tree.Strict()
	if err := tree.LoadDriver("pci", "vfio-pci"); err != nil {
		t.Fatal(err)
	}
	link := func(name string) string {
		to, err := os.Readlink(filepath.Join(tree.Sysfs, name))
		if err != nil {
			return ""
		}
		return filepath.Base(to)
	}
	for _, step := range []struct {
		name, value string
		want        error
		driver      string // of the first virtual function afterwards
	}{
		{pf + "sriov_numvfs", "8", unix.ERANGE, ""},
		{pf + "sriov_numvfs", "many", unix.EINVAL, ""},
		{pf + "sriov_numvfs", "2\n", nil, "igbvf"},
		{pf + "sriov_numvfs", "2", nil, "igbvf"},
		{pf + "sriov_numvfs", "3", unix.EBUSY, "igbvf"},
		{"bus/pci/drivers/vfio-pci/unbind", vf0, unix.ENODEV, "igbvf"},
		{"bus/pci/devices/" + vf0 + "/driver/unbind", vf0, nil, ""},
		{"bus/pci/devices/" + vf0 + "/driver_override", "vfio-pci", nil, ""},
		{"bus/pci/drivers/igbvf/bind", vf0, unix.ENODEV, ""},
		{"bus/pci/drivers_probe", vf0, nil, "vfio-pci"},
		{"bus/pci/drivers/vfio-pci/bind", vf0, unix.EBUSY, "vfio-pci"},
		{"bus/pci/devices/" + vf0 + "/vendor", "1", unix.EACCES, "vfio-pci"},
		{"bus/pci/drivers/vfio-pci/bind", "0000:00:00.0", unix.ENODEV, "vfio-pci"},
		{pf + "sriov_numvfs", "0", nil, ""},
		{pf + "sriov_drivers_autoprobe", "0", nil, ""},
		{pf + "sriov_numvfs", "7", nil, ""},
		{filepath.Join(tree.Sysfs, "bus/pci/drivers_probe"), vf0, nil, ""},
		{"bus/pci/drivers/igbvf/bind", vf0, unix.ENODEV, ""},
		{"bus/pci/drivers/none/bind", vf0, unix.ENOENT, ""},
		{pf + "sriov_drivers_autoprobe", "1", nil, ""},
		{"bus/pci/drivers/vfio-pci/bind", vf0, unix.ENODEV, ""},
		{"bus/pci/drivers/igbvf/bind", vf0, nil, "igbvf"},
		{"bus/pci/drivers/igbvf/unbind", vf0, nil, ""},
		{"bus/pci/drivers_probe", vf0, nil, "igbvf"},
	} {
		err := tree.Write(step.name, step.value)
		if !errors.Is(err, step.want) {
			t.Fatalf("write %q to %s: %v, want %v", step.value, step.name, err, step.want)
		}
		if got := link("bus/pci/devices/" + vf0 + "/driver"); got != step.driver {
			t.Fatalf("after %q to %s the driver is %q, want %q", step.value, step.name, got, step.driver)
		}
	}
	if link(pf+"virtfn6") != VirtualAddress(*tree.functions["0000:3b:00.0"], 6) || link("bus/pci/devices/"+vf0+"/physfn") != "0000:3b:00.0" {
		t.Error("the links between PF and virtual functions are wrong")
	}
	if link("class/net/eth0v0") != "eth0v0" || link("class/net/eth0v1") != "" { // the other was not probed
		t.Error("network devices are not those of the bound functions")
	}
}
