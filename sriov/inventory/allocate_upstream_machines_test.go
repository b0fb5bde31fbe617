package inventory_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/cleatproject/cleat/internal/linux/devlink"
	"github.com/cleatproject/cleat/internal/linux/netlinks"
	"github.com/cleatproject/cleat/sriov/inventory"
	"github.com/cleatproject/cleat/sriov/inventory/sysfstest"
	"github.com/cleatproject/cleat/test/testkit"
)

type machine struct {
	*sysfstest.Tree
	t *testing.T
}

func newMachine(t *testing.T) machine {
	m := machine{sysfstest.New(t), t}
	m.dev("vhost-net", "net/tun", "infiniband/rdma_cm", "vfio/vfio")
	return m
}

func (m machine) dev(names ...string) {
	m.t.Helper()
	for _, name := range names {
		path := filepath.Join(m.Dev, name)
		testkit.Must(m.t, os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, nil, 0o600))
	}
}

func (m machine) write(name, value string) {
	m.t.Helper()
	testkit.Must(m.t, m.Write(name, value))
}

func (m machine) pf(f sysfstest.Function, virtual int) []string {
	m.t.Helper()
	f.TotalVFs, f.IOMMUGroup = 64, "1"
	m.Add(f)
	if virtual > 0 {
		m.write("bus/pci/devices/"+f.Address+"/sriov_numvfs", fmt.Sprint(virtual))
	}
	return m.Virtual(f.Address)
}

func (m machine) rebind(address, from, to string) {
	m.t.Helper()
	m.write("bus/pci/drivers/"+from+"/unbind", address)
	if to != "" {
		m.write("bus/pci/devices/"+address+"/driver_override", to)
		m.write("bus/pci/drivers_probe", address)
	}
}

func (m machine) rdma(at, name string) {
	n := m.AddRDMA(at, name, "0x8001")
	for _, role := range []string{"uverbs", "umad", "issm"} {
		m.dev(fmt.Sprintf("infiniband/%s%d", role, n))
	}
}

func (m machine) discover() *inventory.Snapshot {
	m.t.Helper()
	s := testkit.Value(inventory.Discover(m.t.Context(), inventory.DiscoverConfig{Sysfs: m.Sysfs, Dev: m.Dev, Links: sysfstest.Links{Tree: m.Tree}, Devlink: sysfstest.Devlink{Tree: m.Tree}}))(m.t)
	for _, p := range s.Problems {
		m.t.Errorf("%s: %v", p.What, p.Err)
	}
	return s
}

func zoo(t *testing.T) machine {
	m := newMachine(t)
	m.Add(sysfstest.Function{Address: "0000:01:00.0", Vendor: "8086", Device: "1572", Driver: "i40e"})
	m.Route(m.AddLink(sysfstest.Device("0000:01:00.0"), netlinks.Link{Name: "eno1", Running: true}))

	// X710: 0000:02:02.0 to .5 in groups 1000 to 1005.
	v := m.pf(sysfstest.Function{Address: "0000:02:00.0", Vendor: "8086", Device: "1572", Driver: "i40e", Netdev: "enp2s2f1", VFDevice: "154c", VFDriver: "iavf", NUMA: 0}, 6)
	m.rebind(v[1], "iavf", "vfio-pci")
	m.rebind(v[2], "iavf", "vfio-pci")
	m.rebind(v[3], "iavf", "igb_uio")
	m.rebind(v[4], "iavf", "")
	m.AddUIO(v[3])
	m.dev("vfio/1001", "vfio/1002", "uio0")

	// E810: 0000:18:02.0 and .1, the first with RDMA.
	v = m.pf(sysfstest.Function{Address: "0000:18:00.0", Vendor: "8086", Device: "1593", Driver: "ice", Netdev: "ens801f0", VFDevice: "1889", VFDriver: "iavf", NUMA: 1, ACPIIndex: "101"}, 2)
	m.rdma(sysfstest.Device(v[0]), "rocep24s2")

	// ConnectX-4 Lx: 0000:04:00.2 and .3.
	for i, address := range m.pf(sysfstest.Function{Address: "0000:04:00.0", Vendor: "15b3", Device: "1015", Driver: "mlx5_core", Netdev: "ens4f0np0", VFDevice: "1016", VFDriver: "mlx5_core", Offset: 2}, 2) {
		m.rdma(sysfstest.Device(address), fmt.Sprintf("mlx5_%d", 2+i))
	}

	// ConnectX-5 with InfiniBand: 0000:05:00.2 and .3.
	for i, address := range m.pf(sysfstest.Function{Address: "0000:05:00.0", Vendor: "15b3", Device: "1017", Driver: "mlx5_core", Netdev: "ib0", VFDevice: "1018", VFDriver: "mlx5_core", Offset: 2}, 2) {
		m.rdma(sysfstest.Device(address), fmt.Sprintf("mlx5_%d", 4+i))
	}
	for _, name := range []string{"ib0", "ib0v0", "ib0v1"} {
		m.ChangeLink(name, func(l *netlinks.Link) { l.Encapsulation = "infiniband" })
	}

	// ConnectX-6 Dx: 0000:06:00.2 to .4, two of them with vDPA.
	v = m.pf(sysfstest.Function{Address: "0000:06:00.0", Vendor: "15b3", Device: "101d", Driver: "mlx5_core", Netdev: "ens6f0np0", VFDevice: "101e", VFDriver: "mlx5_core", Offset: 2}, 3)
	m.AddVDPA(v[0], "vhost_vdpa")
	m.AddVDPA(v[1], "virtio_vdpa")
	m.dev("vhost-vdpa-0")

	// BlueField-2 with scalable functions 0 to 6, which are mlx5_core.sf.2 to .8.
	m.Add(sysfstest.Function{Address: "0000:03:00.0", Vendor: "15b3", Device: "a2d6", Driver: "mlx5_core", Netdev: "p0"})
	for number := range 7 {
		name := m.AddScalable("0000:03:00.0", number)
		if number == 1 {
			m.rdma(sysfstest.Device("0000:03:00.0")+"/"+name, "mlx5_6")
		}
	}
	m.AddScalable("0000:06:00.0", 88) // mlx5_core.sf.9

	// BCM57414: 0000:09:02.0.
	m.pf(sysfstest.Function{Address: "0000:09:00.0", Vendor: "14e4", Device: "16d7", Driver: "bnxt_en", Netdev: "ens9f0", VFDevice: "1750", VFDriver: "bnxt_en"}, 1)

	m.Add(sysfstest.Function{Address: "0000:5e:00.0", Class: 0x120000, Vendor: "8086", Device: "0d90", Driver: "dfl-pci"})
	m.Add(sysfstest.Function{Address: "0000:5f:00.0", Class: 0x120000, Vendor: "8086", Device: "0d90", Driver: "vfio-pci", IOMMUGroup: "50"})
	m.dev("vfio/50")
	return m
}

// readme is the example output in the README.
func readme(t *testing.T) machine {
	m := newMachine(t)
	m.Add(sysfstest.Function{Address: "0000:03:02.1", Vendor: "8086", Device: "154c", Driver: "iavf"})
	m.Add(sysfstest.Function{Address: "0000:03:04.3", Vendor: "8086", Device: "154c", Driver: "iavf"})
	m.Add(sysfstest.Function{Address: "0000:3b:02.6", Vendor: "8086", Device: "154c", Driver: "vfio-pci", IOMMUGroup: "169"})
	m.Add(sysfstest.Function{Address: "0000:86:00.0", Vendor: "8086", Device: "1889", Driver: "iavf"})
	m.dev("vfio/169")
	return m
}

func guest(t *testing.T) machine {
	m := newMachine(t)
	for i, address := range []string{"0000:00:07.0", "0000:00:08.0", "0000:00:09.0", "0000:00:0a.0"} {
		m.Add(sysfstest.Function{Address: address, Vendor: "8086", Device: "154c", Driver: "vfio-pci", NUMA: -1})
		m.GroupWithoutIOMMU(address, fmt.Sprint(i))
		m.dev(fmt.Sprintf("vfio/noiommu-%d", i))
	}
	return m
}

func ddp(t *testing.T) machine {
	m := newMachine(t)
	for _, c := range []struct{ pf, device, driver, name, vf, profile string }{
		{"0000:02:00.0", "1572", "i40e", "ens785f0", "154c", "GTPv1-C/U IPv4/IPv6 payload"},
		{"0000:03:00.0", "1572", "i40e", "ens785f1", "154c", "E710 PPPoE and PPPoL2TPv2"},
		{"0000:18:00.0", "1593", "ice", "ens801f0", "1889", "ICE OS Default Package"},
		{"0000:19:00.0", "1593", "ice", "ens801f1", "1889", "ICE COMMS Package"},
	} {
		m.pf(sysfstest.Function{Address: c.pf, Vendor: "8086", Device: c.device, Driver: c.driver, Netdev: c.name, VFDevice: c.vf, VFDriver: "iavf"}, 2)
		m.SetDevlink("pci", c.pf, devlink.Device{Profile: c.profile})
	}
	return m
}

func many(t *testing.T) machine {
	m := newMachine(t)
	for i, name := range []string{"ens785f0", "ens785f1"} {
		m.pf(sysfstest.Function{Address: fmt.Sprintf("0000:86:00.%d", i), Vendor: "8086", Device: "1572", Driver: "i40e", Netdev: name, VFDevice: "154c", VFDriver: "iavf", Offset: 16 + 16*i - i}, 10)
	}
	return m
}
