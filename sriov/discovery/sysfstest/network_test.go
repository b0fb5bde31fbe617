package sysfstest

import (
	"errors"
	"net"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/internal/linux/vflink"
)

// The answers are those of igb under Linux 6.12; test/vm/sriov asks it.
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
		if err := tree.Write(name, value); err != nil {
			t.Fatal(err)
		}
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
	// A function tells the address that it has chosen, and takes the one that was
	// set when its driver begins.
	table := func() (a, b vflink.VF) {
		t.Helper()
		l, err := n.Link(ctx, "eth0")
		if err != nil || len(l.VFs) != 2 {
			t.Fatalf("%+v, %v", l, err)
		}
		return l.VFs[0], l.VFs[1]
	}
	a, b := table()
	if b.Trust != vflink.On || b.Spoof != vflink.Off || a.Trust != vflink.Off || a.Spoof != vflink.On || a.MAC == nil {
		t.Errorf("%+v, %+v", a, b)
	}
	if err := n.SetMAC(ctx, "eth0", 1, mac); err != nil {
		t.Fatal(err)
	}
	own := func() string {
		t.Helper()
		l, err := tree.byName("eth0v1")
		if err != nil {
			t.Fatal(err)
		}
		return l.MAC
	}
	if own() == mac.String() {
		t.Error("a bound function has the address before its driver begins")
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
	if _, err := n.Link(ctx, "eth0"); !errors.Is(err, unix.ENODEV) {
		t.Errorf("the table of a PF without driver: %v", err)
	}
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
	if err := n.AddVDPA(ctx, "vdpa0", vf); !errors.Is(err, unix.EEXIST) {
		t.Error(err)
	}
	if err := n.DeleteVDPA(ctx, "vdpa0"); err != nil || len(tree.vdpa) != 0 {
		t.Error(err)
	}
}

func TestFaults(t *testing.T) {
	tree := New(t)
	tree.Add(Function{Address: "0000:3b:00.0", Vendor: "8086", Device: "10c9", Driver: "igb", TotalVFs: 7, VFDevice: "10ca"})
	const file = "bus/pci/devices/0000:3b:00.0/sriov_numvfs"
	met := 0
	tree.Fault(Fault{On: "sriov_numvfs 2", Err: unix.EIO, Times: 1, Met: func() { met++ }})
	tree.Fault(Fault{On: "sriov_numvfs 3", Err: unix.ENOMEM})
	for _, want := range []error{unix.EIO, nil} {
		if err := tree.Write(file, "2\n"); !errors.Is(err, want) {
			t.Errorf("%v, want %v", err, want)
		}
	}
	for range 2 {
		if err := tree.Write(file, "3"); !errors.Is(err, unix.ENOMEM) {
			t.Error(err)
		}
	}
	tree.NoFaults()
	if err := tree.Write(file, "3"); !errors.Is(err, unix.EBUSY) || met != 1 {
		t.Errorf("%v, met %d times", err, met)
	}
	if got := tree.Writes(); len(got) != 5 || got[4] != file+" 3" {
		t.Errorf("%q", got)
	}
}
