package host

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/internal/linux/sysfs"
)

var (
	addresses = regexp.MustCompile(`^[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$`)
	// drivers are also names of modules in an argument, so none begins with "-".
	drivers = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_-]{0,63}$`)
	// representors are ports of virtual and scalable functions, as the kernel
	// numbers them.
	representors = regexp.MustCompile(`^(c[0-9]+)?pf[0-9]+(vf|sf)[0-9]+$`)
)

func checkAddress(address string) error {
	if !addresses.MatchString(address) {
		return fmt.Errorf("%.40q is no PCI address: 0000:3b:02.1 is right", address)
	}
	return nil
}

func checkDriver(driver string) error {
	if !drivers.MatchString(driver) {
		return fmt.Errorf("%.80q is no name of a driver: 1 to 64 letters, digits, _ and - are right", driver)
	}
	return nil
}

const busPCI = "bus/pci"

// function is a PCI function; its directory stays that of the one that was opened.
type function struct {
	address string
	dir     sysfs.Dir
}

// function opens that of an address; close its directory.
func (h *Host) function(address string) (function, error) {
	if err := checkAddress(address); err != nil {
		return function{}, err
	}
	dir, err := sysfs.Open(filepath.Join(h.config.Sysfs, busPCI, "devices", address))
	if sysfs.IsAbsent(err) {
		return function{}, fmt.Errorf("there is no function %s: %w", address, err)
	}
	return function{address, dir}, err
}

// physical is the address of the PF of a function: its own, of a PF. It also
// takes functions that are not there.
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
	if err := checkAddress(pf); err != nil {
		return "", fmt.Errorf("physfn of %s: %w", address, err)
	}
	return pf, nil
}

// link is the last element of a link's target; "" where there is none.
func (f function) link(name string) (string, error) {
	target, err := f.dir.Link(name)
	if err != nil {
		if sysfs.IsAbsent(err) {
			return "", nil
		}
		return "", err
	}
	return target[strings.LastIndexByte(target, '/')+1:], nil
}

// driver is the bound one; "" is none.
func (f function) driver() (string, error) {
	driver, err := f.link("driver")
	if err != nil || driver == "" {
		return "", err
	}
	return driver, checkDriver(driver)
}

// override is the driver that alone may have the function; "" is any.
func (f function) override() (string, error) {
	text, err := f.dir.Text("driver_override")
	if err != nil || text == "(null)" {
		return "", err
	}
	return text, nil
}

var errNoNetdev = errors.New("it has no network device in this network namespace")

// netdev is the function's own network device. In switchdev mode the ports of
// the embedded switch lie beside it.
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
		if len(names) > 1 && f.isRepresentor(name) {
			continue
		}
		return name, nil
	}
	driver, err := f.driver()
	if err != nil {
		return "", err
	}
	if driver == "" {
		driver = "none"
	}
	return "", fmt.Errorf("%s: %w: its driver is %s; a network driver is right, and the device may be in a pod", f.address, errNoNetdev, driver)
}

// virtioNetdevs are below the function's virtio device.
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

// names lists a directory; one that is not there is empty.
func (f function) names(dir string) ([]string, error) {
	d, err := f.dir.Open(dir)
	if err != nil {
		if sysfs.IsAbsent(err) {
			return nil, nil
		}
		return nil, err
	}
	defer d.Close()
	return d.Names()
}

// hasDriver tells a driver that the kernel has loaded.
func (h *Host) hasDriver(bus, driver string) (bool, error) {
	dir, err := sysfs.Open(filepath.Join(h.config.Sysfs, bus, "drivers", driver))
	if err != nil {
		if sysfs.IsAbsent(err) {
			return false, nil
		}
		return false, err
	}
	dir.Close()
	return true, nil
}

// write writes below sysfs, unless nobody waits for it any more.
func (h *Host) write(ctx context.Context, c *call, value string, name ...string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	path := filepath.Join(append([]string{h.config.Sysfs}, name...)...)
	c.at("write %q to %s", strings.TrimSpace(value), path)
	err := h.config.Write(path, value)
	c.at("look at what became of %q in %s", strings.TrimSpace(value), path)
	if errors.Is(err, unix.EACCES) || errors.Is(err, unix.EROFS) {
		return fmt.Errorf("write %q: %w: sysfs must be mounted writable, and the process be root in the machine's user namespace", strings.TrimSpace(value), err)
	}
	if err != nil {
		return fmt.Errorf("write %q: %w", strings.TrimSpace(value), err)
	}
	return nil
}
