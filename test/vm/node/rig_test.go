// Package node tests cleat csi in a guest that is rebooted, whose volumes grow
// in use, and whose disk fails.
package node

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	csi "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/test/vm"
	"github.com/cleatproject/cleat/test/vm/disk"
	"github.com/cleatproject/cleat/test/vm/image"
	"github.com/cleatproject/cleat/test/vm/kernel"
	"github.com/cleatproject/cleat/test/vm/nodeservice"
)

const (
	mib    = 1 << 20
	nodeID = "guest-1"

	// The pool has its own disk. The machine's disk holds the state of driver
	// and kubelet that must survive a reboot.
	data    = "/data"
	pool    = data + "/pool"
	metrics = "/run/cleat/metrics/m.sock"
)

// cleat is the path of the program under test.
var cleat string

func TestMain(m *testing.M) {
	os.Exit(testkit.RunMain(m, func(dir string) error {
		cleat = filepath.Join(dir, "cleat")
		return testkit.BuildTo(context.Background(), cleat, testkit.Cleat)
	}))
}

// rig is a guest with a data disk and the driver that runs in it.
type rig struct {
	*nodeservice.Node
	t      testing.TB
	fsType string
	kernel image.Source
	disk   *disk.Disk // disk of the pool
	own    *disk.Disk // disk of the machine
}

// newRig boots a guest, formats the pool's disk with fsType and starts the
// driver.
func newRig(t testing.TB, fsType string, kernel image.Source) *rig {
	t.Helper()
	r := &rig{t: t, fsType: fsType, kernel: kernel}
	r.disk, r.own = r.newDisk("pool", 3<<30), r.newDisk("machine", 256<<20)
	r.boot()
	r.Run("mkfs."+fsType, "-q", "/dev/vda")
	r.Run("mkfs.ext4", "-q", "/dev/vdb")
	r.mount()
	r.Start()
	return r
}

// newDisk creates a disk that loses unflushed data at a power loss.
func (r *rig) newDisk(name string, size int64) *disk.Disk {
	r.t.Helper()
	return testkit.Open(disk.Open(disk.Spec{Path: filepath.Join(r.t.TempDir(), name), Size: size, Survival: disk.SurviveNone}))(r.t)
}

// boot boots the guest without mounting disks or starting the driver.
func (r *rig) boot() {
	r.t.Helper()
	testkit.Must(r.t, r.disk.PowerOn(), r.own.PowerOn())
	r.Node = nodeservice.New(kernel.Of(r.t, vm.Boot(r.t, vm.Spec{
		Name: strings.ReplaceAll(r.t.Name(), "/", "-"), Disks: []vm.Disk{r.disk, r.own}, Programs: []string{cleat}, Tools: append(image.Filesystems(), "secilc", "stat"),
		Kernel: r.kernel, KernelArgs: []string{"lsm=selinux"}, // without effect until testLabels loads a policy
		Modules: []string{"xfs", "ext4", "loop"}, Extra: []string{"btrfs"},
	})), "--pool", pool, "--node-id", nodeID, "--metrics-address", metrics, "--overprovision-ratio", "20")
}

func (r *rig) mount() {
	r.Helper()
	r.Run("mkdir", "-p", data, nodeservice.System)
	r.Run("mount", "-t", r.fsType, "/dev/vda", data)
	r.Run("mount", "-t", "ext4", "/dev/vdb", nodeservice.System)
}

func (r *rig) controller() csi.ControllerClient { return csi.NewControllerClient(r.Conn) }

// refused verifies the code of an error and words of its message.
func (r *rig) refused(err error, code codes.Code, words ...string) {
	r.Helper()
	if status.Code(err) != code {
		r.Errorf("got %v, want code %v", err, code)
		return
	}
	for _, word := range words {
		if !strings.Contains(status.Convert(err).Message(), word) {
			r.Errorf("got message %q, want it to contain %q", status.Convert(err).Message(), word)
		}
	}
}
