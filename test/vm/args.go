package vm

import (
	"strconv"
	"strings"

	"github.com/cleatproject/cleat/test/vm/image"
)

// The addresses of QEMU's user network. HostAddress reaches the host's
// loopback.
const (
	guestAddress = "10.0.2.15/24"
	HostAddress  = "10.0.2.2"
)

// hostSide is the device number of the network card that leads to the host.
const hostSide = 0

// files are the paths used in the arguments.
type files struct {
	kernel, initrd  string
	monitor, serial string // sockets
	console         string // log of the serial line
}

// processor is a CPU model without AVX: emulating the save of AVX registers
// would slow every context switch.
const processor = "Nehalem"

// arguments returns QEMU's command line without the program. The guest
// enumerates devices in this order.
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

// serialLine configures the guest's console: logged to a file, and connected to
// a socket or to this process's terminal.
func serialLine(s Spec, f files) string {
	if s.Terminal {
		return "stdio,id=console,mux=off,signal=off,logfile=" + escape(f.console)
	}
	return "socket,id=console,server=on,wait=off,path=" + escape(f.serial) + ",logfile=" + escape(f.console)
}

// DiskNode is the QEMU node name of the guest's i-th disk and the disk's serial
// number in the guest.
func DiskNode(i int) string { return "disk" + strconv.Itoa(i) }

// commandLine returns the kernel's parameters. A panic ends QEMU. Emulated
// timers look broken on a busy host, so the kernel must not check them, nor trust
// the frequency of the TSC, which it measures: its clock was five times too fast
// then. The HPET states its frequency. Security modules are off because they slow every system call.
func commandLine(s Spec) []string {
	return append([]string{"console=ttyS0", "quiet", "panic=-1", "mitigations=off", "no_timer_check", "clocksource=hpet", "tsc=unstable", "lsm="}, s.KernelArgs...)
}

// escape quotes a value for QEMU's comma-separated lists.
func escape(value string) string { return strings.ReplaceAll(value, ",", ",,") }
