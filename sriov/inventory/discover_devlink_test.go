package inventory_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/internal/linux/devlink"
	"github.com/cleatproject/cleat/internal/linux/netlinks"
	"github.com/cleatproject/cleat/sriov/inventory"
	"github.com/cleatproject/cleat/sriov/inventory/sysfstest"
)

// An E810 reports its profile on the PF, mlx5 RDMA capability per function.
func TestDrivers(t *testing.T) {
	tree := sysfstest.New(t)
	tree.Add(sysfstest.Function{Address: "0000:18:00.0", Vendor: "8086", Device: "1593", Driver: "ice", TotalVFs: 4, VFDevice: "1889", VFDriver: "iavf"})
	tree.Add(sysfstest.Function{Address: "0000:19:00.0", Vendor: "8086", Device: "1593", Driver: "ice"})
	tree.Add(sysfstest.Function{Address: "0000:1a:00.0", Vendor: "8086", Device: "1593", Driver: "vfio-pci"})
	ice := setVirtual(t, tree, "0000:18:00.0", 2)
	pf := mellanox()
	tree.Add(pf)
	mlx := setVirtual(t, tree, pf.Address, 5)
	sf, lent, plain := tree.AddScalable(pf.Address, 88), tree.AddScalable(pf.Address, 89), tree.AddScalable(pf.Address, 90)
	tree.AddRDMA(sysfstest.Device(pf.Address)+"/"+sf, "mlx5_9", "")
	for _, v := range []string{mlx[0], mlx[1]} {
		tree.AddRDMA(sysfstest.Device(v), "mlx5_"+v[len(v)-1:], "")
	}
	tree.SetDevlink("pci", "0000:18:00.0", devlink.Device{Profile: "ICE COMMS Package"})
	tree.SetDevlink("pci", ice[1], devlink.Device{Profile: "its own"})
	tree.SetDevlink("pci", "0000:1a:00.0", devlink.Device{Profile: "before", RDMA: true})
	tree.SetDevlink("pci", mlx[1], devlink.Device{RDMA: false})
	tree.SetDevlink("pci", mlx[2], devlink.Device{RDMA: true})
	tree.SetDevlink("netdevsim", mlx[3], devlink.Device{RDMA: true, Profile: "another's"})
	tree.SetDevlink("auxiliary", lent, devlink.Device{RDMA: true})
	s := clean(t, tree)
	for address, want := range map[string]struct {
		profile string
		rdma    bool
	}{
		"0000:18:00.0": {"ICE COMMS Package", false}, ice[0]: {"ICE COMMS Package", false}, ice[1]: {"its own", false},
		"0000:19:00.0": {}, "0000:1a:00.0": {},
		pf.Address: {},
		mlx[0]:     {"", true}, mlx[1]: {"", true}, mlx[2]: {"", true}, mlx[3]: {}, mlx[4]: {},
	} {
		if f := byAddress(t, s, address); f.DDPProfile != want.profile || f.RDMACapable != want.rdma {
			t.Errorf("%s has the profile %q and RDMA %t, want %+v", address, f.DDPProfile, f.RDMACapable, want)
		}
	}
	if f := byAddress(t, s, mlx[2]); f.RDMA != nil {
		t.Errorf("unexpected RDMA devices: %+v", f.RDMA)
	}
	for _, a := range s.Auxiliary {
		if want := a.Name != plain; a.RDMACapable != want {
			t.Errorf("%s can do RDMA: %t", a.Name, a.RDMACapable)
		}
	}
	if len(s.Auxiliary) != 3 {
		t.Errorf("%d auxiliary devices", len(s.Auxiliary))
	}
}

// The driver's profile is read through a Recent.
func withProfile(t *testing.T) (*sysfstest.Tree, inventory.DiscoverConfig) {
	tree := sysfstest.New(t)
	pf := mellanox()
	tree.Add(pf)
	tree.SetDevlink("pci", pf.Address, devlink.Device{Profile: "COMMS", RDMA: true})
	c := configOf(tree)
	c.Devlink = &devlink.Recent{Ask: sysfstest.Devlink{Tree: tree}.Devices}
	return tree, c
}

func ofDevlink(s *inventory.Snapshot) []inventory.Problem {
	return slices.DeleteFunc(slices.Clone(s.Problems), func(p inventory.Problem) bool { return p.What != inventory.WhatDevlink })
}

// Discovery ends in bounded time, with the last known profiles.
func TestHangingDriver(t *testing.T) {
	tree, c := withProfile(t)
	synctest.Test(t, func(t *testing.T) {
		if first := discover(t, c); len(first.Problems) != 0 || first.Functions[0].DDPProfile != "COMMS" {
			t.Fatalf("%+v", first)
		}
		hangs := make(chan struct{})
		tree.Fault(sysfstest.Fault{On: "devlink Devices", Until: hangs})
		for i, want := range []time.Duration{time.Second, 0} {
			began := time.Now()
			s := discover(t, c)
			if took := time.Since(began); took != want {
				t.Errorf("the machine was read in %s, want %s at try %d", took, want, i)
			}
			if p := ofDevlink(s); len(p) != 1 || !errors.Is(p[0].Err, devlink.ErrLate) || len(s.Problems) != 1 {
				t.Errorf("problems: %+v", s.Problems)
			}
			if f := s.Functions[0]; f.DDPProfile != "COMMS" || !f.RDMACapable {
				t.Errorf("the last known profile is lost: %+v", f)
			}
		}
		tree.ClearFaults()
		close(hangs)
		synctest.Wait()
		if s := discover(t, c); len(s.Problems) != 0 {
			t.Errorf("after the driver resumed: %+v", s.Problems)
		}
	})
}

func TestFailingDriver(t *testing.T) {
	tree, c := withProfile(t)
	discover(t, c)
	tree.Fault(sysfstest.Fault{On: "devlink Devices", Err: unix.EIO})
	s := discover(t, c)
	if p := ofDevlink(s); len(p) != 1 || !errors.Is(p[0].Err, unix.EIO) || s.Functions[0].DDPProfile != "COMMS" {
		t.Errorf("%+v", s)
	}
	c.Devlink = inventory.NoDevlink{}
	if s := discover(t, c); len(s.Problems) != 0 || s.Functions[0].DDPProfile != "" || s.Functions[0].RDMACapable {
		t.Errorf("without devlink, found %+v", s)
	}
	c.Devlink = nil
	if s := discover(t, c); len(s.Problems) != 0 || s.Functions[0].DDPProfile != "" {
		t.Errorf("with this machine's devlink, found %+v", s)
	}
}

func TestContextEndsWhileDriverHangs(t *testing.T) {
	tree, c := withProfile(t)
	synctest.Test(t, func(t *testing.T) {
		hangs := make(chan struct{})
		defer close(hangs)
		ctx, cancel := context.WithCancel(t.Context())
		tree.Fault(sysfstest.Fault{On: "devlink Devices", Until: hangs, OnHit: cancel})
		if s, err := inventory.Discover(ctx, c); !errors.Is(err, context.Canceled) {
			t.Errorf("%+v, %v", s, err)
		}
	})
}

// VF ids at addresses that no VF can have.
func TestNeighboursOfVirtualFunctions(t *testing.T) {
	tree := sysfstest.New(t)
	pf := mellanox()
	pf.Stride, pf.TotalVFs = 2, 2
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
