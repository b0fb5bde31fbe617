package vm

import (
	"strconv"
	"strings"

	"github.com/cleatproject/cleat/test/vm/image"
)

// The user network of QEMU: the host's loopback is at hostAddress.
const (
	guestAddress = "10.0.2.15/24"
	hostAddress  = "10.0.2.2"
)

// hostSide is the device number of the card that leads to the host.
const hostSide = 0

// files are what the arguments name.
type files struct {
	kernel, initrd  string
	monitor, serial string // sockets
	console         string // what went over the serial line
}

// processor is a model without AVX: each switch of context would emulate saving
// its registers.
const processor = "Nehalem"

// arguments is QEMU's command line without the program. The order of devices
// is the order in which the guest finds them.
func arguments(s Spec, q image.QEMU, f files) []string {
	args := append(append([]string{}, q.Args...),
		"-name", s.Name, "-M", "q35", "-accel", "tcg,thread=multi", "-cpu", processor,
		"-smp", strconv.Itoa(s.Processors), "-m", strconv.Itoa(s.Memory),
		"-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
		"-chardev", serialLine(s, f), "-serial", "chardev:console",
		"-qmp", "unix:"+escape(f.monitor)+",server=on,wait=off",
		"-kernel", f.kernel, "-initrd", f.initrd, "-append", strings.Join(commandLine(s), " "),
		"-device", "virtio-rng-pci",
		"-netdev", "user,id=host,ipv6=off,restrict=off", "-device", "virtio-net-pci,netdev=host,romfile=,mac="+mac(hostSide),
	)
	for i, disk := range s.Disks {
		args = append(args, disk.Args(DiskNode(i))...)
	}
	return append(args, s.Devices...)
}

// serialLine is the guest's console: kept in a file, and open to a person at a
// socket or at this process's terminal.
func serialLine(s Spec, f files) string {
	if s.Terminal {
		return "stdio,id=console,mux=off,signal=off,logfile=" + escape(f.console)
	}
	return "socket,id=console,server=on,wait=off,path=" + escape(f.serial) + ",logfile=" + escape(f.console)
}

// DiskNode is QEMU's name of the guest's i-th disk, which is its serial number
// in the guest as well.
func DiskNode(i int) string { return "disk" + strconv.Itoa(i) }

// commandLine is the kernel's. A panic ends QEMU. On a busy host the emulated
// timers look broken to the kernel: a kernel parameter makes it trust them. Security modules
// are off: they check every call of the guest's programs.
func commandLine(s Spec) []string {
	return append([]string{"console=ttyS0", "quiet", "panic=-1", "mitigations=off", "no_timer_check", "tsc=reliable", "lsm="}, s.KernelArgs...)
}

// escape writes a value for one of QEMU's comma-separated lists.
func escape(value string) string { return strings.ReplaceAll(value, ",", ",,") }
