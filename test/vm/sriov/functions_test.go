// Package sriov tests virtual functions of a real SR-IOV driver in guests with
// an IOMMU group per function: the network card igb (QEMU 8.0 or later).
package sriov

import (
	"fmt"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/cleatproject/cleat/test/vm"
	"github.com/cleatproject/cleat/test/vm/image"
)

// withIOMMU adds an IOMMU: Debian's kernels have no VFIO without one.
func withIOMMU(spec *vm.Spec) {
	spec.KernelArgs = []string{"intel_iommu=on"}
	spec.Devices = append([]string{"-device", "intel-iommu,intremap=off"}, spec.Devices...)
}

// card tests the card's functions, as the kernel's files show them. vfio-pci must
// be loaded.
func (p physical) card() {
	p.Helper()
	const total = 7
	begun := time.Now()
	p.counts(total)
	p.driverOfItsOwn()
	p.traffic()
	p.create(0)
	p.passthrough()
	fmt.Printf("REPORT: virtual functions: igb, kernel %s: 2 of %d created, used, bound to VFIO and removed in %.1f s\n",
		p.Guest.Release(), total, time.Since(begun).Seconds())
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
