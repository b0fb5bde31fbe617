package discovery_test

import (
	"context"
	"testing"

	"github.com/cleatproject/cleat/internal/linux/netlinks"
	"github.com/cleatproject/cleat/sriov/discovery/sysfstest"
)

// Functions with the ids of a PF's virtual ones are found where those cannot be.
func TestNeighboursOfVirtualFunctions(t *testing.T) {
	tree := sysfstest.New(t)
	pf := mellanox()
	pf.Stride, pf.TotalVFs = 2, 2 // at 00.2 and 00.4
	tree.Add(pf)
	for address, found := range map[string]bool{
		"0000:3b:00.1": true, "0000:3b:00.2": false, "0000:3b:00.3": true, "0000:3b:00.4": false, "0000:3b:00.6": true, "0001:3b:00.2": true,
	} {
		tree.Add(sysfstest.Function{Address: address, Vendor: pf.Vendor, Device: pf.VFDevice, Driver: "vfio-pci"})
		is := false
		for _, f := range discover(t, configOf(tree)).Functions {
			is = is || f.Address == address
		}
		if is != found {
			t.Errorf("%s is found: %v", address, is)
		}
	}
}

func TestOrderByDomain(t *testing.T) {
	tree := sysfstest.New(t)
	for _, address := range []string{"10000:01:00.0", "ffff:01:00.0"} {
		tree.Add(sysfstest.Function{Address: address, Vendor: "8086", Device: "1572"})
	}
	if s := clean(t, tree); s.Functions[0].Address != "ffff:01:00.0" {
		t.Errorf("first is %s", s.Functions[0].Address)
	}
}

func TestSeveralRDMADevicesOfAFunction(t *testing.T) {
	tree := sysfstest.New(t)
	pf := mellanox()
	tree.Add(pf)
	for _, name := range []string{"mlx4_0", "mlx4_1"} {
		tree.AddRDMA(sysfstest.Device(pf.Address), name, "")
	}
	for i, r := range byAddress(t, clean(t, tree), pf.Address).RDMA {
		want := []string{"/dev/infiniband/uverbs0", "/dev/infiniband/uverbs1"}[i]
		if len(r.Devices) != 3 || r.Devices[2].Path != want {
			t.Errorf("%s has %+v", r.Name, r.Devices)
		}
	}
}

// late are links of which one gets its name after the first look.
type late struct {
	of    sysfstest.Links
	looks *int
}

func (l late) Links(ctx context.Context) ([]netlinks.Link, error) {
	links, err := l.of.Links(ctx)
	if *l.looks++; *l.looks == 1 {
		links = nil
	}
	return links, err
}

func (l late) DefaultRoutes(ctx context.Context) ([]int, error) { return l.of.DefaultRoutes(ctx) }

func TestRenamedMeanwhile(t *testing.T) {
	tree := sysfstest.New(t)
	pf := mellanox()
	tree.Add(pf)
	c, looks := configOf(tree), 0
	c.Links = late{sysfstest.Links{Tree: tree}, &looks}
	s := discover(t, c)
	if f := byAddress(t, s, pf.Address); len(s.Problems) != 0 || f.Netdevs[0].MAC == "" {
		t.Errorf("problems %v, device %+v", s.Problems, f.Netdevs)
	}
}
