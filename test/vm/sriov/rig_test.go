package sriov

import (
	"errors"
	"path"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"go.uber.org/goleak"

	"github.com/cleatproject/cleat/test/vm"
	"github.com/cleatproject/cleat/test/vm/kernel"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	devices = "/sys/bus/pci/devices"
	drivers = "/sys/bus/pci/drivers"
)

// physical is a physical function (Documentation/ABI/testing/sysfs-bus-pci).
type physical struct {
	*kernel.Kernel
	address string
}

// physicalOf returns the only PCI function of a driver.
func physicalOf(k *kernel.Kernel, driver string) physical {
	k.Helper()
	all := slices.DeleteFunc(k.Names(path.Join(drivers, driver)), func(name string) bool { return !strings.HasPrefix(name, "0000:") })
	if len(all) != 1 {
		k.Fatalf("PCI functions of driver %s: got %v, want one", driver, all)
	}
	return physical{k, all[0]}
}

func (p physical) file(name string) string { return path.Join(devices, p.address, name) }

// create sets the number of virtual functions; 0 removes all.
func (p physical) create(n int) {
	p.Helper()
	p.Write(p.file("sriov_numvfs"), strconv.Itoa(n))
	if got := len(p.virtual()); got != n {
		p.Fatalf("requested %d virtual functions, got %d", n, got)
	}
}

func (p physical) createRefused(n int, want syscall.Errno) {
	p.Helper()
	before := p.virtual()
	p.WantErrno(p.TryWrite(p.file("sriov_numvfs"), strconv.Itoa(n)), want)
	if got := p.virtual(); !slices.Equal(got, before) {
		p.Errorf("a rejected request for %d virtual functions changed %v to %v", n, before, got)
	}
}

// autoprobe sets whether new virtual functions are bound to a driver.
func (p physical) autoprobe(on bool) {
	p.Helper()
	value := "0"
	if on {
		value = "1"
	}
	p.Write(p.file("sriov_drivers_autoprobe"), value)
}

// virtual returns the addresses of the virtual functions in order.
func (p physical) virtual() (all []string) {
	p.Helper()
	for i := 0; slices.Contains(p.Names(path.Join(devices, p.address)), "virtfn"+strconv.Itoa(i)); i++ {
		all = append(all, p.link(p.file("virtfn"+strconv.Itoa(i))))
	}
	return all
}

// link returns the base name of a link's target, or "" without a link.
func (p physical) link(file string) string {
	p.Helper()
	target, err := p.Try("readlink", file)
	var exit *vm.ExitError
	switch {
	case errors.As(err, &exit):
		return ""
	case err != nil:
		p.Fatal(err)
	case target == "":
		p.Fatalf("readlink %s printed nothing", file)
	}
	return path.Base(target)
}

// of returns the base name of a function's link, such as driver.
func (p physical) of(address, link string) string {
	p.Helper()
	return p.link(path.Join(devices, address, link))
}

// bind binds a function to a driver, regardless of device ID and autoprobe.
func (p physical) bind(address, driver string) {
	p.Helper()
	p.Write(path.Join(devices, address, "driver_override"), driver)
	p.Write("/sys/bus/pci/drivers_probe", address)
	if got := p.of(address, "driver"); got != driver {
		p.Errorf("driver of %s: got %q, want %s", address, got, driver)
	}
}
