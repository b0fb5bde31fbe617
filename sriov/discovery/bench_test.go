package discovery_test

import (
	"fmt"
	"testing"

	"github.com/cleatproject/cleat/internal/linux/netlinks"
	"github.com/cleatproject/cleat/sriov/discovery"
	"github.com/cleatproject/cleat/sriov/discovery/sysfstest"
)

// BenchmarkDiscover reads machines with so many virtual functions, 256 of a PF:
// all with network devices, and a quarter with RDMA.
func BenchmarkDiscover(b *testing.B) {
	for _, count := range []int{64, 256, 512, 2048} {
		b.Run(fmt.Sprintf("functions=%d", count), func(b *testing.B) {
			tree := sysfstest.New(b)
			for left, pf := count, 0; left > 0; left, pf = left-256, pf+1 {
				p := sysfstest.Function{
					Address: fmt.Sprintf("%04x:3b:00.0", pf), Vendor: "15b3", Device: "101d", Driver: "mlx5_core", NUMA: pf % 2,
					IOMMUGroup: fmt.Sprint(pf), Netdev: fmt.Sprintf("ens%df0", pf), TotalVFs: 256, VFDevice: "101e", VFDriver: "mlx5_core",
				}
				tree.Add(p)
				if err := tree.Write("bus/pci/devices/"+p.Address+"/sriov_numvfs", fmt.Sprint(min(left, 256))); err != nil {
					b.Fatal(err)
				}
				for i, v := range tree.Virtual(p.Address) {
					if i%4 == 0 {
						tree.AddRDMA(sysfstest.Device(v), fmt.Sprintf("mlx5_%d_%d", pf, i), "0xffff")
					}
				}
			}
			tree.AddLink("", netlinks.Link{Name: "lo", Encapsulation: "loopback"})
			config := discovery.Config{Sysfs: tree.Sysfs, Dev: tree.Dev, Links: sysfstest.Links{Tree: tree}}
			for b.Loop() {
				s, err := discovery.Discover(b.Context(), config)
				if err != nil || len(s.Problems) > 0 || len(s.Functions) != count+(count+255)/256 {
					b.Fatalf("%d functions, %v, %v", len(s.Functions), s.Problems, err)
				}
			}
		})
	}
}
