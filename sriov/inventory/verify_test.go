package inventory_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cleatproject/cleat/sriov/inventory"
	"github.com/cleatproject/cleat/sriov/inventory/sysfstest"
	"github.com/cleatproject/cleat/test/testkit"
)

// every has VF 0 with RDMA, VF 1 with vDPA, VF 2 with VFIO, a UIO function, and
// a scalable function with RDMA.
type every struct {
	*sysfstest.Tree
	t       testing.TB
	virtual []string
	sf      string
}

const (
	verifiedPF = "0000:3b:00.0"
	verifiedUI = "0000:5e:00.1"
	verifiedNo = "0000:5e:00.0" // without an IOMMU
)

func newEvery(t testing.TB) every {
	t.Helper()
	tree := sysfstest.New(t)
	tree.Add(mellanox())
	e := every{Tree: tree, t: t, virtual: setVirtual(t, tree, verifiedPF, 3)}
	tree.AddRDMA(sysfstest.Device(e.virtual[0]), "mlx5_3", "")
	tree.AddVDPA(e.virtual[1], "vhost_vdpa")
	e.rebind(e.virtual[2], "vfio-pci")
	tree.Add(sysfstest.Function{Address: verifiedUI, Vendor: "8086", Device: "1572", Driver: "igb_uio", TotalVFs: 4, VFDevice: "154c"})
	tree.AddUIO(verifiedUI)
	tree.Add(sysfstest.Function{Address: verifiedNo, Vendor: "8086", Device: "1572", Driver: "vfio-pci"})
	tree.GroupWithoutIOMMU(verifiedNo, "3")
	e.sf = tree.AddScalable(verifiedPF, 88)
	tree.AddRDMA(sysfstest.Device(verifiedPF)+"/"+e.sf, "mlx5_7", "")
	testkit.Must(t, os.WriteFile(filepath.Join(tree.Dev, "infiniband/rdma_cm"), nil, 0o600))
	return e
}

func (e every) write(name, value string) {
	e.t.Helper()
	testkit.Must(e.t, e.Write(name, value))
}

func (e every) rebind(address, driver string) {
	e.t.Helper()
	e.write("bus/pci/devices/"+address+"/driver/unbind", address)
	e.write("bus/pci/devices/"+address+"/driver_override", driver)
	e.write("bus/pci/drivers_probe", address)
}

func (e every) relink(name, target string) {
	e.Remove(name)
	e.Link(name, target)
}

func (e every) file(name, text string) {
	e.Remove(name)
	e.File(name, text)
}

func TestVerifyUnchanged(t *testing.T) {
	e := newEvery(t)
	s := clean(t, e.Tree)
	// By pods, or without effect on containers.
	e.Remove("class/net/ens1f0np0v0")
	e.Remove("class/infiniband/mlx5_3")
	e.relink("class/uio/uio0", sysfstest.Device(verifiedUI)+"/virtio1/uio/uio0")
	e.file(sysfstest.Device(verifiedUI)+"/acpi_index", strings.Repeat("9", 1<<16))
	for _, f := range s.Functions {
		if err := inventory.Verify(t.Context(), configOf(e.Tree), inventory.Device{Function: &f}); err != nil {
			t.Error(err)
		}
	}
	testkit.Must(t, inventory.Verify(t.Context(), configOf(e.Tree), auxiliaryDevice(s.Auxiliary[0])))
}

func TestVerify(t *testing.T) {
	at := func(address, file string) string { return sysfstest.Device(address) + "/" + file }
	is := func(address string) func(every) string { return func(every) string { return address } }
	vf := func(n int) func(every) string { return func(e every) string { return e.virtual[n] } }
	for name, c := range map[string]struct {
		of     func(e every) string
		change func(e every)
		want   string // VF for the address
	}{
		"driver": {vf(1), func(e every) { e.rebind(e.virtual[1], "vfio-pci") }, "driver is vfio-pci, was mlx5_core"},
		"no driver": {
			vf(2),
			func(e every) { e.write("bus/pci/devices/"+e.virtual[2]+"/driver/unbind", e.virtual[2]) },
			"driver is missing, was vfio-pci",
		},
		"vendor, device and class": {
			is(verifiedUI),
			func(e every) {
				e.file(at(verifiedUI, "modalias"), "pci:v000015B3d0000101Dsv00000000sd00000000bc12sc00i00")
			},
			"vendor is 15b3, was 8086; device is 101d, was 1572; class is 0x120000, was 0x020000",
		},
		"IOMMU group":           {vf(2), func(e every) { e.relink(at(e.virtual[2], "iommu_group"), "kernel/iommu_groups/77") }, "IOMMU group is 77, was 1002"},
		"IOMMU group of VFIO's": {is(verifiedNo), func(e every) { e.Remove(at(verifiedNo, "iommu_group")) }, "IOMMU group is missing, was noiommu-3"},
		"another PF": {
			vf(0),
			func(e every) { e.relink(at(e.virtual[0], "physfn"), sysfstest.Device(verifiedUI)) },
			"PF is " + verifiedUI + ", was " + verifiedPF,
		},
		"another index": {
			vf(0),
			func(e every) { e.relink(at(verifiedPF, "virtfn0"), sysfstest.Device("0000:3b:00.3")) },
			verifiedPF + "/virtfn0 is 0000:3b:00.3, was VF",
		},
		"partly removed": {vf(0), func(e every) { e.Remove(at(verifiedPF, "virtfn0")) }, verifiedPF + "/virtfn0 is missing, was VF"},
		"physical before, virtual now": {
			is(verifiedUI),
			func(e every) { e.Link(at(verifiedUI, "physfn"), sysfstest.Device(verifiedPF)) },
			"PF is " + verifiedPF + ", was VF",
		},
		"virtual functions": {is(verifiedUI), func(e every) { setVirtual(e.t, e.Tree, verifiedUI, 2) }, "number of virtual functions is 2, was 0"},
		"UIO of another": {
			is(verifiedUI),
			func(e every) { e.relink("class/uio/uio0", sysfstest.Device(verifiedNo)+"/uio/uio0") },
			"owner of uio0 is " + verifiedNo + ", was VF",
		},
		"no UIO":  {is(verifiedUI), func(e every) { e.Remove("class/uio") }, "owner of uio0 is missing, was VF"},
		"no vDPA": {vf(1), func(e every) { e.Remove("bus/vdpa") }, "owner of vdpa0 is missing, was VF"},
		"vDPA of another": {
			vf(1),
			func(e every) { e.relink("bus/vdpa/devices/vdpa0", sysfstest.Device(e.virtual[0])+"/vdpa0") },
			"owner of vdpa0 is 0000:3b:00.2, was VF",
		},
		"driver of vDPA": {
			vf(1),
			func(e every) {
				e.Remove(at(e.virtual[1], "vdpa0/vhost-vdpa-0"))
				e.relink(at(e.virtual[1], "vdpa0/driver"), "bus/vdpa/drivers/virtio_vdpa")
			},
			"vdpa0's driver is virtio_vdpa, was vhost_vdpa; vdpa0's device node is missing, was /dev/vhost-vdpa-0",
		},
		"verbs of another": {
			vf(0),
			func(e every) {
				e.relink("class/infiniband_verbs/uverbs0", sysfstest.Device(e.virtual[1])+"/infiniband_verbs/uverbs0")
			},
			"owner of uverbs0 is 0000:3b:00.3, was VF",
		},
		"verbs of a scalable function of a PF": {
			vf(0),
			func(e every) {
				e.relink("class/infiniband_verbs/uverbs0", sysfstest.Device(verifiedPF)+"/"+e.sf+"/infiniband_verbs/uverbs0")
			},
			"owner of uverbs0 is " + verifiedPF + "/mlx5_core.sf.2, was VF",
		},
		"no management datagrams": {vf(0), func(e every) { e.Remove("class/infiniband_mad/umad0") }, "owner of umad0 is missing, was VF"},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEvery(t)
			f := byAddress(t, clean(t, e.Tree), c.of(e))
			c.change(e)
			err := inventory.Verify(t.Context(), configOf(e.Tree), inventory.Device{Function: &f})
			changed, ok := errors.AsType[*inventory.ChangedError](err)
			if want := f.Address + ": " + strings.ReplaceAll(c.want, "VF", f.Address); !ok || err.Error() != want || changed.Gone || changed.Device != f.Address {
				t.Errorf("%v\nwant %s", err, want)
			}
		})
	}
}

func auxiliaryDevice(a inventory.Auxiliary) inventory.Device {
	return inventory.Device{Function: &a.Parent, Auxiliary: &a}
}

func TestVerifyAuxiliary(t *testing.T) {
	for name, c := range map[string]struct {
		change func(t *testing.T, e every, at string)
		want   string
	}{
		"driver":    {func(_ *testing.T, e every, at string) { e.Remove(at + "/driver") }, "driver is missing, was mlx5_core.sf"},
		"SF number": {func(_ *testing.T, e every, at string) { e.file(at+"/sfnum", "89") }, "SF number is 89, was 88"},
		"function's class": {func(_ *testing.T, e every, _ string) {
			e.file(sysfstest.Device(verifiedPF)+"/modalias", "pci:v000015B3d0000101Dsv00000000sd00000000bc12sc00i00")
		}, verifiedPF + "'s class is 0x120000, was 0x020000"},
		"function's driver": {func(_ *testing.T, e every, _ string) {
			e.relink(sysfstest.Device(verifiedPF)+"/driver", "bus/pci/drivers/vfio-pci")
		}, verifiedPF + "'s driver is vfio-pci, was mlx5_core"},
		"verbs": {func(_ *testing.T, e every, _ string) {
			e.relink("class/infiniband_verbs/uverbs1", sysfstest.Device(verifiedPF)+"/infiniband_verbs/uverbs1")
		}, "owner of uverbs1 is " + verifiedPF + ", was " + verifiedPF + "/mlx5_core.sf.2"},
		"another function": {func(_ *testing.T, e every, at string) {
			e.relink("bus/auxiliary/devices/mlx5_core.sf.2", sysfstest.Device(verifiedUI)+"/mlx5_core.sf.2")
			e.File(sysfstest.Device(verifiedUI)+"/mlx5_core.sf.2/sfnum", "88")
			e.Link(sysfstest.Device(verifiedUI)+"/mlx5_core.sf.2/driver", "bus/auxiliary/drivers/mlx5_core.sf")
		}, "parent is " + verifiedUI + ", was " + verifiedPF},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEvery(t)
			a := clean(t, e.Tree).Auxiliary[0]
			c.change(t, e, sysfstest.Device(verifiedPF)+"/"+e.sf)
			err := inventory.Verify(t.Context(), configOf(e.Tree), auxiliaryDevice(a))
			if want := e.sf + ": " + c.want; err == nil || err.Error() != want {
				t.Errorf("%v\nwant %s", err, want)
			}
		})
	}
}

func TestVerifyMissingDevice(t *testing.T) {
	e := newEvery(t)
	s := clean(t, e.Tree)
	vf := byAddress(t, s, e.virtual[2])
	isGone := func(device string, err error) {
		t.Helper()
		want := &inventory.ChangedError{Device: device, Gone: true}
		got, _ := errors.AsType[*inventory.ChangedError](err)
		if diff := cmp.Diff(want, got); diff != "" || err.Error() != device+" is gone" {
			t.Errorf("%v\n%s", err, diff)
		}
	}
	e.Remove("bus/auxiliary/devices/" + e.sf)
	isGone(e.sf, inventory.Verify(t.Context(), configOf(e.Tree), auxiliaryDevice(s.Auxiliary[0])))
	setVirtual(t, e.Tree, verifiedPF, 0)
	isGone(vf.Address, inventory.Verify(t.Context(), configOf(e.Tree), inventory.Device{Function: &vf}))
	// During removal.
	no := byAddress(t, s, verifiedNo)
	for _, file := range []string{"modalias", "class", "vendor", "device", "driver"} {
		e.Remove(sysfstest.Device(verifiedNo) + "/" + file)
	}
	isGone(verifiedNo, inventory.Verify(t.Context(), configOf(e.Tree), inventory.Device{Function: &no}))
}

func TestVerifyReadErrors(t *testing.T) {
	e := newEvery(t)
	s := clean(t, e.Tree)
	no := byAddress(t, s, verifiedNo)
	e.file(sysfstest.Device(verifiedNo)+"/driver", "a file")
	plain := func(about string, err error) {
		t.Helper()
		if _, changed := errors.AsType[*inventory.ChangedError](err); changed || err == nil || !strings.Contains(err.Error(), about) {
			t.Errorf("%v, want it to contain %q", err, about)
		}
	}
	plain("/driver", inventory.Verify(t.Context(), configOf(e.Tree), inventory.Device{Function: &no}))
	plain("none", inventory.Verify(t.Context(), inventory.DiscoverConfig{Sysfs: filepath.Join(t.TempDir(), "none")}, inventory.Device{Function: &no}))
	ctx := testkit.Canceled(t)
	plain("canceled", inventory.Verify(ctx, configOf(e.Tree), inventory.Device{Function: &no}))
	plain("canceled", inventory.Verify(ctx, configOf(e.Tree), auxiliaryDevice(s.Auxiliary[0])))
}

func TestVerifyRejectsPathsInNames(t *testing.T) {
	e := newEvery(t)
	good := byAddress(t, clean(t, e.Tree), e.virtual[1])
	for name, spoil := range map[string]func(*inventory.Function){
		"address": func(f *inventory.Function) { f.Address = "../devices/" + f.Address },
		"none":    func(f *inventory.Function) { f.Address = "" },
		"PF":      func(f *inventory.Function) { f.PF = "../devices/" + f.PF },
		"UIO":     func(f *inventory.Function) { f.UIO = "../uio/uio0" },
		"vDPA":    func(f *inventory.Function) { f.VDPA = &inventory.VDPA{Name: ".."} },
	} {
		f := good
		spoil(&f)
		if _, changed := errors.AsType[*inventory.ChangedError](inventory.Verify(t.Context(), configOf(e.Tree), inventory.Device{Function: &f})); changed {
			t.Errorf("%s: the path was read", name)
		}
		if inventory.Verify(t.Context(), configOf(e.Tree), inventory.Device{Function: &f}) == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	if err := inventory.Verify(t.Context(), configOf(e.Tree), auxiliaryDevice(inventory.Auxiliary{Name: "../x", Parent: good})); err == nil {
		t.Error("a name with a slash was accepted")
	}
}
