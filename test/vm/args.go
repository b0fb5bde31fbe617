package vm

import (
	"strconv"
	"strings"

	"github.com/cleatproject/cleat/test/vm/image"
)

// The user network of QEMU: the host's loopback is at hostAddress.
const (
	guestMAC     = "52:54:00:c1:ea:70"
	guestAddress = "10.0.2.15/24"
	hostAddress  = "10.0.2.2"
)

// files are what the arguments name.
type files struct {
	kernel, initrd, monitor, console string
}

// arguments is QEMU's command line without the program. The order of devices
// is the order in which the guest finds them.
func arguments(s Spec, q image.QEMU, f files) []string {
	args := append(append([]string{}, q.Args...),
		"-name", s.Name, "-M", "q35", "-accel", "tcg,thread=multi", "-cpu", "max",
		"-smp", strconv.Itoa(s.Processors), "-m", strconv.Itoa(s.Memory),
		"-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
		"-chardev", "file,id=console,path="+escape(f.console), "-serial", "chardev:console",
		"-qmp", "unix:"+escape(f.monitor)+",server=on,wait=off",
		"-kernel", f.kernel, "-initrd", f.initrd, "-append", strings.Join(commandLine(s), " "),
		"-device", "virtio-rng-pci",
		"-netdev", "user,id=host,ipv6=off,restrict=off", "-device", "virtio-net-pci,netdev=host,romfile=,mac="+guestMAC,
	)
	for i, disk := range s.Disks {
		args = append(args, disk.Args(DiskNode(i))...)
	}
	return append(args, s.Devices...)
}

// DiskNode is QEMU's name of the guest's i-th disk, which is its serial number
// in the guest as well.
func DiskNode(i int) string { return "disk" + strconv.Itoa(i) }

// commandLine is the kernel's. A panic ends QEMU.
func commandLine(s Spec) []string {
	return append([]string{
		"console=ttyS0", "quiet", "panic=-1", "mitigations=off", "nokaslr", "no_timer_check", "tsc=reliable", "cryptomgr.notests", "random.trust_cpu=on",
	}, s.KernelArgs...)
}

// escape writes a value for one of QEMU's comma-separated lists.
func escape(value string) string { return strings.ReplaceAll(value, ",", ",,") }
