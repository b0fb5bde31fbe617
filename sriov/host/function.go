package host

import (
	"cmp"
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/cleatproject/cleat/internal/linux/sysfs"
	"github.com/cleatproject/cleat/internal/linux/vflink"
)

var (
	// Also an argument of modprobe: no leading "-".
	drivers = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_-]{0,63}$`)
	// Port names of virtual and scalable functions.
	representors = regexp.MustCompile(`^(c[0-9]+)?pf[0-9]+(vf|sf)[0-9]+$`)
)

func checkDriver(driver string) error {
	if !drivers.MatchString(driver) {
		return fmt.Errorf("invalid driver name %.80q: want 1 to 64 letters, digits, _ and -", driver)
	}
	return nil
}

const busPCI = "bus/pci"

// function is a PCI function, by its open directory, which stays correct if the
// address is reused.
type function struct {
	address string
	dir     sysfs.Dir
}

// The caller closes the directory.
func (h *Host) function(address string) (function, error) {
	if err := vflink.CheckAddress(address); err != nil {
		return function{}, err
	}
	dir, err := sysfs.Open(filepath.Join(h.config.Sysfs, busPCI, "devices", address))
	if sysfs.IsAbsent(err) {
		return function{}, fmt.Errorf("no function %s: %w", address, err)
	}
	return function{address, dir}, err
}

// physical returns a VF's PF; for others the address itself.
func (h *Host) physical(address string) (string, error) {
	f, err := h.function(address)
	if sysfs.IsAbsent(err) {
		return address, nil
	}
	if err != nil {
		return "", err
	}
	defer f.dir.Close()
	pf, err := f.link("physfn")
	if err != nil || pf == "" {
		return address, err
	}
	if err := vflink.CheckAddress(pf); err != nil {
		return "", fmt.Errorf("physfn of %s: %w", address, err)
	}
	return pf, nil
}

func (f function) link(name string) (string, error) {
	target, err := f.dir.Link(name)
	if sysfs.IsAbsent(err) {
		err = nil
	}
	return target[strings.LastIndexByte(target, '/')+1:], err
}

func (f function) driver() (string, error) {
	driver, err := f.link("driver")
	if err != nil || driver == "" {
		return "", err
	}
	return driver, checkDriver(driver)
}

// override is the only driver that the kernel can bind; "" for no restriction.
func (f function) override() (string, error) {
	text, err := f.dir.Text("driver_override")
	if err != nil || text == "(null)" {
		return "", err
	}
	return text, nil
}

var errNoNetdev = errors.New("no network device in this network namespace")

// In switchdev mode the directory also has the ports of the embedded switch.
func (f function) netdev() (string, error) {
	names, err := f.names("net")
	if err != nil {
		return "", err
	}
	if len(names) == 0 {
		if names, err = f.virtioNetdevs(); err != nil {
			return "", err
		}
	}
	for _, name := range names {
		if len(names) == 1 || !f.isRepresentor(name) {
			return name, nil
		}
	}
	driver, err := f.driver()
	if err != nil {
		return "", err
	}
	return "", fmt.Errorf("%s: %w: its driver is %s, want a network driver; or the network device is in a pod", f.address, errNoNetdev, cmp.Or(driver, "none"))
}

func (f function) virtioNetdevs() ([]string, error) {
	all, err := f.dir.Names()
	if err != nil {
		return nil, err
	}
	for _, name := range all {
		if strings.HasPrefix(name, "virtio") {
			return f.names(name + "/net")
		}
	}
	return nil, nil
}

func (f function) isRepresentor(netdev string) bool {
	port, err := f.dir.Text("net/" + netdev + "/phys_port_name")
	return err == nil && representors.MatchString(port)
}

func (f function) names(dir string) ([]string, error) {
	d, err := f.dir.Open(dir)
	if sysfs.IsAbsent(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer d.Close()
	return d.Names()
}
