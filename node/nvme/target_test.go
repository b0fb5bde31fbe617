package nvme_test

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/google/uuid"

	kernel "github.com/cleatproject/cleat/internal/linux/nvme"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/volume/access"
)

// kernelTarget is the kernel's own target (nvmet), configured through configfs:
// one subsystem with one namespace for each volume, in files.
type kernelTarget struct {
	*testing.T
	dir     string
	port    string
	volumes map[string]string // subsystem by id
	last    int
}

const nvmet = "/sys/kernel/config/nvmet"

var portAddress = netip.MustParseAddrPort("127.0.0.1:4420")

// newTarget shares the port with targets of other tests. The port has a
// subsystem without a volume, since it does not listen without one.
func newTarget(t *testing.T) *kernelTarget {
	k := &kernelTarget{T: t, dir: t.TempDir(), port: nvmet + "/ports/1", volumes: map[string]string{}}
	if k.listen(k.port, portAddress) {
		const empty = "nqn.2024-01.example:empty"
		testkit.Must(k, os.Mkdir(nvmet+"/subsystems/"+empty, 0o755), os.Symlink(nvmet+"/subsystems/"+empty, k.port+"/subsystems/"+empty))
	}
	t.Cleanup(func() {
		for id := range k.volumes {
			k.remove(id)
		}
	})
	return k
}

// listen makes a port, unless it exists.
func (k *kernelTarget) listen(port string, at netip.AddrPort) (isNew bool) {
	k.Helper()
	if err := os.Mkdir(port, 0o755); err != nil {
		return false
	}
	family := "ipv4"
	if at.Addr().Is6() {
		family = "ipv6"
	}
	k.write(port+"/addr_adrfam", family)
	k.write(port+"/addr_trtype", "tcp")
	k.write(port+"/addr_traddr", at.Addr().String())
	k.write(port+"/addr_trsvcid", strconv.Itoa(int(at.Port())))
	return true
}

func (k *kernelTarget) write(path, text string) {
	k.Helper()
	testkit.Must(k, os.WriteFile(path, []byte(text), 0))
}

func (k *kernelTarget) create(id string, size int64) access.NVMe {
	k.Helper()
	k.last++
	name := fmt.Sprintf("%s-%d", filepath.Base(k.dir), k.last)
	l := access.NVMe{Transport: "tcp", Paths: []netip.AddrPort{portAddress}, NQN: "nqn.2024-01.example:" + filepath.Base(k.Name()) + "-" + id + "-" + uuid.NewString(), UUID: uuid.NewString()}
	file := filepath.Join(k.dir, name)
	testkit.Must(k, os.WriteFile(file, nil, 0o600), os.Truncate(file, size))
	subsystem := nvmet + "/subsystems/" + l.NQN
	testkit.Must(k, os.Mkdir(subsystem, 0o755))
	k.write(subsystem+"/attr_allow_any_host", "1")
	namespace := subsystem + "/namespaces/1"
	testkit.Must(k, os.Mkdir(namespace, 0o755))
	k.write(namespace+"/buffered_io", "1") // a file of tmpfs
	k.write(namespace+"/device_uuid", l.UUID)
	k.write(namespace+"/device_path", file)
	k.write(namespace+"/enable", "1")
	k.volumes[id] = l.NQN
	k.link(id)
	return l
}

// link lets hosts connect to a volume; unlink ends their connections.
func (k *kernelTarget) link(id string) {
	k.Helper()
	testkit.Must(k, os.Symlink(nvmet+"/subsystems/"+k.volumes[id], k.port+"/subsystems/"+k.volumes[id]))
}

func (k *kernelTarget) unlink(id string) {
	k.Helper()
	testkit.Must(k, os.Remove(k.port+"/subsystems/"+k.volumes[id]))
}

// remove removes a volume, and waits until the host has noticed.
func (k *kernelTarget) remove(id string) {
	k.Helper()
	nqn := k.volumes[id]
	delete(k.volumes, id)
	subsystem := nvmet + "/subsystems/" + nqn
	k.write(subsystem+"/namespaces/1/enable", "0")
	testkit.Eventually(k, "the host has removed the disk", func() bool {
		disks, err := kernel.Host().Namespaces(nqn)
		return err == nil && len(disks) == 0
	})
	testkit.Must(k, os.Remove(k.port+"/subsystems/"+nqn), os.Remove(subsystem+"/namespaces/1"), os.Remove(subsystem))
}

func (k *kernelTarget) grow(id string, size int64) {
	k.Helper()
	namespace := nvmet + "/subsystems/" + k.volumes[id] + "/namespaces/1"
	file := testkit.Value(os.ReadFile(namespace + "/device_path"))(k)
	testkit.Must(k, os.Truncate(string(file[:len(file)-1]), size))
	k.write(namespace+"/revalidate_size", "1")
}
