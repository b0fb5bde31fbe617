package nvmetcp

import (
	"bytes"
	"crypto/rand"
	"fmt"
	"net/netip"
	"os"
	"path"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/cleatproject/cleat/test/soak"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/test/vm"
	"github.com/cleatproject/cleat/test/vm/image"
	"github.com/cleatproject/cleat/test/vm/kernel"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const mib = 1 << 20

var at = netip.MustParseAddrPort("127.0.0.1:4420")

// Two tenants of one target, each with its own disk and host.
var (
	red  = Subsystem{NQN: "nqn.2024-01.example:red", Device: "/dev/vda", UUID: "7c0f7c6e-53a5-4f0e-9a1b-000000000001", Hosts: []string{redHost.NQN}}
	blue = Subsystem{NQN: "nqn.2024-01.example:blue", Device: "/dev/vdb", UUID: "7c0f7c6e-53a5-4f0e-9a1b-000000000002", Hosts: []string{blueHost.NQN}}

	redHost  = HostOf("5b6a1f52-0d3c-4c53-8f6e-00000000000a")
	blueHost = HostOf("5b6a1f52-0d3c-4c53-8f6e-00000000000b")
)

// TestOneGuest connects a guest to its own target: allowed hosts connect,
// others are refused, written data is on the target's disk, and nothing is left
// over.
func TestOneGuest(t *testing.T) {
	for _, source := range soak.Pick(1, []image.Source{image.Stable, image.Backports}) {
		t.Run(string(source), func(t *testing.T) {
			t.Parallel()
			r := newRig(t, source)
			begun := time.Now()
			target := Serve(r.Kernel, at, red, blue)
			r.refuse()
			controller := r.connect(red, redHost)
			r.twice()
			r.identity(controller)
			r.data()
			r.filesystem(controller)
			r.lateAdmission(target)
			r.removal(target)
			fmt.Printf("REPORT: NVMe/TCP in one guest, kernel %s: connected, refused, wrote, read and removed in %.1f s\n", r.Guest.Release(), time.Since(begun).Seconds())
		})
	}
}

type rig struct {
	*kernel.Kernel
	backing string // host file of red's disk
}

func newRig(t *testing.T, source image.Source) rig {
	t.Helper()
	var disks []vm.Disk
	backing := filepath.Join(t.TempDir(), "red")
	for _, file := range []string{backing, filepath.Join(t.TempDir(), "blue")} {
		d := testkit.Value(vm.RawFile(file, 64*mib))(t)
		disks = append(disks, d)
	}
	g := vm.Boot(t, vm.Spec{
		Name: "nvmetcp-" + string(source), Kernel: source, Disks: disks,
		Modules: append(append(TargetModules(), HostModules()...), "ext4"), Tools: []string{"mkfs.ext4", "e2fsck"},
	})
	return rig{kernel.Of(t, g), backing}
}

func (r rig) connect(s Subsystem, h Host) *Controller {
	r.Helper()
	c := testkit.Value(Connect(r.Kernel, Connection{Target: at, Subsystem: s.NQN, Host: h}))(r)
	return c
}

// refuse verifies that connections without permission, or to a missing target,
// fail and leave no controller.
func (r rig) refuse() {
	r.Helper()
	unused := netip.AddrPortFrom(at.Addr(), at.Port()+1)
	for _, c := range []struct {
		Connection
		want syscall.Errno
	}{
		{Connection{Target: at, Subsystem: red.NQN, Host: blueHost}, syscall.EIO},
		{Connection{Target: at, Subsystem: blue.NQN, Host: redHost}, syscall.EIO},
		{Connection{Target: at, Subsystem: "nqn.2024-01.example:none", Host: redHost}, syscall.EIO},
		{Connection{Target: unused, Subsystem: red.NQN, Host: redHost}, syscall.ECONNREFUSED},
		{Connection{Target: at, Subsystem: red.NQN, Host: redHost, Options: []string{"no_such_option=1"}}, syscall.EINVAL},
	} {
		_, err := Connect(r.Kernel, c.Connection)
		r.WantErrno(err, c.want)
	}
	if log := r.Run("dmesg"); !strings.Contains(log, "connect by host "+blueHost.NQN+" for subsystem "+red.NQN+" not allowed") {
		r.Error("the target did not log the refused host")
	}
	if left := r.Names("/sys/class/nvme"); len(left) > 0 {
		r.Errorf("refused connections left controllers %v", left)
	}
}

// twice verifies that a second, identical connection is refused.
func (r rig) twice() {
	r.Helper()
	_, err := Connect(r.Kernel, Connection{Target: at, Subsystem: red.NQN, Host: redHost})
	r.WantErrno(err, syscall.EALREADY)
}

// identity verifies the controller's sysfs attributes.
func (r rig) identity(c *Controller) {
	r.Helper()
	for attribute, want := range map[string]string{
		"state": "live", "transport": "tcp", "subsysnqn": red.NQN, "hostnqn": redHost.NQN, "hostid": redHost.ID,
	} {
		if got := c.Attribute(attribute); got != want {
			r.Errorf("%s of %s: got %q, want %q", attribute, c.Name, got, want)
		}
	}
	if got := c.Attribute("address"); !strings.HasPrefix(got, "traddr=127.0.0.1,trsvcid=4420") {
		r.Errorf("address of %s is %q", c.Name, got)
	}
	disk := AwaitDisk(r.Kernel, red.UUID)
	for attribute, want := range map[string]string{"wwid": "uuid." + red.UUID, "size": fmt.Sprint(64 * mib / 512)} {
		if got := r.Read(path.Join("/sys/block", disk, attribute)); got != want {
			r.Errorf("%s of %s: got %q, want %q", attribute, disk, got, want)
		}
	}
	if all := Disks(r.Kernel); len(all) != 1 {
		r.Errorf("got disks %v of the red host, want one", all)
	}
}

// data verifies that written data is read back and is on the target's disk.
func (r rig) data() {
	r.Helper()
	disk := "/dev/" + AwaitDisk(r.Kernel, red.UUID)
	data := make([]byte, 4*mib)
	_, _ = rand.Read(data)
	testkit.Must(r, r.Guest.WriteFile(r.Context(), "/tmp/data", data, 0o600))
	r.Run("dd", "if=/tmp/data", "of="+disk, "bs=64k", "oflag=direct", "conv=fsync")
	r.Run("dd", "if="+disk, "of=/tmp/back", "bs=64k", "count=64", "iflag=direct")
	back := testkit.Value(r.Guest.ReadFile(r.Context(), "/tmp/back"))(r)
	if !bytes.Equal(back, data) {
		r.Error("the read data differs from the written data")
	}
	f := testkit.Value(os.Open(r.backing))(r)
	defer f.Close()
	stored := make([]byte, len(data))
	testkit.Value(f.ReadAt(stored, 0))(r)
	if !bytes.Equal(stored, data) {
		r.Error("the target's disk does not have the written data")
	}
}

// filesystem verifies that a file system survives a reconnect.
func (r rig) filesystem(c *Controller) {
	r.Helper()
	disk := "/dev/" + AwaitDisk(r.Kernel, red.UUID)
	r.Run("mkfs.ext4", "-q", disk)
	r.Run("mount", "-t", "ext4", disk, "/mnt")
	testkit.Must(r, r.Guest.WriteFile(r.Context(), "/mnt/file", []byte("kept"), 0o600))
	r.Run("umount", "/mnt")
	c.Disconnect()
	if all := Disks(r.Kernel); len(all) > 0 {
		r.Errorf("disks %v still exist after the disconnect", all)
	}
	c = r.connect(red, redHost)
	disk = "/dev/" + AwaitDisk(r.Kernel, red.UUID)
	r.Run("e2fsck", "-n", "-f", disk)
	r.Run("mount", "-t", "ext4", disk, "/mnt")
	if got := r.Read("/mnt/file"); got != "kept" {
		r.Errorf("after the reconnect the file has %q, want kept", got)
	}
	r.Run("umount", "/mnt")
	c.Disconnect()
}

// lateAdmission verifies that a host can connect once it is allowed, next to
// another one.
func (r rig) lateAdmission(target *Target) {
	r.Helper()
	target.Admit(blue.NQN, redHost.NQN)
	for _, c := range []*Controller{r.connect(blue, redHost), r.connect(blue, blueHost)} {
		if state := c.Attribute("state"); state != "live" {
			r.Errorf("state of %s: got %s, want live", c.Name, state)
		}
		AwaitDisk(r.Kernel, blue.UUID)
		c.Disconnect()
	}
}

// removal verifies that Remove leaves nothing.
func (r rig) removal(target *Target) {
	r.Helper()
	target.Remove()
	if left := append(TargetObjects(r.Kernel), append(Disks(r.Kernel), r.Names("/sys/class/nvme")...)...); len(left) > 0 {
		r.Errorf("left over at the end: %v", left)
	}
	_, err := Connect(r.Kernel, Connection{Target: at, Subsystem: red.NQN, Host: redHost})
	r.WantErrno(err, syscall.ECONNREFUSED)
}
