// Package node tests cleat csi in a guest that is rebooted, whose volumes grow
// in use, and whose disk fails.
package node

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	csi "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/test/vm"
	"github.com/cleatproject/cleat/test/vm/disk"
	"github.com/cleatproject/cleat/test/vm/image"
)

const (
	mib    = 1 << 20
	nodeID = "guest-1"

	// The pool has its own disk. The machine's disk holds the state of driver
	// and kubelet that must survive a reboot.
	data    = "/data"
	pool    = data + "/pool"
	system  = "/var/lib/node"
	state   = system + "/driver"
	volumes = system + "/volumes" // staging and target paths
	socket  = "/run/cleat/csi/csi.sock"
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
	testing.TB
	fsType string
	disk   *disk.Disk // disk of the pool
	own    *disk.Disk // disk of the machine
	guest  *vm.Guest
	driver *vm.Process
	conn   *grpc.ClientConn
	flags  []string
}

// newRig boots a guest, formats the pool's disk with fsType and starts the
// driver.
func newRig(t testing.TB, fsType string, flags ...string) *rig {
	t.Helper()
	r := &rig{TB: t, fsType: fsType, flags: flags}
	r.disk, r.own = r.newDisk("pool", 3<<30), r.newDisk("machine", 256<<20)
	r.boot()
	if fsType == "xfs" {
		r.run("mkfs.xfs", "-q", "/dev/vda")
	} else {
		r.run("mkfs."+fsType, "-q", "/dev/vda")
	}
	r.run("mkfs.ext4", "-q", "/dev/vdb")
	r.mount()
	r.start()
	return r
}

// newDisk creates a disk that loses unflushed data at a power loss.
func (r *rig) newDisk(name string, size int64) *disk.Disk {
	r.Helper()
	d := testkit.Value(disk.Open(disk.Spec{Path: filepath.Join(r.TempDir(), name), Size: size, Survival: disk.SurviveNone}))(r)
	r.Cleanup(func() {
		if err := d.Close(); err != nil {
			r.Error(err)
		}
	})
	return d
}

// boot boots the guest without mounting disks or starting the driver.
func (r *rig) boot() {
	r.Helper()
	testkit.Must(r, r.disk.PowerOn())
	testkit.Must(r, r.own.PowerOn())
	r.guest = vm.Boot(r, vm.Spec{
		Name: strings.ReplaceAll(r.Name(), "/", "-"), Disks: []vm.Disk{r.disk, r.own}, Programs: []string{cleat}, Tools: image.Filesystems(),
		Modules: []string{"xfs", "ext4", "loop"}, Extra: []string{"btrfs"},
	})
}

func (r *rig) mount() {
	r.Helper()
	r.run("mkdir", "-p", data, system)
	r.run("mount", "-t", r.fsType, "/dev/vda", data)
	r.run("mount", "-t", "ext4", "/dev/vdb", system)
}

// start starts the driver and waits until it is ready.
func (r *rig) start() {
	r.Helper()
	argv := append([]string{
		"cleat", "csi", "--endpoint", "unix://" + socket, "--pool", pool, "--state-dir", state, "--node-id", nodeID,
		"--metrics-address", metrics, "--overprovision-ratio", "20", "--log-format", "text",
	}, r.flags...)
	r.driver = testkit.Value(r.guest.Start(r.Context(), vm.Command{Argv: argv}))(r)
	r.conn = testkit.Value(r.guest.Connect(socket))(r)
	conn := r.conn
	r.Cleanup(func() { _ = conn.Close() })
	r.eventually("the driver is ready", func() bool {
		select {
		case <-r.driver.Done():
			r.Fatalf("the driver exited: %v\n%s", r.driver.Err(), r.driver.Log())
		default:
		}
		answer, err := csi.NewIdentityClient(r.conn).Probe(r.Context(), &csi.ProbeRequest{})
		return err == nil && answer.GetReady().GetValue()
	})
}

// stop stops the driver with SIGTERM.
func (r *rig) stop() {
	r.Helper()
	testkit.Must(r, r.driver.Signal(15))
	select {
	case <-r.driver.Done():
	case <-time.After(30 * time.Second):
		r.Fatalf("the driver did not exit within 30 s of SIGTERM:\n%s", r.driver.Log())
	}
	if err := r.driver.Err(); err != nil {
		r.Errorf("the driver failed at shutdown: %v", err)
	}
}

func (r *rig) controller() csi.ControllerClient { return csi.NewControllerClient(r.conn) }
func (r *rig) node() csi.NodeClient             { return csi.NewNodeClient(r.conn) }

// run runs a program in the guest and returns its trimmed output.
func (r *rig) run(argv ...string) string {
	r.Helper()
	ctx, cancel := context.WithTimeout(r.Context(), time.Minute)
	defer cancel()
	out := testkit.Value(r.guest.Run(ctx, argv...))(r)
	return strings.TrimSpace(out)
}

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

// eventually polls until the condition is true.
func (r *rig) eventually(what string, so func() bool) {
	r.Helper()
	deadline := time.After(time.Minute)
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for !so() {
		select {
		case <-tick.C:
		case <-deadline:
			r.Fatalf("timed out waiting for: %s", what)
		}
	}
}
