package vm

import (
	"fmt"
	"path/filepath"
)

// IGB is a network card with seven virtual functions (Intel 82576, drivers igb
// and igbvf) on its own PCI Express port. It needs the emulator of the
// backports. slot, from 1, must be unique among the cards of a guest.
func IGB(slot int) []string {
	port := fmt.Sprintf("port%d", slot)
	return []string{
		"-device", fmt.Sprintf("pcie-root-port,id=%s,chassis=%d,slot=%d", port, slot, slot),
		"-netdev", fmt.Sprintf("user,id=igb%d,ipv6=off", slot),
		"-device", fmt.Sprintf("igb,bus=%s,netdev=igb%d,mac=%s", port, slot, mac(0x10+slot)),
	}
}

// Cable connects two guests: each end is a virtio network card next to the one
// that leads to the host. Either guest can restart.
type Cable struct{ dir string }

// NewCable returns a cable whose sockets are in dir. The path must be short,
// because socket paths are limited.
func NewCable(dir string) Cable { return Cable{dir} }

// MAC is the hardware address of end 0 or 1.
func (c Cable) MAC(end int) string { return mac(0x20 + end) }

// End returns the QEMU arguments of end 0 or 1.
func (c Cable) End(end int) []string {
	return []string{
		"-netdev", fmt.Sprintf("dgram,id=cable,local.type=unix,local.path=%s,remote.type=unix,remote.path=%s", escape(c.socket(end)), escape(c.socket(1-end))),
		"-device", "virtio-net-pci,netdev=cable,romfile=,mac=" + c.MAC(end),
	}
}

func (c Cable) socket(end int) string { return filepath.Join(c.dir, fmt.Sprintf("end%d", end)) }

// Tap connects a guest to a network of the host, next to the card that leads to
// the host's loopback: QEMU creates the host's interface, which needs root. n,
// from 0, must be unique on that network.
type Tap struct {
	Interface string // of the host
	N         int
}

// MAC is the hardware address of the guest's interface.
func (p Tap) MAC() string { return mac(0x30 + p.N) }

// Args returns the QEMU arguments.
func (p Tap) Args() []string {
	return []string{
		"-netdev", "tap,id=tap,script=no,downscript=no,ifname=" + escape(p.Interface),
		"-device", "virtio-net-pci,netdev=tap,romfile=,mac=" + p.MAC(),
	}
}

// mac is the locally administered hardware address of a device of this package.
func mac(device int) string { return fmt.Sprintf("52:54:00:c1:ea:%02x", device) }
