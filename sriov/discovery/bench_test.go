package discovery_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cleatproject/cleat/internal/linux/devlink"
	"github.com/cleatproject/cleat/internal/linux/netlinks"
	"github.com/cleatproject/cleat/sriov/config"
	"github.com/cleatproject/cleat/sriov/discovery"
	"github.com/cleatproject/cleat/sriov/discovery/sysfstest"
	"github.com/cleatproject/cleat/sriov/pool"
)

var sizes = []int{64, 256, 512, 2048}

const perPF = 256

// crowd is a machine with so many virtual functions, 256 of a PF: all with
// network devices, a quarter with RDMA, and each PF with a DDP profile.
func crowd(tb testing.TB, count int) discovery.Config {
	tb.Helper()
	tree := sysfstest.New(tb)
	for left, pf := count, 0; left > 0; left, pf = left-perPF, pf+1 {
		p := sysfstest.Function{
			Address: fmt.Sprintf("%04x:3b:00.0", pf), Vendor: "15b3", Device: "101d", Driver: "mlx5_core", NUMA: pf % 2,
			IOMMUGroup: fmt.Sprint(pf), Netdev: fmt.Sprintf("ens%df0", pf), TotalVFs: perPF, VFDevice: "101e", VFDriver: "mlx5_core",
		}
		tree.Add(p)
		tree.Tell("pci", p.Address, devlink.Device{Profile: "COMMS", RDMA: true})
		for i, v := range setVirtual(tb, tree, p.Address, min(left, perPF)) {
			if i%4 == 0 {
				tree.AddRDMA(sysfstest.Device(v), fmt.Sprintf("mlx5_%d_%d", pf, i), "0xffff")
				tree.Tell("pci", v, devlink.Device{RDMA: true})
			}
		}
	}
	tree.AddLink("", netlinks.Link{Name: "lo", Encapsulation: "loopback"})
	return configOf(tree)
}

// crowded is a snapshot of a crowd.
func crowded(tb testing.TB, c discovery.Config, count int) *discovery.Snapshot {
	tb.Helper()
	s, err := discovery.Discover(tb.Context(), c)
	if err != nil || len(s.Problems) > 0 || len(s.Functions) != count+(count+perPF-1)/perPF {
		tb.Fatalf("%d functions, %v, %v", len(s.Functions), s.Problems, err)
	}
	return s
}

// halvesOf is two resources of each PF: VFs 0 to 127, and the rest.
func halvesOf(tb testing.TB, count int) config.Config {
	tb.Helper()
	var resources []string
	for pf := range (count + perPF - 1) / perPF {
		for half, vfs := range []string{"0-127", "128-255"} {
			resources = append(resources, fmt.Sprintf(`{"resourceName":"r%d_%d","selectors":[{"vendors":["15b3"],"drivers":["mlx5_core"],"pfNames":["ens%df0#%s"]}]}`, pf, half, pf, vfs))
		}
	}
	c, warnings, err := config.Parse([]byte(`{"resourceList":[`+strings.Join(resources, ",")+`]}`), config.Options{})
	if err != nil || len(warnings) > 0 {
		tb.Fatal(warnings, err)
	}
	return c
}

func assignedOf(a pool.Assignment) int {
	assigned := 0
	for _, p := range a.Pools {
		assigned += len(p.Members)
	}
	return assigned
}

// What the benchmarks measure is what they say.
func TestCrowd(t *testing.T) {
	const count = 300
	s := crowded(t, crowd(t, count), count)
	if assigned := assignedOf(pool.Assign(halvesOf(t, count), s, pool.Options{})); assigned != count {
		t.Errorf("%d of %d functions are in a pool", assigned, count)
	}
}

func BenchmarkDiscover(b *testing.B) {
	for _, count := range sizes {
		b.Run(fmt.Sprintf("functions=%d", count), func(b *testing.B) {
			c := crowd(b, count)
			b.ReportAllocs()
			for b.Loop() {
				crowded(b, c, count)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*count), "ns/function")
		})
	}
}

// BenchmarkDiscoverAndAssign is all that a plugin does before it knows what to
// offer: upstream takes 0.16 s, 1.6 s and 5.8 s for the first three sizes.
func BenchmarkDiscoverAndAssign(b *testing.B) {
	for _, count := range sizes {
		b.Run(fmt.Sprintf("functions=%d", count), func(b *testing.B) {
			c, resources := crowd(b, count), halvesOf(b, count)
			b.ReportAllocs()
			for b.Loop() {
				if assigned := assignedOf(pool.Assign(resources, crowded(b, c, count), pool.Options{})); assigned != count {
					b.Fatalf("%d functions are in a pool", assigned)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*count), "ns/function")
		})
	}
}
