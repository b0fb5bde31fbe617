// Package nvmetcp manages NVMe/TCP targets and connections in test guests
// without nvme-cli, through configfs and /dev/nvme-fabrics
// (drivers/nvme/target/configfs.c and drivers/nvme/host/fabrics.c in the
// kernel).
package nvmetcp

import (
	"net/netip"
	"path"
	"strconv"
	"strings"

	"github.com/cleatproject/cleat/test/vm/kernel"
)

// TargetModules are the kernel modules of an NVMe/TCP target.
func TargetModules() []string { return []string{"nvmet", "nvmet-tcp"} }

// Subsystem is a subsystem with one namespace, number 1.
type Subsystem struct {
	NQN string
	// Device is a block device of the guest. The target writes through: flushed
	// data is flushed to the device.
	Device string
	// UUID of the namespace. It must stay the same when the target is
	// recreated, or a reconnecting host sees a new disk.
	UUID string
	// Hosts are the NQNs of the allowed hosts.
	Hosts []string
}

// Target is a port that serves subsystems.
type Target struct {
	kernel     *kernel.Kernel
	subsystems []Subsystem
}

const (
	configfs = "/sys/kernel/config/nvmet"
	port     = configfs + "/ports/1"
)

// Serve creates the only target of a guest. Remove is optional; the target ends
// with the guest.
func Serve(k *kernel.Kernel, at netip.AddrPort, subsystems ...Subsystem) *Target {
	k.Helper()
	t := &Target{k, subsystems}
	k.Run("mkdir", port)
	k.Write(port+"/addr_adrfam", "ipv4")
	k.Write(port+"/addr_trtype", "tcp")
	k.Write(port+"/addr_traddr", at.Addr().String())
	k.Write(port+"/addr_trsvcid", strconv.Itoa(int(at.Port())))
	for _, s := range subsystems {
		s.make(k)
		for _, host := range s.Hosts {
			t.Admit(s.NQN, host)
		}
		k.Run("ln", "-s", s.dir(), port+"/subsystems/")
	}
	return t
}

func (s Subsystem) dir() string       { return path.Join(configfs, "subsystems", s.NQN) }
func (s Subsystem) namespace() string { return s.dir() + "/namespaces/1" }

func (s Subsystem) make(k *kernel.Kernel) {
	k.Helper()
	k.Run("mkdir", s.dir(), s.namespace())
	k.Write(s.dir()+"/attr_serial", strings.ReplaceAll(s.UUID, "-", "")[:20]) // random by default
	k.Write(s.dir()+"/attr_allow_any_host", "0")
	k.Write(s.namespace()+"/device_uuid", s.UUID)
	k.Write(s.namespace()+"/device_path", s.Device)
	k.Write(s.namespace()+"/enable", "1")
}

// Admit allows a host to connect to a subsystem.
func (t *Target) Admit(subsystem, host string) {
	t.kernel.Helper()
	dir := path.Join(configfs, "hosts", host)
	t.kernel.Run("mkdir", "-p", dir)
	t.kernel.Run("ln", "-s", dir, path.Join(configfs, "subsystems", subsystem, "allowed_hosts")+"/")
}

// Remove removes the target and disconnects its hosts.
func (t *Target) Remove() {
	k := t.kernel
	k.Helper()
	for _, s := range t.subsystems {
		k.Run("rm", path.Join(port, "subsystems", s.NQN))
		for _, host := range k.Names(s.dir() + "/allowed_hosts") {
			k.Run("rm", path.Join(s.dir(), "allowed_hosts", host))
		}
		k.Write(s.namespace()+"/enable", "0")
		k.Run("rmdir", s.namespace(), s.dir())
	}
	for _, host := range k.Names(configfs + "/hosts") {
		k.Run("rmdir", path.Join(configfs, "hosts", host))
	}
	k.Run("rmdir", port)
}

// TargetObjects lists the target objects in the guest's configfs.
func TargetObjects(k *kernel.Kernel) (all []string) {
	k.Helper()
	for _, kind := range []string{"ports", "subsystems", "hosts"} {
		for _, name := range k.Names(path.Join(configfs, kind)) {
			all = append(all, kind+"/"+name)
		}
	}
	return all
}
