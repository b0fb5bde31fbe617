package nvmetcp

import (
	"fmt"
	"net/netip"
	"path"
	"regexp"
	"strings"

	"github.com/cleatproject/cleat/test/vm/kernel"
)

// HostModules are the kernel modules of an NVMe/TCP host.
func HostModules() []string { return []string{"nvme-tcp"} }

// Host identifies an NVMe host.
type Host struct{ NQN, ID string }

// HostOf returns the host of a UUID, with an NQN by NVM Express Base
// Specification 2.0, section 4.5.
func HostOf(uuid string) Host { return Host{"nqn.2014-08.org.nvmexpress:uuid:" + uuid, uuid} }

// Connection is a request to connect to a subsystem.
type Connection struct {
	Target    netip.AddrPort
	Subsystem string // NQN
	Host      Host
	Options   []string // additional kernel options, such as keep_alive_tmo=5
}

// options is the line written to /dev/nvme-fabrics.
func (c Connection) options() string {
	return strings.Join(append([]string{
		"transport=tcp", "traddr=" + c.Target.Addr().String(), fmt.Sprintf("trsvcid=%d", c.Target.Port()),
		"nqn=" + c.Subsystem, "hostnqn=" + c.Host.NQN, "hostid=" + c.Host.ID,
	}, c.Options...), ",")
}

// Controller is an NVMe controller of the host's kernel.
type Controller struct {
	// Name is the kernel's name, such as nvme0.
	Name   string
	kernel *kernel.Kernel
}

// Connect connects a guest to a subsystem; see Kernel.WantErrno for errors.
func Connect(k *kernel.Kernel, c Connection) (*Controller, error) {
	k.Helper()
	// The answer must be read from the file descriptor that wrote the request.
	answer, err := k.Try("sh", "-c", `exec 3<>/dev/nvme-fabrics && echo -n "$0" >&3 && cat <&3`, c.options())
	if err != nil {
		return nil, fmt.Errorf("connect to %s at %v: %w", c.Subsystem, c.Target, err)
	}
	var instance, id int
	if _, err := fmt.Sscanf(answer, "instance=%d,cntlid=%d", &instance, &id); err != nil {
		return nil, fmt.Errorf("connect to %s at %v: unexpected answer %q of /dev/nvme-fabrics: %w", c.Subsystem, c.Target, answer, err)
	}
	return &Controller{fmt.Sprintf("nvme%d", instance), k}, nil
}

func (c *Controller) dir() string { return "/sys/class/nvme/" + c.Name }

// Attribute reads a sysfs attribute of the controller, such as state.
func (c *Controller) Attribute(name string) string {
	c.kernel.Helper()
	return c.kernel.Read(path.Join(c.dir(), name))
}

// Disconnect disconnects and waits until the controller is removed.
func (c *Controller) Disconnect() {
	c.kernel.Helper()
	c.kernel.Write(c.dir()+"/delete_controller", "1")
	c.kernel.Await("controller "+c.Name+" is gone", func() bool { return len(c.kernel.Names(c.dir())) == 0 })
}

// diskName matches a namespace's block device, but not the hidden devices of
// its paths (nvme0c0n1).
var diskName = regexp.MustCompile(`^nvme\d+n\d+$`)

// Disks are the names of the guest's NVMe disks.
func Disks(k *kernel.Kernel) (all []string) {
	k.Helper()
	for _, name := range k.Names("/sys/block") {
		if diskName.MatchString(name) {
			all = append(all, name)
		}
	}
	return all
}

// AwaitDisk waits for the disk with the namespace UUID, because the kernel
// scans namespaces after connecting. It returns the disk's name.
func AwaitDisk(k *kernel.Kernel, uuid string) (name string) {
	k.Helper()
	k.Await("there is a disk with the UUID "+uuid, func() bool {
		for _, name = range Disks(k) {
			if got, err := k.Try("cat", path.Join("/sys/block", name, "uuid")); err == nil && got == uuid {
				_, err := k.Try("test", "-b", "/dev/"+name)
				return err == nil
			}
		}
		return false
	})
	return name
}
