package inventory_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/cleatproject/cleat/internal/linux/netlinks"
	"github.com/cleatproject/cleat/sriov/inventory"
	"github.com/cleatproject/cleat/sriov/inventory/sysfstest"
	"github.com/cleatproject/cleat/test/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func configOf(tree *sysfstest.Tree) inventory.DiscoverConfig {
	return inventory.DiscoverConfig{Sysfs: tree.Sysfs, Dev: tree.Dev, Links: sysfstest.Links{Tree: tree}, Devlink: sysfstest.Devlink{Tree: tree}}
}

func discover(t testing.TB, c inventory.DiscoverConfig) *inventory.Snapshot {
	t.Helper()
	return testkit.Value(inventory.Discover(t.Context(), c))(t)
}

func clean(t testing.TB, tree *sysfstest.Tree) *inventory.Snapshot {
	t.Helper()
	s := discover(t, configOf(tree))
	for _, p := range s.Problems {
		t.Errorf("%s: %v", p.What, p.Err)
	}
	return s
}

func byAddress(t testing.TB, s *inventory.Snapshot, address string) inventory.Function {
	t.Helper()
	for _, f := range s.Functions {
		if f.Address == address {
			return f
		}
	}
	t.Fatalf("%s was not found", address)
	return inventory.Function{}
}

func mellanox() sysfstest.Function {
	return sysfstest.Function{
		Address: "0000:3b:00.0", Vendor: "15b3", Device: "101d", Driver: "mlx5_core", NUMA: 1, IOMMUGroup: "17", ACPIIndex: "101",
		Netdev: "ens1f0np0", TotalVFs: 8, VFDevice: "101e", VFDriver: "mlx5_core", Offset: 2,
	}
}

func setVirtual(t testing.TB, tree *sysfstest.Tree, pf string, n int) []string {
	t.Helper()
	testkit.Must(t, tree.Write("bus/pci/devices/"+pf+"/sriov_numvfs", fmt.Sprint(n)))
	return tree.Virtual(pf)
}

func TestFunctionProperties(t *testing.T) {
	tree := sysfstest.New(t)
	pf := mellanox()
	tree.Add(pf)
	tree.Add(sysfstest.Function{Address: "0000:00:02.0", Class: 0x018000, Vendor: "1af4", Device: "1042", Driver: "virtio-pci"})
	tree.Add(sysfstest.Function{Address: "10000:01:00.0", Class: 0x120000, Vendor: "8086", Device: "0d5c", NUMA: -1})
	virtual := setVirtual(t, tree, pf.Address, 2)
	tree.ChangeLink("ens1f0np0", func(l *netlinks.Link) { l.Names, l.MTU, l.MAC = []string{"enp59s0"}, 9000, "0c:42:a1:00:00:01" })
	tree.ChangeLink("ens1f0np0v1", func(l *netlinks.Link) { l.MAC, l.Running = "0c:42:a1:00:00:12", false })
	tree.AddRDMA(sysfstest.Device(virtual[1]), "mlx5_3", "0x8001")
	tree.AddVDPA(virtual[1], "vhost_vdpa")
	testkit.Must(t, os.WriteFile(filepath.Join(tree.Dev, "infiniband/rdma_cm"), nil, 0o600))

	uplink := inventory.Netdev{Name: "ens1f0np0", Names: []string{"enp59s0"}, Link: "ether", MAC: "0c:42:a1:00:00:01", MTU: 9000, Up: true}
	names := []string{"ens1f0np0", "enp59s0"}
	want := []inventory.Function{
		{
			Address: "0000:3b:00.0", Kind: inventory.NetworkClass, Class: 0x020000, Vendor: "15b3", Device: "101d", Driver: "mlx5_core", NUMA: 1,
			PF: "0000:3b:00.0", PFNames: names, VF: inventory.NoIndex, VFs: 2, TotalVFs: 8,
			Netdevs: []inventory.Netdev{uplink}, ACPIIndex: "101", IOMMUGroup: "17",
		},
		{
			Address: "0000:3b:00.2", Kind: inventory.NetworkClass, Class: 0x020000, Vendor: "15b3", Device: "101e", Driver: "mlx5_core", NUMA: 1,
			PF: "0000:3b:00.0", PFNames: names, VF: 0, IOMMUGroup: "1000",
			Netdevs: []inventory.Netdev{{Name: "ens1f0np0v0", Link: "ether", MAC: "02:00:5e:00:00:02", MTU: 1500, Up: true}},
		},
		{
			Address: "0000:3b:00.3", Kind: inventory.NetworkClass, Class: 0x020000, Vendor: "15b3", Device: "101e", Driver: "mlx5_core", NUMA: 1,
			PF: "0000:3b:00.0", PFNames: names, VF: 1, IOMMUGroup: "1001",
			Netdevs: []inventory.Netdev{{Name: "ens1f0np0v1", Link: "ether", MAC: "0c:42:a1:00:00:12", MTU: 1500}},
			RDMA: []inventory.RDMA{{Name: "mlx5_3", Devices: []inventory.CharDevice{
				{Role: "issm", Path: "/dev/infiniband/issm0"}, {Role: "umad", Path: "/dev/infiniband/umad0"},
				{Role: "uverbs", Path: "/dev/infiniband/uverbs0"}, {Role: "rdma_cm", Path: "/dev/infiniband/rdma_cm"},
			}}},
			RDMACapable: true, PKey: "0x8001",
			VDPA: &inventory.VDPA{Name: "vdpa0", Driver: "vhost_vdpa", Path: "/dev/vhost-vdpa-0"},
		},
		{
			Address: "10000:01:00.0", Kind: inventory.AcceleratorClass, Class: 0x120000, Vendor: "8086", Device: "0d5c", NUMA: inventory.NoNode,
			PF: "10000:01:00.0", VF: inventory.NoIndex,
		},
	}
	testkit.Diff(t, "result", want, clean(t, tree).Functions)
}

func TestUserSpaceDrivers(t *testing.T) {
	tree := sysfstest.New(t)
	pf := mellanox()
	tree.Add(pf)
	v := setVirtual(t, tree, pf.Address, 2)
	for _, w := range [][2]string{
		{"bus/pci/drivers/mlx5_core/unbind", v[0]},
		{"bus/pci/devices/" + v[0] + "/driver_override", "vfio-pci"},
		{"bus/pci/drivers_probe", v[0]},
	} {
		testkit.Must(t, tree.Write(w[0], w[1]))
	}
	tree.Add(sysfstest.Function{Address: "0000:5e:00.0", Vendor: "8086", Device: "1572", Driver: "vfio-pci"})
	tree.GroupWithoutIOMMU("0000:5e:00.0", "3")
	tree.Add(sysfstest.Function{Address: "0000:5e:00.1", Vendor: "8086", Device: "1572", Driver: "igb_uio"})
	tree.AddUIO("0000:5e:00.1")
	tree.AddVDPA(v[1], "virtio_vdpa")
	s := clean(t, tree)
	if f := byAddress(t, s, v[0]); f.Driver != "vfio-pci" || f.IOMMUGroup != "1000" || f.Netdevs != nil || f.VF != 0 {
		t.Errorf("a virtual function of VFIO is %+v", f)
	}
	if f := byAddress(t, s, "0000:5e:00.0"); f.IOMMUGroup != "noiommu-3" {
		t.Errorf("without an IOMMU the group is %q", f.IOMMUGroup)
	}
	if f := byAddress(t, s, "0000:5e:00.1"); f.UIO != "uio0" {
		t.Errorf("the UIO device is %q", f.UIO)
	}
	if f := byAddress(t, s, v[1]); f.VDPA == nil || *f.VDPA != (inventory.VDPA{Name: "vdpa0", Driver: "virtio_vdpa"}) {
		t.Errorf("the vDPA device is %+v", f.VDPA)
	}
}

func TestScalableFunctions(t *testing.T) {
	tree := sysfstest.New(t)
	pf := mellanox()
	tree.Add(pf)
	name := tree.AddScalable(pf.Address, 88)
	at := sysfstest.Device(pf.Address) + "/" + name
	index := tree.AddLink(at, netlinks.Link{Name: "ens1f0s88", Running: true})
	tree.AddRDMA(at, "mlx5_7", "")
	tree.Link("bus/auxiliary/devices/mlx5_core.eth.0", sysfstest.Device(pf.Address)+"/mlx5_core.eth.0")
	tree.Route(index)
	s := clean(t, tree)
	if len(s.Auxiliary) != 1 {
		t.Fatalf("auxiliary devices: %+v", s.Auxiliary)
	}
	a := s.Auxiliary[0]
	if a.Name != name || a.Type != "sf" || a.Index != 88 || a.Driver != "mlx5_core.sf" || a.Parent.Address != pf.Address ||
		len(a.Netdev) != 1 || a.Netdev[0].Name != "ens1f0s88" || len(a.RDMA) != 1 || len(a.RDMA[0].Devices) != 3 || !a.DefaultRoute {
		t.Errorf("%+v", a)
	}
	if f := s.Functions[0]; f.DefaultRoute || f.RDMACapable || len(f.Netdevs) != 1 {
		t.Errorf("the PF has devices of the scalable function: %+v", f)
	}
}

func TestRepresentors(t *testing.T) {
	for name, numbered := range map[string]string{"with the PF": "pf1vf%d", "of older kernels": "%d"} {
		t.Run(name, func(t *testing.T) {
			tree := sysfstest.New(t)
			pf := mellanox()
			pf.Address = "0000:3b:00.1"
			tree.Add(pf)
			v := setVirtual(t, tree, pf.Address, 2)
			tree.ChangeLink(pf.Netdev, func(l *netlinks.Link) { l.SwitchID, l.PortName = "a0b1", "p1" })
			for i := range v {
				// It sorts before the uplink.
				tree.AddLink(sysfstest.Device(pf.Address), netlinks.Link{Name: fmt.Sprintf("a_%d", i), SwitchID: "a0b1", PortName: fmt.Sprintf(numbered, i)})
			}
			tree.AddLink("", netlinks.Link{Name: "other", SwitchID: "a0b1", PortName: "pf0vf1"})
			tree.AddLink("", netlinks.Link{Name: "far", SwitchID: "ffff", PortName: "pf1vf1"})
			tree.AddLink("", netlinks.Link{Name: "host", SwitchID: "a0b1", PortName: "c1pf1vf1"})
			s := clean(t, tree)
			for i := range v {
				if f := byAddress(t, s, v[i]); f.Representor != fmt.Sprintf("a_%d", i) || f.PFNames[0] != pf.Netdev {
					t.Errorf("VF %d has the representor %q and a PF called %q", i, f.Representor, f.PFNames)
				}
			}
			if f := byAddress(t, s, pf.Address); len(f.Netdevs) != 1 {
				t.Errorf("the PF has %+v", f.Netdevs)
			}
		})
	}
}

func TestDefaultRoutes(t *testing.T) {
	const nic = "0000:3b:00.0"
	for name, c := range map[string]struct {
		above func(tree *sysfstest.Tree, nic int) int
		want  bool
	}{
		"none":      {func(*sysfstest.Tree, int) int { return 0 }, false},
		"its own":   {func(_ *sysfstest.Tree, nic int) int { return nic }, true},
		"unrelated": {func(tree *sysfstest.Tree, _ int) int { return tree.AddLink("", netlinks.Link{Name: "dummy0"}) }, false},
		"vlan":      {func(tree *sysfstest.Tree, nic int) int { return tree.AddLink("", netlinks.Link{Name: "v", Lower: nic}) }, true},
		"bond": {func(tree *sysfstest.Tree, _ int) int {
			bond := tree.AddLink("", netlinks.Link{Name: "bond0", Kind: "bond"})
			tree.ChangeLink("eth0", func(l *netlinks.Link) { l.Master = bond })
			return bond
		}, true},
		"vlan on a bond in a bridge": {func(tree *sysfstest.Tree, _ int) int {
			bond := tree.AddLink("", netlinks.Link{Name: "bond0"})
			bridge := tree.AddLink("", netlinks.Link{Name: "br0"})
			tree.AddLink("", netlinks.Link{Name: "v", Lower: bond, Master: bridge})
			tree.ChangeLink("eth0", func(l *netlinks.Link) { l.Master = bond })
			return bridge
		}, true},
		"port of Open vSwitch": {func(tree *sysfstest.Tree, _ int) int {
			datapath := tree.AddLink("", netlinks.Link{Name: "ovs-system", Kind: "openvswitch"})
			tree.ChangeLink("eth0", func(l *netlinks.Link) { l.Master = datapath })
			return tree.AddLink("", netlinks.Link{Name: "br-ex", Kind: "openvswitch"})
		}, true},
		"cycle": {func(tree *sysfstest.Tree, nic int) int {
			a := tree.AddLink("", netlinks.Link{Name: "a", Lower: nic})
			b := tree.AddLink("", netlinks.Link{Name: "b", Lower: a})
			tree.ChangeLink("a", func(l *netlinks.Link) { l.Master = b })
			return b
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			tree := sysfstest.New(t)
			tree.Add(sysfstest.Function{Address: nic, Vendor: "1af4", Device: "1041", Driver: "virtio-pci"})
			index := tree.AddLink(sysfstest.Device(nic)+"/virtio2", netlinks.Link{Name: "eth0"})
			tree.Route(c.above(tree, index))
			if f := byAddress(t, clean(t, tree), nic); f.DefaultRoute != c.want || len(f.Netdevs) != 1 {
				t.Errorf("default route %v, devices %v", f.DefaultRoute, f.Netdevs)
			}
		})
	}
}

func TestWithoutSysfs(t *testing.T) {
	_, err := inventory.Discover(t.Context(), inventory.DiscoverConfig{Sysfs: filepath.Join(t.TempDir(), "none")})
	if err == nil || !strings.Contains(err.Error(), "none") {
		t.Errorf("no sysfs: %v", err)
	}
	s := discover(t, inventory.DiscoverConfig{Sysfs: t.TempDir(), Links: sysfstest.Links{Tree: sysfstest.New(t)}})
	if len(s.Functions) != 0 || len(s.Problems) != 1 || s.Problems[0].What != "bus/pci/devices" {
		t.Errorf("an empty directory: %+v", s)
	}
}

func TestEndedContext(t *testing.T) {
	ctx := testkit.Canceled(t)
	testkit.WantError(t, "an ended context", testkit.Err(inventory.Discover(ctx, configOf(sysfstest.New(t)))), context.Canceled)
}

func TestLinksFail(t *testing.T) {
	tree := sysfstest.New(t)
	tree.Add(mellanox())
	c := configOf(tree)
	c.Links = sysfstest.Links{Tree: tree, LinksErr: os.ErrPermission, RoutesErr: os.ErrPermission}
	s := discover(t, c)
	var what []string
	for _, p := range s.Problems {
		what = append(what, p.What)
	}
	testkit.Diff(t, "result", []string{inventory.WhatRoutes, inventory.WhatLinks}, what)
	if f := s.Functions[0]; len(f.Netdevs) != 1 || f.Netdevs[0].Name != "ens1f0np0" {
		t.Errorf("the name in sysfs is lost: %+v", f)
	}
}

func TestThisMachine(t *testing.T) {
	s := discover(t, inventory.DiscoverConfig{})
	for _, p := range s.Problems {
		t.Logf("%s: %v", p.What, p.Err)
	}
	for _, f := range s.Functions {
		if f.Vendor == "" || f.Device == "" || f.PF == "" {
			t.Errorf("a function is incomplete: %+v", f)
		}
	}
}
