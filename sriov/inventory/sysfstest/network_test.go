package sysfstest

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/internal/linux/netlinks"
	"github.com/cleatproject/cleat/test/testkit"
)

// As igb on Linux 6.12.
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
	testkit.Must(t, tree.LoadDriver("pci", "vfio-pci"))
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
		driver      string
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
		if err := tree.Write(step.name, step.value); !errors.Is(err, step.want) {
			t.Fatalf("write %q to %s: %v, want %v", step.value, step.name, err, step.want)
		}
		if got := link("bus/pci/devices/" + vf0 + "/driver"); got != step.driver {
			t.Fatalf("after %q to %s the driver is %q, want %q", step.value, step.name, got, step.driver)
		}
	}
	if link(pf+"virtfn6") != VirtualAddress(*tree.functions["0000:3b:00.0"], 6) || link("bus/pci/devices/"+vf0+"/physfn") != "0000:3b:00.0" {
		t.Error("the links between PF and virtual functions are wrong")
	}
	if link("class/net/eth0v0") != "eth0v0" || link("class/net/eth0v1") != "" {
		t.Error("network devices are not those of the bound functions")
	}
}

// As igb on Linux 6.12; test/vm/sriov verifies it.
func TestNetwork(t *testing.T) {
	const pf, vf1 = "0000:3b:00.0", "0000:3b:02.1"
	tree := New(t)
	tree.Add(Function{
		Address: pf, Vendor: "8086", Device: "10c9", Driver: "igb", Netdev: "eth0",
		TotalVFs: 7, VFDevice: "10ca", VFDriver: "igbvf",
	})
	tree.Add(Function{Address: "0000:5e:00.0", Vendor: "8086", Device: "100e", Driver: "e1000", Netdev: "lan"})
	write := func(name, value string) {
		t.Helper()
		testkit.Must(t, tree.Write(name, value))
	}
	write("bus/pci/devices/"+pf+"/sriov_numvfs", "2")
	n, ctx := Network{Tree: tree}, t.Context()
	mac := net.HardwareAddr{2, 0, 0, 0, 0, 1}
	for name, c := range map[string]struct{ err, want error }{
		"index":            {n.SetTrust(ctx, "eth0", 2, true), unix.EINVAL},
		"negative index":   {n.SetTrust(ctx, "eth0", -1, true), unix.EINVAL},
		"no PF":            {n.SetTrust(ctx, "lan", 0, true), unix.EOPNOTSUPP},
		"VF's link":        {n.SetTrust(ctx, "eth0v0", 0, true), unix.EOPNOTSUPP},
		"no link":          {n.SetTrust(ctx, "none", 0, true), unix.ENODEV},
		"address":          {n.SetMAC(ctx, "eth0", 0, net.HardwareAddr{1, 0, 0x5e, 0, 0, 1}), unix.EINVAL},
		"GUID of Ethernet": {n.SetGUIDs(ctx, "eth0", 0, 1, 1), unix.EOPNOTSUPP},
		"MTU":              {n.SetMTU(ctx, "eth0", 60000), unix.EINVAL},
		"no switch":        {n.SetESwitch(ctx, pf, "switchdev"), unix.EOPNOTSUPP},
		"no parent":        {n.AddVDPA(ctx, "vdpa0", "0000:99:00.0"), unix.ENODEV},
		"no vDPA":          {n.DeleteVDPA(ctx, "vdpa0"), unix.ENODEV},
		"right":            {errors.Join(n.SetTrust(ctx, "eth0", 1, true), n.SetSpoofCheck(ctx, "eth0", 1, false)), nil},
	} {
		if !errors.Is(c.err, c.want) {
			t.Errorf("%s: %v, want %v", name, c.err, c.want)
		}
	}
	// A function has its driver's address, or the administrative one from the
	// next bind on.
	table := func() (a, b netlinks.VF) {
		t.Helper()
		l, err := n.Link(ctx, "eth0")
		if err != nil || len(l.VFs) != 2 {
			t.Fatalf("%+v, %v", l, err)
		}
		return l.VFs[0], l.VFs[1]
	}
	a, b := table()
	if b.Trust != netlinks.On || b.Spoof != netlinks.Off || a.Trust != netlinks.Off || a.Spoof != netlinks.On || a.MAC == nil {
		t.Errorf("%+v, %+v", a, b)
	}
	testkit.Must(t, n.SetMAC(ctx, "eth0", 1, mac))
	own := func() string {
		t.Helper()
		l := testkit.Value(tree.byName("eth0v1"))(t)
		return l.MAC
	}
	if own() == mac.String() {
		t.Error("a bound function has the new address before it is bound again")
	}
	write("bus/pci/drivers/igbvf/unbind", vf1)
	write("bus/pci/drivers/igbvf/bind", vf1)
	if own() != mac.String() || tree.Entry(vf1).MAC.String() != mac.String() {
		t.Errorf("bound again with %s", own())
	}
	if err := n.SetMAC(ctx, "eth0", 1, make(net.HardwareAddr, 6)); err != nil || tree.Entry(vf1).MAC != nil {
		t.Errorf("%+v, %v", tree.Entry(vf1), err)
	}
	write("bus/pci/drivers/igbvf/unbind", vf1)
	write("bus/pci/drivers/igbvf/bind", vf1)
	if own() == mac.String() || own() != tree.Entry(vf1).MAC.String() {
		t.Errorf("bound again with %s, in the table %s", own(), tree.Entry(vf1).MAC)
	}
	write("bus/pci/drivers/igb/unbind", pf)
	testkit.WantError(t, "the table of a PF without driver", testkit.Err(n.Link(ctx, "eth0")), unix.ENODEV)
}

func TestVDPA(t *testing.T) {
	const pf, vf = "0000:3b:00.0", "0000:3b:02.0"
	tree := New(t)
	tree.Add(Function{Address: pf, Vendor: "15b3", Device: "1017", Driver: "mlx5_core", Netdev: "eth0", TotalVFs: 2, VFDevice: "1018", VFDriver: "mlx5_core"})
	n, ctx := Network{Tree: tree}, t.Context()
	for i, err := range []error{
		tree.Write("bus/pci/devices/"+pf+"/sriov_numvfs", "1"), tree.LoadDriver("vdpa", "vhost_vdpa"),
		n.AddVDPA(ctx, "vdpa0", vf), tree.LoadDriver("vdpa", "virtio_vdpa"),
	} {
		if err != nil {
			t.Fatalf("%d: %v", i, err)
		}
	}
	for _, c := range []struct {
		name, value string
		want        error
	}{
		{"virtio_vdpa/bind", "vdpa0", unix.EBUSY},
		{"virtio_vdpa/unbind", "vdpa0", unix.ENODEV},
		{"vhost_vdpa/unbind", "vdpa1", unix.ENODEV},
		{"none/unbind", "vdpa0", unix.ENOENT},
		{"vhost_vdpa/unbind", "vdpa0", nil},
		{"virtio_vdpa/bind", "vdpa0", nil},
	} {
		if err := tree.Write("bus/vdpa/drivers/"+c.name, c.value); !errors.Is(err, c.want) {
			t.Errorf("%s %s: %v, want %v", c.name, c.value, err, c.want)
		}
	}
	testkit.WantError(t, "AddVDPA", n.AddVDPA(ctx, "vdpa0", vf), unix.EEXIST)
	if err := n.DeleteVDPA(ctx, "vdpa0"); err != nil || len(tree.vdpa) != 0 {
		t.Error(err)
	}
}

func TestFaults(t *testing.T) {
	tree := New(t)
	tree.Add(Function{Address: "0000:3b:00.0", Vendor: "8086", Device: "10c9", Driver: "igb", TotalVFs: 7, VFDevice: "10ca"})
	const file = "bus/pci/devices/0000:3b:00.0/sriov_numvfs"
	met := 0
	tree.Fault(Fault{On: "sriov_numvfs 2", Err: unix.EIO, Times: 1, OnHit: func() { met++ }})
	tree.Fault(Fault{On: "sriov_numvfs 3", Err: unix.ENOMEM})
	for _, want := range []error{unix.EIO, nil} {
		if err := tree.Write(file, "2\n"); !errors.Is(err, want) {
			t.Errorf("Write: %v, want %v", err, want)
		}
	}
	for range 2 {
		testkit.WantError(t, "Write", tree.Write(file, "3"), unix.ENOMEM)
	}
	tree.ClearFaults()
	if err := tree.Write(file, "3"); !errors.Is(err, unix.EBUSY) || met != 1 {
		t.Errorf("%v, met %d times", err, met)
	}
	if got := tree.Writes(); len(got) != 5 || got[4] != file+" 3" {
		t.Errorf("%q", got)
	}
}
