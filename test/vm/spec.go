// Package vm boots Linux guests under QEMU for tests that need their own
// kernel, power supply or devices. The processor is emulated, so neither KVM
// nor root is needed. See CONTRIBUTING.md on running and debugging guests.
package vm

import (
	"time"

	"github.com/cleatproject/cleat/test/vm/image"
)

// Spec describes a guest. The zero value boots Debian's kernel with busybox
// only: no file system modules and no disk.
type Spec struct {
	// Name appears in messages and in the console's file name; empty is
	// "guest".
	Name string
	// Kernel and Emulator are the sources of the kernel and of QEMU; empty is
	// image.Stable.
	Kernel, Emulator image.Source
	// Memory in MiB; 0 is 1024. Processors; 0 is 1.
	Memory, Processors int
	// Disks become /dev/vda, /dev/vdb and so on, in this order.
	Disks []Disk
	// Modules and their dependencies are loaded before the guest is ready.
	// Extra modules are only available to modprobe and kernel autoloading.
	Modules, Extra []string
	// Tools are Debian programs, such as image.Filesystems(), in addition to
	// busybox.
	Tools []string
	// Programs (static binaries of the host) are copied into /usr/bin, Files
	// (guest path to host path) elsewhere. Executable bits are kept. All are
	// held in guest memory.
	Programs []string
	Files    map[string]string
	// Devices are additional QEMU arguments; see IGB, Cable.
	Devices []string
	// KernelArgs are added to the kernel's command line.
	KernelArgs []string
	// BootTime limits the boot, Lifetime the guest's run time; 0 is 5 minutes
	// and 20 minutes.
	BootTime, Lifetime time.Duration
	// Terminal connects the guest's console to this process's terminal.
	Terminal bool
	// Slots come from ReserveSlots, for a test that runs two guests at once.
	Slots *Slots
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
		s.BootTime = 5 * time.Minute
	}
	if s.Lifetime == 0 {
		s.Lifetime = 20 * time.Minute
	}
	return s
}

// recipe returns the contents of the guest's image. virtio_rng seeds the
// kernel's random numbers; without a seed their readers block.
func (s Spec) recipe() image.Recipe {
	modules := []string{"virtio_pci", "virtio_rng", "virtio_net", "configfs"}
	if len(s.Disks) > 0 {
		modules = append(modules, "virtio_blk")
	}
	modules = append(modules, s.Modules...)
	return image.Recipe{Kernel: s.Kernel, Modules: modules, Extra: s.Extra, Programs: s.Tools}
}
