package inventory

import (
	"cmp"
	"regexp"
	"strings"
)

// devicePath is the path of a device below a PCI function, from a link of sysfs:
// ../../devices/pci0000:00/0000:00:03.0/virtio2/net/eth0 is at 0000:00:03.0, below it virtio2.
type devicePath struct {
	address string // of the nearest PCI function; "" for none
	below   string // what is between that and the device
}

// String is the address and what is below it.
func (p devicePath) String() string { return strings.TrimSuffix(p.address+"/"+p.below, "/") }

// parseDevicePath parses a link's target, of which the last own elements are the
// device's: its name, and its class if it has one.
func parseDevicePath(target string, own int) devicePath {
	for range own {
		target = target[:max(strings.LastIndexByte(target, '/'), 0)]
	}
	for above := target; above != ""; {
		i := strings.LastIndexByte(above, '/')
		if name := above[i+1:]; isAddress(name) {
			return devicePath{name, strings.TrimPrefix(target[i+1+len(name):], "/")}
		}
		above = above[:max(i, 0)]
	}
	return devicePath{}
}

// isFunction reports whether the device is the function's own: directly below it,
// or below its only virtio device.
func (p devicePath) isFunction() bool {
	return p.address != "" && (p.below == "" || strings.HasPrefix(p.below, "virtio") && !strings.Contains(p.below, "/"))
}

// pciAddress is like 0000:3b:02.1, as the kernel writes it. A domain can have more
// digits (VMD's have five).
var pciAddress = regexp.MustCompile(`^[0-9a-f]{4,8}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]$`)

func isAddress(s string) bool { return pciAddress.MatchString(s) }

// compareAddresses orders by number: domain 10000 is after ffff.
func compareAddresses(a, b string) int {
	return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a, b))
}

// base is the last element of a link's target.
func base(target string) string { return target[strings.LastIndexByte(target, '/')+1:] }
