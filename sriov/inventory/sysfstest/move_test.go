package sysfstest_test

import (
	"slices"
	"testing"

	"github.com/cleatproject/cleat/internal/linux/devlink"
	"github.com/cleatproject/cleat/sriov/inventory"
	"github.com/cleatproject/cleat/sriov/inventory/sysfstest"
	"github.com/cleatproject/cleat/test/testkit"
)

func TestRemovedDevicesLeaveConsistentTree(t *testing.T) {
	const pf = "0000:3b:00.0"
	tree := sysfstest.New(t)
	tree.Add(sysfstest.Function{Address: pf, Vendor: "15b3", Device: "101d", Driver: "mlx5_core", Netdev: "ens1", TotalVFs: 4, VFDevice: "101e", VFDriver: "mlx5_core"})
	numvfs := func(n string) {
		t.Helper()
		testkit.Must(t, tree.Write(sysfstest.Device(pf)+"/sriov_numvfs", n))
	}
	functions := func() []inventory.Function {
		t.Helper()
		s, err := inventory.Discover(t.Context(), inventory.DiscoverConfig{
			Sysfs: tree.Sysfs, Dev: tree.Dev, Links: sysfstest.Links{Tree: tree}, Devlink: sysfstest.Devlink{Tree: tree}})
		if err != nil || len(s.Problems) > 0 {
			t.Fatalf("%v, %+v", err, s)
		}
		return s.Functions
	}
	numvfs("2")
	vf := tree.Virtual(pf)[1]
	tree.AddRDMA(sysfstest.Device(vf), "mlx5_1", "0xffff")
	tree.SetDevlink("pci", vf, devlink.Device{RDMA: true})
	tree.RenameLink("ens1", "uplink")
	tree.RenameLink("ens1v1", "net7")
	f := functions()
	if names := f[0].PFNames; !slices.Equal(names, []string{"uplink"}) || !slices.Equal(f[2].PFNames, names) {
		t.Errorf("the PF's names are %v and %v", names, f[2].PFNames)
	}
	if n := f[2].Netdevs; len(n) != 1 || n[0].Name != "net7" || n[0].Link != "ether" {
		t.Errorf("the VF's network devices are %+v", n)
	}
	if len(f[2].RDMA) != 1 || len(f[2].RDMA[0].Devices) != 3 {
		t.Errorf("RDMA: %+v", f[2].RDMA)
	}
	tree.RemoveRDMA("mlx5_1")
	if f := functions()[2]; f.RDMA != nil || !f.RDMACapable || f.PKey != "" {
		t.Errorf("RDMA went: %+v", f)
	}
	tree.AddRDMA(sysfstest.Device(vf), "mlx5_1", "")
	if f := functions()[2]; len(f.RDMA) != 1 {
		t.Errorf("RDMA came back: %+v", f)
	}
	numvfs("0")
	numvfs("1")
	if f := functions(); len(f) != 2 || f[1].RDMA != nil || f[1].Netdevs[0].Name != "uplinkv0" {
		t.Errorf("%+v", f)
	}
}
