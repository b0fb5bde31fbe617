package inventory

import (
	"cmp"
	"regexp"
	"strings"
)

// devicePath is parsed from a sysfs link:
// ../../devices/pci0000:00/0000:00:03.0/virtio2/net/eth0 has address
// 0000:00:03.0 and below virtio2.
type devicePath struct {
	address string // nearest PCI function; "" for none
	below   string // path between the function and the device
}

func (p devicePath) String() string { return strings.TrimSuffix(p.address+"/"+p.below, "/") }

// parseDevicePath parses a link target. The last own elements are the device's
// name and, for a class device, its class.
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

// isFunction: the device is directly below the function, or below its virtio
// device.
func (p devicePath) isFunction() bool {
	return p.address != "" && (p.below == "" || strings.HasPrefix(p.below, "virtio") && !strings.Contains(p.below, "/"))
}

// pciAddress matches an address as the kernel writes it: 0000:3b:02.1. A domain
// can have more than four digits (VMD uses five).
var pciAddress = regexp.MustCompile(`^[0-9a-f]{4,8}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]$`)

func isAddress(s string) bool { return pciAddress.MatchString(s) }

// compareAddresses compares numerically: domain 10000 sorts after ffff.
func compareAddresses(a, b string) int {
	return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a, b))
}

func base(target string) string { return target[strings.LastIndexByte(target, '/')+1:] }
