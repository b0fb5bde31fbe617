// Package nvmetcp manages NVMe/TCP targets and connections in test guests
// without nvme-cli, through configfs and /dev/nvme-fabrics
// (drivers/nvme/target/configfs.c and drivers/nvme/host/fabrics.c in the
// kernel).
package nvmetcp

import (
	"net/netip"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/cleatproject/cleat/test/vm/kernel"
)

// TargetModules are the kernel modules of an NVMe/TCP target.
func TargetModules() []string { return []string{"nvmet", "nvmet-tcp"} }

// Subsystem is a subsystem with one namespace, number 1, unless it has More.
type Subsystem struct {
	NQN string
	// Device is a block device of the guest. The target writes through: flushed
	// data is flushed to the device. A file is the page cache of the guest: its
	// file system is one in memory.
	Device string
	// UUID of the namespace. It must stay the same when the target is
	// recreated, or a reconnecting host sees a new disk.
	UUID string
	// More are the namespaces 2, 3, and so on.
	More []Namespace
	// Hosts are the NQNs of the allowed hosts.
	Hosts []string
}

// Namespace is an additional namespace of a Subsystem.
type Namespace struct{ Device, UUID string }

// Target is the target of a guest: ports that serve all its subsystems.
type Target struct {
	kernel     *kernel.Kernel
	ports      []netip.AddrPort
	subsystems []Subsystem
}

const configfs = "/sys/kernel/config/nvmet"

// Serve creates the only target of a guest. Remove is optional; the target ends
// with the guest.
func Serve(k *kernel.Kernel, at netip.AddrPort, subsystems ...Subsystem) *Target {
	k.Helper()
	t := &Target{kernel: k}
	for _, s := range subsystems {
		t.Add(s)
	}
	t.Listen(at)
	return t
}

// In returns the target for a subtest, with the kernel of that. It shares
// nothing that the subtest adds and does not remove.
func (t *Target) In(k *kernel.Kernel) *Target {
	return &Target{k, slices.Clone(t.ports), slices.Clone(t.subsystems)}
}

// portDir depends on the address. Numbers of ports have 16 bits.
func portDir(at netip.AddrPort) string {
	address := at.Addr().AsSlice()
	return path.Join(configfs, "ports", strconv.Itoa(int(address[len(address)-1])<<8^int(at.Port())))
}

func (s Subsystem) dir() string { return path.Join(configfs, "subsystems", s.NQN) }

// run runs shell commands.
func (t *Target) run(script string, args ...string) {
	t.kernel.Helper()
	t.kernel.Run(append([]string{"sh", "-ec", script, "target"}, args...)...)
}

// Listen adds a port with all subsystems. The subsystems come last: a host that
// connects again never finds the port without its subsystem.
func (t *Target) Listen(at netip.AddrPort) {
	t.kernel.Helper()
	family := "ipv4"
	if at.Addr().Is6() {
		family = "ipv6"
	}
	args := []string{portDir(at), family, at.Addr().String(), strconv.Itoa(int(at.Port()))}
	for _, s := range t.subsystems {
		args = append(args, s.dir())
	}
	t.run(`
		port=$1; mkdir $port
		echo -n $2 > $port/addr_adrfam; echo -n tcp > $port/addr_trtype
		echo -n $3 > $port/addr_traddr; echo -n $4 > $port/addr_trsvcid
		shift 4; for s; do ln -s $s $port/subsystems/; done`, args...)
	t.ports = append(t.ports, at)
}

// Close removes a port, which ends its connections.
func (t *Target) Close(at netip.AddrPort) {
	t.kernel.Helper()
	t.run(`for s in $1/subsystems/*; do rm -f $s; done; rmdir $1`, portDir(at))
	t.ports = slices.DeleteFunc(t.ports, func(p netip.AddrPort) bool { return p == at })
}

// SetANA sets the state of all namespaces at a port (asymmetric namespace access):
// optimized, inaccessible and so on. Hosts stay connected.
func (t *Target) SetANA(at netip.AddrPort, state string) {
	t.kernel.Helper()
	t.kernel.Write(path.Join(portDir(at), "ana_groups/1/ana_state"), state)
}

// Add adds a subsystem to all ports.
func (t *Target) Add(s Subsystem) {
	t.kernel.Helper()
	serial := strings.ReplaceAll(s.UUID, "-", "")[:20] // random by default
	args := []string{s.dir(), serial}
	for _, n := range append([]Namespace{{s.Device, s.UUID}}, s.More...) {
		args = append(args, n.Device, n.UUID)
	}
	t.run(`
		s=$1; mkdir $s; echo -n $2 > $s/attr_serial; echo -n 0 > $s/attr_allow_any_host
		shift 2; number=1
		while [ $# -gt 0 ]; do
			n=$s/namespaces/$number; mkdir $n
			if [ -f $1 ]; then echo -n 1 > $n/buffered_io; fi
			echo -n $2 > $n/device_uuid; echo -n $1 > $n/device_path; echo -n 1 > $n/enable
			shift 2; number=$((number+1))
		done`, args...)
	t.subsystems = append(t.subsystems, s)
	for _, host := range s.Hosts {
		t.Admit(s.NQN, host)
	}
	for _, at := range t.ports {
		t.run(`ln -s $1 $2/subsystems/`, s.dir(), portDir(at))
	}
}

// Delete removes a subsystem, which ends its connections.
func (t *Target) Delete(nqn string) {
	t.kernel.Helper()
	args := []string{path.Join(configfs, "subsystems", nqn)}
	for _, at := range t.ports {
		args = append(args, path.Join(portDir(at), "subsystems", nqn))
	}
	t.run(`
		s=$1; shift; for link; do rm $link; done
		for link in $s/allowed_hosts/*; do rm -f $link; done
		for n in $s/namespaces/*; do echo -n 0 > $n/enable; rmdir $n; done
		rmdir $s`, args...)
	t.subsystems = slices.DeleteFunc(t.subsystems, func(s Subsystem) bool { return s.NQN == nqn })
}

// Admit allows a host to connect to a subsystem.
func (t *Target) Admit(subsystem, host string) {
	t.kernel.Helper()
	t.run(`mkdir -p $1; ln -s $1 $2/`, path.Join(configfs, "hosts", host), path.Join(configfs, "subsystems", subsystem, "allowed_hosts"))
}

// RequireKey demands DH-HMAC-CHAP of a host, in all subsystems. It needs a
// target of Linux 6.0 with CONFIG_NVME_TARGET_AUTH.
func (t *Target) RequireKey(host, key string) {
	t.kernel.Helper()
	dir := path.Join(configfs, "hosts", host)
	t.run(`mkdir -p $1; echo -n $2 > $1/dhchap_key`, dir, key)
}

// Resized makes the target read the size of a namespace's device, and inform
// hosts.
func (t *Target) Resized(subsystem string, number int) {
	t.kernel.Helper()
	t.kernel.Write(path.Join(configfs, "subsystems", subsystem, "namespaces", strconv.Itoa(number), "revalidate_size"), "1")
}

// Remove removes the target and disconnects its hosts.
func (t *Target) Remove() {
	k := t.kernel
	k.Helper()
	for _, s := range slices.Clone(t.subsystems) {
		t.Delete(s.NQN)
	}
	for _, at := range slices.Clone(t.ports) {
		t.Close(at)
	}
	t.run(`for host in $1/*; do [ ! -d $host ] || rmdir $host; done`, configfs+"/hosts")
}
