// Package vm boots Linux guests under QEMU for tests that need a kernel, a
// power supply or devices of their own. It emulates the processor, so it needs
// no KVM and no privilege. See CONTRIBUTING.md on running and debugging guests.
package vm

import (
	"time"

	"github.com/cleatproject/cleat/test/vm/image"
)

// Spec describes a guest. The zero value boots Debian's kernel with the file
// systems' modules absent, no disk and busybox only.
type Spec struct {
	// Name is for messages and the console's file; empty is "guest".
	Name string
	// Kernel is the kernel's source, Emulator that of QEMU; empty is
	// image.Stable. Emulator may differ from Kernel.
	Kernel, Emulator image.Source
	// Memory in MiB; 0 is 1024. Processors; 0 is 1.
	Memory, Processors int
	// Disks become /dev/vda, /dev/vdb and so on, in this order.
	Disks []Disk
	// Modules are loaded before the guest is ready, with what they need; Extra
	// ones are there for modprobe and for the kernel when it asks.
	Modules, Extra []string
	// Tools are programs of Debian, such as image.Filesystems(); busybox is
	// always there.
	Tools []string
	// Programs of the host (static ones) are put into /usr/bin, Files
	// elsewhere: path in the guest to path of the host. Each is executable in
	// the guest if it is on the host. The guest has them in memory.
	Programs []string
	Files    map[string]string
	// Devices are more arguments for QEMU; see IGB, NVMe, Cable.
	Devices []string
	// KernelArgs are added to the kernel's command line.
	KernelArgs []string
	// BootTime and Lifetime bound the boot and the whole life of the guest; 0
	// is 2 minutes and 10 minutes.
	BootTime, Lifetime time.Duration
	// Terminal makes this process's terminal the guest's console, for a person.
	Terminal bool
	// Seats come from Reserve when a test runs two guests at once.
	Seats *Seats
}

func (s Spec) withDefaults() Spec {
	if s.Name == "" {
		s.Name = "guest"
	}
	if s.Kernel == "" {
		s.Kernel = image.Stable
	}
	if s.Emulator == "" {
		s.Emulator = image.Stable
	}
	if s.Memory == 0 {
		s.Memory = 1024
	}
	if s.Processors == 0 {
		s.Processors = 1
	}
	if s.BootTime == 0 {
		s.BootTime = 2 * time.Minute
	}
	if s.Lifetime == 0 {
		s.Lifetime = 10 * time.Minute
	}
	return s
}

// recipe is what the guest's image is made of. virtio_rng seeds the kernel's
// random numbers; without them everything that asks for some waits.
func (s Spec) recipe() image.Recipe {
	modules := []string{"virtio_pci", "virtio_rng", "virtio_net", "configfs"}
	if len(s.Disks) > 0 {
		modules = append(modules, "virtio_blk")
	}
	modules = append(modules, s.Modules...)
	return image.Recipe{Kernel: s.Kernel, Modules: modules, Extra: s.Extra, Programs: s.Tools}
}
