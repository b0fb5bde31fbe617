package inventory_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/cleatproject/cleat/sriov/inventory"
	"github.com/cleatproject/cleat/sriov/inventory/sysfstest"
	"github.com/cleatproject/cleat/test/testkit"
)

const victim = "0000:5e:00.0"

func withVictim(t *testing.T, spoil func(tree *sysfstest.Tree, dir string)) *sysfstest.Tree {
	tree := sysfstest.New(t)
	tree.Add(mellanox())
	tree.Add(sysfstest.Function{Address: victim, Vendor: "8086", Device: "1572", Driver: "ice", IOMMUGroup: "4", TotalVFs: 4, VFDevice: "154c"})
	spoil(tree, sysfstest.Device(victim))
	return tree
}

func TestHostileFunctions(t *testing.T) {
	file := func(name, text string) func(*sysfstest.Tree, string) {
		return func(tree *sysfstest.Tree, dir string) { tree.Remove(dir + "/" + name); tree.File(dir+"/"+name, text) }
	}
	link := func(name, target string) func(*sysfstest.Tree, string) {
		return func(tree *sysfstest.Tree, dir string) { tree.Remove(dir + "/" + name); tree.Link(dir+"/"+name, target) }
	}
	huge := strings.Repeat("9", 1<<20)
	for name, c := range map[string]struct {
		spoil func(*sysfstest.Tree, string)
		stays bool // discovered, with a problem
		about string
	}{
		"no modalias, garbage class": {func(tree *sysfstest.Tree, dir string) {
			tree.Remove(dir + "/modalias")
			tree.File(dir+"/class", "0xzz0000")
		}, false, "0xzz0000"},
		"vendor of five digits": {func(tree *sysfstest.Tree, dir string) {
			tree.File(dir+"/modalias", "pci:v00018086d00001572sv00000000sd00000000bc02sc00i00")
			tree.File(dir+"/vendor", "0x18086")
		}, false, "0x18086"},
		"driver is a file":      {file("driver", "ice"), false, "driver"},
		"physfn to nowhere":     {link("physfn", "devices/nowhere"), false, "nowhere"},
		"physfn to another PF":  {link("physfn", sysfstest.Device("0000:3b:00.0")), false, "0000:3b:00.0"},
		"physfn to itself":      {link("physfn", sysfstest.Device(victim)), false, victim},
		"huge index of a VF":    {link("virtfn99999999", sysfstest.Device(victim)), false, "virtfn99999999"},
		"negative index":        {link("virtfn-1", sysfstest.Device(victim)), false, "virtfn-1"},
		"virtfn to no function": {link("virtfn0", "devices"), false, "virtfn0"},
		"own virtual function": {func(tree *sysfstest.Tree, dir string) {
			if err := os.Symlink("../"+victim, filepath.Join(tree.Sysfs, dir, "virtfn0")); err != nil {
				tree.Remove(dir)
			}
		}, false, "being created or removed"},
		"huge totalvfs":          {file("sriov_totalvfs", huge), false, "4096"},
		"garbage numa":           {file("numa_node", "north"), true, "north"},
		"numa out of range":      {file("numa_node", "99999999999999"), true, "99999999999999"},
		"huge acpi_index":        {file("acpi_index", huge), true, "4096"},
		"acpi_index a directory": {file("acpi_index/x", ""), true, "acpi_index"},
		"acpi_index a cycle":     {func(tree *sysfstest.Tree, dir string) { tree.Link(dir+"/acpi_index", dir+"/acpi_index") }, true, "acpi_index"},
		"iommu_group a file":     {file("iommu_group", "4"), true, "iommu_group"},
	} {
		t.Run(name, func(t *testing.T) {
			s := discover(t, configOf(withVictim(t, c.spoil)))
			found := map[string]bool{}
			for _, f := range s.Functions {
				found[f.Address] = true
			}
			if !found["0000:3b:00.0"] {
				t.Error("the correct function is affected")
			}
			if found[victim] != c.stays {
				t.Errorf("the damaged function was discovered: %v", found[victim])
			}
			if len(s.Problems) != 1 || s.Problems[0].What != victim {
				t.Fatalf("problems: %+v", s.Problems)
			}
			if text := s.Problems[0].Err.Error(); !strings.Contains(text, c.about) || len(text) > 500 {
				t.Errorf("the problem does not contain %q: %.600s", c.about, text)
			}
		})
	}
}

func TestDiscoverDoesNotBlockOnFIFO(t *testing.T) {
	tree := withVictim(t, func(tree *sysfstest.Tree, dir string) {
		testkit.Must(t, unix.Mkfifo(filepath.Join(tree.Sysfs, dir, "acpi_index"), 0o600))
	})
	byAddress(t, discover(t, configOf(tree)), victim)
}

func TestHostileClasses(t *testing.T) {
	tree := sysfstest.New(t)
	tree.Add(mellanox())
	tree.File("class/net/bonding_masters", "bond0")
	tree.Link("class/infiniband/loop", "class/infiniband/loop")
	tree.Link("class/uio/uio9", "devices")
	tree.Link("bus/vdpa/devices/vdpa7", sysfstest.Device("0000:3b:00.0")+"/vdpa7")
	tree.Link("bus/auxiliary/devices/mlx5_core.sf.9", "devices/elsewhere")
	tree.Link("bus/pci/devices/not-an-address", "devices")
	tree.Link("bus/pci/devices/0000:ff:00.0", "bus/pci/devices/0000:ff:00.0")
	tree.AddRDMA(sysfstest.Device("0000:3b:00.0"), "mlx5_0", "0x8001 and more")
	s := discover(t, configOf(tree))
	about := map[string]bool{}
	for _, p := range s.Problems {
		about[p.What] = true
	}
	if len(about) != 3 || !about["mlx5_core.sf.9"] || !about["0000:ff:00.0"] || !about["class/infiniband/mlx5_0"] {
		t.Errorf("problems: %+v", s.Problems)
	}
	if f := byAddress(t, s, "0000:3b:00.0"); len(f.Netdevs) != 1 || f.VDPA != nil || f.PKey != "" || f.UIO != "" {
		t.Errorf("%+v", f)
	}
}

// Without its physfn link, in transition, it looks like a physical one.
func TestIncompleteFunctions(t *testing.T) {
	for name, remove := range map[string][]string{
		"no link to the PF":    {"devices/pci0000:3b/0000:3b:00.3/physfn"},
		"no link of the PF":    {"devices/pci0000:3b/0000:3b:00.0/virtfn1"},
		"neither":              {"devices/pci0000:3b/0000:3b:00.3/physfn", "devices/pci0000:3b/0000:3b:00.0/virtfn1"},
		"the PF is unreadable": {"devices/pci0000:3b/0000:3b:00.0/modalias", "devices/pci0000:3b/0000:3b:00.0/class"},
	} {
		t.Run(name, func(t *testing.T) {
			tree := sysfstest.New(t)
			pf := mellanox()
			tree.Add(pf)
			setVirtual(t, tree, pf.Address, 3)
			for _, r := range remove {
				tree.Remove(r)
			}
			s := discover(t, configOf(tree))
			for _, f := range s.Functions {
				if f.Address == "0000:3b:00.3" {
					t.Errorf("found: %+v", f)
				}
			}
			if len(s.Problems) == 0 {
				t.Error("no problem is reported")
			}
		})
	}
}

func TestVanishingFunctions(t *testing.T) {
	tree := sysfstest.New(t)
	pf := mellanox()
	tree.Add(pf)
	index := map[string]int{}
	for i := range 8 {
		index[sysfstest.VirtualAddress(pf, i)] = i
	}
	const rounds = 60
	changed := make(chan error, 1)
	go func() {
		for i := range rounds {
			if err := tree.Write("bus/pci/devices/"+pf.Address+"/sriov_numvfs", []string{"8", "0"}[i%2]); err != nil {
				changed <- err
				return
			}
		}
		changed <- nil
	}()
	for under := true; under; {
		select {
		case err := <-changed:
			testkit.Must(t, err)
			under = false
		default:
		}
		s := discover(t, configOf(tree))
		byAddress(t, s, pf.Address)
		for _, f := range s.Functions {
			i, virtual := index[f.Address]
			if virtual && (f.VF != i || f.PF != pf.Address || f.Device != pf.VFDevice) || !virtual && f.Address != pf.Address {
				t.Fatalf("found %+v", f)
			}
		}
	}
	if s := clean(t, tree); len(s.Functions) != 1 {
		t.Errorf("in the end there are %d functions", len(s.Functions))
	}
}

func TestRandomTrees(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		tree := sysfstest.New(t)
		type properties struct {
			pf, driver, vendor, device string
			vf, numa, vfs              int
		}
		want := map[string]properties{}
		for i := range rapid.IntRange(0, 4).Draw(rt, "PFs") {
			f := sysfstest.Function{
				Address:  fmt.Sprintf("%04x:%02x:00.%d", rapid.IntRange(0, 0x10).Draw(rt, "domain"), 0x10*i, rapid.IntRange(0, 1).Draw(rt, "function")),
				Vendor:   rapid.SampledFrom([]string{"15b3", "8086", "14e4"}).Draw(rt, "vendor"),
				Device:   "101d",
				Driver:   rapid.SampledFrom([]string{"", "ice", "vfio-pci"}).Draw(rt, "driver"),
				NUMA:     rapid.IntRange(-1, 3).Draw(rt, "numa"),
				Netdev:   fmt.Sprintf("eth%d", i),
				TotalVFs: rapid.IntRange(0, 12).Draw(rt, "total"),
				VFDevice: "001e", VFDriver: rapid.SampledFrom([]string{"", "iavf"}).Draw(rt, "vf driver"),
				Offset: rapid.IntRange(2, 300).Draw(rt, "offset"), Stride: rapid.IntRange(1, 4).Draw(rt, "stride"),
			}
			tree.Add(f)
			w := properties{f.Address, f.Driver, f.Vendor, f.Device, inventory.NoIndex, f.NUMA, 0}
			if f.TotalVFs > 0 {
				for v, address := range setVirtual(t, tree, f.Address, rapid.IntRange(0, f.TotalVFs).Draw(rt, "VFs")) {
					want[address] = properties{f.Address, f.VFDriver, f.Vendor, f.VFDevice, v, f.NUMA, 0}
					w.vfs++
				}
			}
			want[f.Address] = w
		}
		s := clean(t, tree)
		if len(s.Functions) != len(want) {
			rt.Fatalf("found %d functions of %d", len(s.Functions), len(want))
		}
		for _, f := range s.Functions {
			got := properties{f.PF, f.Driver, f.Vendor, f.Device, f.VF, f.NUMA, f.VFs}
			if got != want[f.Address] {
				rt.Errorf("%s is %+v, was made as %+v", f.Address, got, want[f.Address])
			}
		}
		testkit.Must(rt, os.RemoveAll(tree.Sysfs))
	})
}
