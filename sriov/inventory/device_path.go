package inventory

import (
	"cmp"
	"strings"
)

// devicePath is where a device hangs, from the link that names it:
// ../../devices/pci0000:00/0000:00:03.0/virtio2/net/eth0 is at 0000:00:03.0, below it virtio2.
type devicePath struct {
	address string // of the nearest PCI function above; "" is none
	below   string // what is between that and the device; "" is nothing
}

// String is the address, with what is below it if anything is; "" is nowhere.
func (p devicePath) String() string { return strings.TrimSuffix(p.address+"/"+p.below, "/") }

// parseDevicePath takes a link's target, of which the last elements are the device's
// own: its name, and a class where it has one.
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

// isFunction tells that the device is the function's own: right below it, or
// below its only virtio device.
func (p devicePath) isFunction() bool {
	return p.address != "" && (p.below == "" || strings.HasPrefix(p.below, "virtio") && !strings.Contains(p.below, "/"))
}

// isAddress tells 0000:3b:02.1. A domain may have more digits (VMD's have five).
func isAddress(s string) bool {
	domain, rest, ok := strings.Cut(s, ":")
	return ok && len(domain) >= 4 && len(domain) <= 8 && isHex(domain) &&
		len(rest) == len("3b:02.1") && isHex(rest[0:2]) && rest[2] == ':' && (rest[3] == '0' || rest[3] == '1') && isHex(rest[4:5]) && rest[5] == '.' &&
		rest[6] >= '0' && rest[6] <= '7'
}

// isHex is true of lower-case digits alone: that is how the kernel writes addresses.
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
