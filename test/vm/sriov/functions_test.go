// Package sriov tests virtual functions of real SR-IOV drivers in guests with
// an IOMMU group per function: the network card igb (QEMU 8.0 or later) and an
// NVMe disk (any QEMU).
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
	total int // maximum number of virtual functions
	// driver is the physical function's driver.
	driver string
	spec   func(*testing.T) vm.Spec
	// prepare runs first; own tests what is specific to this kind.
	prepare, own func(physical)
}

// TestNVMe tests the virtual functions of an NVMe disk. Those of igb need
// packages of the backports and are tested in TestHost.
func TestNVMe(t *testing.T) {
	t.Parallel()
	k := nvme()
	spec := k.spec(t)
	spec.Name = k.name
	spec.Modules = append(spec.Modules, "vfio-pci")
	withIOMMU(&spec)
	k.test(physicalOf(kernel.Of(t, vm.Boot(t, spec)), k.driver))
}

// withIOMMU adds an IOMMU: Debian's kernels have no VFIO without one.
func withIOMMU(spec *vm.Spec) {
	spec.KernelArgs = []string{"intel_iommu=on"}
	spec.Devices = append([]string{"-device", "intel-iommu,intremap=off"}, spec.Devices...)
}

// test tests a card's functions. vfio-pci must be loaded.
func (k kind) test(p physical) {
	p.Helper()
	begun := time.Now()
	k.prepare(p)
	p.counts(k.total)
	p.own(k)
	p.passthrough()
	fmt.Printf("REPORT: virtual functions: %s, kernel %s: 2 of %d created, used, bound to VFIO and removed in %.1f s\n",
		k.name, p.Guest.Release(), k.total, time.Since(begun).Seconds())
}

// own runs the specific test and removes all virtual functions.
func (p physical) own(k kind) {
	p.Helper()
	k.own(p)
	p.create(0)
}

// findBackports returns an error if the QEMU with igb is not available.
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

// counts verifies that the requested number of functions is created, or the
// expected error returned.
func (p physical) counts(total int) {
	p.Helper()
	if got := p.Read(p.file("sriov_totalvfs")); got != fmt.Sprint(total) {
		p.Errorf("got sriov_totalvfs %s, want %d", got, total)
	}
	p.createRefused(total+1, syscall.ERANGE)
	p.create(2)
	for _, address := range p.virtual() {
		if got := p.of(address, "physfn"); got != p.address {
			p.Errorf("physical function of %s: got %q, want %s", address, got, p.address)
		}
	}
	p.createRefused(3, syscall.EBUSY)
	p.create(0)
	p.create(total)
	p.create(0)
}

// passthrough verifies that a virtual function without autoprobe gets a driver
// only when bound to vfio-pci, which creates a device node for its IOMMU group,
// and that both disappear with the function.
func (p physical) passthrough() {
	p.Helper()
	p.autoprobe(false)
	p.create(2)
	given, other := p.virtual()[0], p.virtual()[1]
	for _, address := range []string{given, other} {
		if got := p.of(address, "driver"); got != "" {
			p.Errorf("without autoprobe, %s has driver %s", address, got)
		}
	}
	groups := []string{p.of(given, "iommu_group"), p.of(other, "iommu_group"), p.of(p.address, "iommu_group")}
	if all := slices.Compact(slices.Sorted(slices.Values(groups))); len(all) != 3 || slices.Contains(all, "") {
		p.Errorf("got IOMMU groups %q of two virtual functions and the physical one, want three", groups)
	}
	p.bind(given, "vfio-pci")
	node := "/dev/vfio/" + groups[0]
	p.Run("test", "-c", node)
	if got := p.of(other, "driver"); got != "" {
		p.Errorf("%s has driver %s after binding the other function", other, got)
	}
	p.create(0)
	if left := p.Names("/dev/vfio"); !slices.Equal(left, []string{"vfio"}) {
		p.Errorf("without functions, /dev/vfio has %v", left)
	}
}
