// Package sriov makes virtual functions of real SR-IOV drivers in guests whose
// IOMMU keeps each in a group of its own: those of the network card igb, which
// QEMU has since 8.0, and those of an NVMe disk, which Debian's own QEMU has too.
package sriov

import (
	"errors"
	"fmt"
	"slices"
	"strings"
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

// TestVirtualFunctions goes through all kinds that this machine can have.
// Without the packages of the backports the NVMe disk alone has to do.
func TestVirtualFunctions(t *testing.T) {
	all := []kind{nvme()}
	switch _, err := emulator(t, image.Backports); {
	case errors.Is(err, image.ErrNoBackports):
		fmt.Printf("REPORT: virtual functions: no igb (%v): NVMe stands in for it\n", err)
	case err != nil:
		t.Fatal(err)
	default:
		all = append(all, igb())
	}
	for _, k := range all {
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			k.test(t)
		})
	}
}

func (k kind) test(t *testing.T) {
	spec := k.spec(t)
	spec.Name = k.name
	version, err := emulator(t, spec.Emulator)
	if err != nil {
		t.Fatal(err)
	}
	// No IOMMU, no groups: Debian's kernels have no VFIO without IOMMU.
	spec.Modules = append(spec.Modules, "vfio-pci")
	spec.KernelArgs = []string{"intel_iommu=on"}
	spec.Devices = append([]string{"-device", "intel-iommu,intremap=off"}, spec.Devices...)
	p := physicalOf(kernel.Of(t, vm.Boot(t, spec)), k.driver)
	begun := time.Now()
	k.prepare(p)
	p.counts(k.total)
	p.own(k)
	p.passthrough()
	fmt.Printf("REPORT: virtual functions: %s of %s, kernel %s: 2 of %d made, used, handed to VFIO and removed in %.1f s\n",
		k.name, version, p.Guest.Release(), k.total, time.Since(begun).Seconds())
}

// own ends with no virtual function.
func (p physical) own(k kind) {
	p.Helper()
	k.own(p)
	p.create(0)
}

// emulator is the version of a QEMU; empty is Debian's own.
func emulator(t *testing.T, source image.Source) (string, error) {
	t.Helper()
	dir, err := image.DefaultDir()
	if err != nil {
		return "", err
	}
	store, err := image.Open(dir, t.Logf)
	if err != nil {
		return "", err
	}
	q, err := store.Emulator(t.Context(), source)
	version, _, _ := strings.Cut(q.Version, " (")
	return strings.Replace(version, "emulator version ", "", 1), err
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
