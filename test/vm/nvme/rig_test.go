// Package nvme tests node/nvme, and the node service of cleat csi with it, in
// guests that are NVMe/TCP host and target at once.
package nvme

import (
	"fmt"
	"net/netip"
	"path"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/cleatproject/cleat/test/vm"
	"github.com/cleatproject/cleat/test/vm/image"
	"github.com/cleatproject/cleat/test/vm/kernel"
	"github.com/cleatproject/cleat/test/vm/nodeservice"
	"github.com/cleatproject/cleat/test/vm/nvmetcp"
)

const (
	mib = 1 << 20
	// media has the files of the target: a file system in memory.
	media = "/tmp/media"
)

// paths are the ports of the target.
var paths = []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:4420"), netip.MustParseAddrPort("127.0.0.2:4420")}

// hostNQN is the driver's own.
var hostNQN = nvmetcp.HostOf("5b6a1f52-0d3c-4c53-8f6e-00000000000a").NQN

// rig is a guest that is host and target, with the node service.
type rig struct {
	*nodeservice.Node
	source image.Source
	target *nvmetcp.Target
}

func newRig(t *testing.T, source image.Source) *rig {
	r := bootRig(t, source)
	r.Run("mkdir", "-p", nodeservice.Volumes)
	r.Start()
	return r
}

// bootRig boots a guest with a target, and without the node service.
func bootRig(t *testing.T, source image.Source, disks ...vm.Disk) *rig {
	t.Helper()
	g := vm.Boot(t, vm.Spec{
		Name: "nvme-" + string(source), Kernel: source, Disks: disks,
		Modules: append(append(nvmetcp.TargetModules(), nvmetcp.HostModules()...), "ext4", "xfs", "btrfs", "loop"), Tools: image.Filesystems(),
		Programs: programs("cleat", "suite", "writer"), Lifetime: lifetime(),
	})
	r := &rig{source: source, Node: nodeservice.New(kernel.Of(t, g), "--engine", "none", "--services", "node", "--node-id", "guest", "--nvme-host-nqn", hostNQN, "--nvme-key-dir", keys)}
	r.Run("mkdir", "-p", media)
	r.target = nvmetcp.Serve(r.Kernel, paths[0])
	r.target.Listen(paths[1])
	return r
}

// in returns the rig for a subtest.
func (r *rig) in(t testing.TB) *rig {
	sub := *r
	sub.Node = r.Node.In(t)
	sub.target = r.target.In(sub.Kernel)
	return &sub
}

func subsystemNQN(name string) string { return "nqn.2024-01.example:" + name }

// medium creates a file of the target, as large as a volume.
func (r *rig) medium(name string, size int64) nvmetcp.Namespace {
	file := path.Join(media, name)
	r.Run("truncate", "-s", fmt.Sprint(size), file)
	return nvmetcp.Namespace{Device: file, UUID: uuid.NewString()}
}

// subsystem adds a subsystem to the target, with a namespace in each file.
func (r *rig) subsystem(name string, hosts []string, namespaces ...nvmetcp.Namespace) nvmetcp.Subsystem {
	s := nvmetcp.Subsystem{
		NQN: subsystemNQN(name), Device: namespaces[0].Device, UUID: namespaces[0].UUID, More: namespaces[1:], Hosts: hosts,
	}
	r.target.Add(s)
	return s
}

// controllers are those of all programs.
func (r *rig) controllers() []string { return r.Names("/sys/class/nvme") }

// wantNothing: nothing is left of volumes, except at the target.
func (r *rig) wantNothing() {
	r.Helper()
	left := r.Run("sh", "-c", `
		ls /sys/class/nvme
		grep -e "$0/" -e /dev/nvme /proc/mounts
		ls -d "$0"/*/target "$1"/nvme/*.json* 2>/dev/null
		true`, nodeservice.Volumes, nodeservice.State)
	if left != "" {
		r.Errorf("left over:\n%s", left)
	}
}

// wantError checks the code and the words of a refusal.
func (r *rig) wantError(err error, words ...string) {
	r.Helper()
	for _, w := range words {
		if err == nil || !strings.Contains(err.Error(), w) {
			r.Errorf("got %v, want an error with %q", err, w)
		}
	}
}
