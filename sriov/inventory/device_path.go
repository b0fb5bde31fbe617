package inventory

import (
	"cmp"
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

// isAddress reports whether a text is like 0000:3b:02.1. A domain can have more
// digits (VMD's have five).
func isAddress(s string) bool {
	domain, rest, ok := strings.Cut(s, ":")
	return ok && len(domain) >= 4 && len(domain) <= 8 && isHex(domain) &&
		len(rest) == len("3b:02.1") && isHex(rest[0:2]) && rest[2] == ':' && (rest[3] == '0' || rest[3] == '1') && isHex(rest[4:5]) && rest[5] == '.' &&
		rest[6] >= '0' && rest[6] <= '7'
}

// isHex accepts lower-case digits alone, as the kernel writes addresses.
func isHex(s string) bool {
	for i := range len(s) {
		if c := s[i]; (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return s != ""
}

// compareAddresses orders by number: domain 10000 is after ffff.
func compareAddresses(a, b string) int {
	return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a, b))
}

// base is the last element of a link's target.
func base(target string) string { return target[strings.LastIndexByte(target, '/')+1:] }
