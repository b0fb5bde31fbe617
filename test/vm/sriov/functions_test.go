// Package sriov makes virtual functions of real SR-IOV drivers in guests whose
// IOMMU keeps each in a group of its own: those of the network card igb, which
// QEMU has since 8.0, and those of an NVMe disk, which Debian's own QEMU has too.
package sriov

import (
	"fmt"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/cleatproject/cleat/test/vm"
	"github.com/cleatproject/cleat/test/vm/image"
	"github.com/cleatproject/cleat/test/vm/kernel"
)

// kind is a device with virtual functions.
type kind struct {
	name  string
	total int // the most virtual functions
	// driver of the physical function.
	driver string
	spec   func(*testing.T) vm.Spec
	// prepare goes before anything else; own is what no other kind has.
	prepare, own func(physical)
}

// TestNVMe goes through the virtual functions of an NVMe disk. Those of igb,
// which needs the packages of the backports, are in TestHost.
func TestNVMe(t *testing.T) {
	t.Parallel()
	k := nvme()
	spec := k.spec(t)
	spec.Name = k.name
	spec.Modules = append(spec.Modules, "vfio-pci")
	withIOMMU(&spec)
	k.test(physicalOf(kernel.Of(t, vm.Boot(t, spec)), k.driver))
}

// withIOMMU gives a guest the groups that VFIO needs: Debian's kernels have no
// VFIO without an IOMMU.
func withIOMMU(spec *vm.Spec) {
	spec.KernelArgs = []string{"intel_iommu=on"}
	spec.Devices = append([]string{"-device", "intel-iommu,intremap=off"}, spec.Devices...)
}

// test needs vfio-pci to be loaded.
func (k kind) test(p physical) {
	p.Helper()
	begun := time.Now()
	k.prepare(p)
	p.counts(k.total)
	p.own(k)
	p.passthrough()
	fmt.Printf("REPORT: virtual functions: %s, kernel %s: 2 of %d made, used, handed to VFIO and removed in %.1f s\n",
		k.name, p.Guest.Release(), k.total, time.Since(begun).Seconds())
}

// own ends with no virtual function.
func (p physical) own(k kind) {
	p.Helper()
	k.own(p)
	p.create(0)
}

// findBackports finds the QEMU that has igb.
func findBackports(t *testing.T) error {
	t.Helper()
	dir, err := image.DefaultDir()
	if err != nil {
		return err
	}
	store, err := image.Open(dir, t.Logf)
	if err != nil {
		return err
	}
	_, err = store.Emulator(t.Context(), image.Backports)
	return err
}

// counts: how many there are is what was asked for, or the kernel says why not.
func (p physical) counts(total int) {
	p.Helper()
	if got := p.Read(p.file("sriov_totalvfs")); got != fmt.Sprint(total) {
		p.Errorf("sriov_totalvfs is %s, want %d", got, total)
	}
	p.createRefused(total+1, syscall.ERANGE)
	p.create(2)
	for _, address := range p.virtual() {
		if got := p.of(address, "physfn"); got != p.address {
			p.Errorf("the virtual function %s belongs to %q, want %s", address, got, p.address)
		}
	}
	p.createRefused(3, syscall.EBUSY)
	p.create(0)
	p.create(total)
	p.create(0)
}

// passthrough: a virtual function is without driver until it gets VFIO's, which
// makes a node of its IOMMU group; both go with the function.
func (p physical) passthrough() {
	p.Helper()
	p.autoprobe(false)
	p.create(2)
	given, other := p.virtual()[0], p.virtual()[1]
	for _, address := range []string{given, other} {
		if got := p.of(address, "driver"); got != "" {
			p.Errorf("without autoprobe %s got the driver %s", address, got)
		}
	}
	groups := []string{p.of(given, "iommu_group"), p.of(other, "iommu_group"), p.of(p.address, "iommu_group")}
	if all := slices.Compact(slices.Sorted(slices.Values(groups))); len(all) != 3 || slices.Contains(all, "") {
		p.Errorf("the IOMMU groups of two virtual functions and the physical one are %q, want three", groups)
	}
	p.bind(given, "vfio-pci")
	node := "/dev/vfio/" + groups[0]
	p.Run("test", "-c", node)
	if got := p.of(other, "driver"); got != "" {
		p.Errorf("%s got the driver %s of the other function", other, got)
	}
	p.create(0)
	if left := p.Names("/dev/vfio"); !slices.Equal(left, []string{"vfio"}) {
		p.Errorf("with the functions gone, /dev/vfio holds %v", left)
	}
}
