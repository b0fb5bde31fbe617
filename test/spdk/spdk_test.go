// Package spdk tests cleat csi --engine spdk as a process, with doubles of the
// SPDK target and of a DPU's SNAP, and with cleat dpu.
package spdk

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	csi "github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/cleatproject/cleat/internal/linux/kernelcall"
	"github.com/cleatproject/cleat/spdk"
	"github.com/cleatproject/cleat/spdk/spdktest"
	"github.com/cleatproject/cleat/test/driver"
	"github.com/cleatproject/cleat/test/spdk/rig"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/volume/access"
)

const (
	mib     = 1 << 20
	cluster = "east"
	// The DPU's node id is only its name; a host's node id has its addresses.
	dpuName, dpuAddress   = "dpu-1", "192.0.2.9"
	hostName, hostAddress = "node-2", "192.0.2.2"
)

// cleat is the program under test, with the race detector.
var cleat string

func TestMain(m *testing.M) {
	kernelcall.Main()
	os.Exit(testkit.RunMain(m, func(dir string) error {
		cleat = filepath.Join(dir, "cleat")
		return testkit.BuildTo(context.Background(), cleat, testkit.Cleat, "-race", "-tags", "crashpoints")
	}))
}

// site is a target, the controller, and a DPU with cleat dpu.
type site struct {
	t          testing.TB
	dir        string
	program    string              // of the controller
	flags      map[string][]string // of controllers, by program, beside those of all
	network    *spdktest.Network
	target     *rig.Target
	controller *driver.Process
	snap       *spdk.Client
	dpu        *dpu
}

func newSite(t testing.TB) *site {
	t.Helper()
	s := newHostSite(t, cleat, nil)
	snap := testkit.Value(s.network.Start(spdktest.Config{Socket: filepath.Join(s.dir, "snap.sock"), SNAP: true, Source: dpuAddress}))(t)
	t.Cleanup(func() { testkit.Must(t, snap.Close()) })
	s.snap = testkit.Open(spdk.Open(spdk.Config{Socket: snap.Socket()}))(t)
	s.dpu = startDPU(t, s.dir, snap.Socket())
	return s
}

// newHostSite has no DPU.
func newHostSite(t testing.TB, program string, flags map[string][]string) *site {
	t.Helper()
	s := &site{t: t, dir: testkit.Dir(t), program: program, flags: flags, network: spdktest.NewNetwork(nil)}
	s.target = rig.NewTarget(t, s.network, 1024)
	s.startController()
	t.Cleanup(func() {
		if err := s.controller.Stop(); err != nil {
			t.Errorf("cleat csi did not stop cleanly: %v\n%s", err, s.controller.Log)
		}
		if t.Failed() {
			t.Logf("log of the last controller:\n%s", s.controller.Log)
		}
	})
	return s
}

// startController starts the controller with the state of the one before.
func (s *site) startController() {
	s.t.Helper()
	s.controller = testkit.Value(driver.Launch(s.t.Context(), s.program, s.dir, "controller", []string{"GORACE=atexit_sleep_ms=0"}, append([]string{
		"--engine", "spdk", "--services", "controller", "--cluster-id", cluster, "--spdk-config", s.target.Config,
		"--addons-endpoint", s.addons(), "--fence-check-interval", "200ms", "--log-format", "text"}, s.flags[s.program]...)...))(s.t)
}

// killController kills the controller and starts it again.
func (s *site) killController() {
	s.t.Helper()
	testkit.Must(s.t, s.controller.Kill())
	s.startController()
}

func (s *site) addons() string { return "unix://" + filepath.Join(s.dir, "addons", "addons.sock") }

func (s *site) csi() csi.ControllerClient { return csi.NewControllerClient(s.controller.Conn) }

// fence runs cleat fence add or rm.
func (s *site) fence(command, address string) {
	s.t.Helper()
	testkit.Run(s.t, cleat, "fence", command, address, "--endpoint", s.addons())
}

func capability() *csi.VolumeCapability {
	return &csi.VolumeCapability{
		AccessType: &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}},
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER},
	}
}

func (s *site) create(name string) *csi.Volume {
	s.t.Helper()
	answer := testkit.Value(s.csi().CreateVolume(testkit.Context(s.t), &csi.CreateVolumeRequest{
		Name: name, CapacityRange: &csi.CapacityRange{RequiredBytes: 64 * mib}, VolumeCapabilities: []*csi.VolumeCapability{capability()},
	}))(s.t)
	return answer.GetVolume()
}

// publish requires an empty publish_context: DPF creates attachments again when
// it changes.
func (s *site) publish(v *csi.Volume, node string) {
	s.t.Helper()
	answer := testkit.Value(s.csi().ControllerPublishVolume(testkit.Context(s.t), &csi.ControllerPublishVolumeRequest{
		VolumeId: v.GetVolumeId(), NodeId: node, VolumeCapability: capability(), VolumeContext: v.GetVolumeContext(),
	}))(s.t)
	if len(answer.GetPublishContext()) > 0 {
		s.t.Errorf("publish_context for %s: %v, want none", node, answer.GetPublishContext())
	}
}

func (s *site) unpublish(v *csi.Volume, node string) {
	s.t.Helper()
	_, err := s.csi().ControllerUnpublishVolume(testkit.Context(s.t), &csi.ControllerUnpublishVolumeRequest{VolumeId: v.GetVolumeId(), NodeId: node})
	testkit.Must(s.t, err)
}

func (s *site) delete(v *csi.Volume) {
	s.t.Helper()
	_, err := s.csi().DeleteVolume(testkit.Context(s.t), &csi.DeleteVolumeRequest{VolumeId: v.GetVolumeId()})
	testkit.Must(s.t, err)
}

func subnqn(v *csi.Volume) string { return v.GetVolumeContext()["nqn"] }

func hostNQN(node string) string { return access.HostNQN(cluster + "/" + node) }

// connect connects the host to a volume, as its node service does.
func (s *site) connect(v *csi.Volume) (*spdktest.Session, error) {
	return s.network.Connect(hostNQN(hostName), hostAddress, subnqn(v), s.target.Address())
}

func (s *site) mustConnect(v *csi.Volume) *spdktest.Session {
	s.t.Helper()
	c := testkit.Value(s.connect(v))(s.t)
	s.t.Cleanup(c.Close)
	return c
}

// hostIsRefused checks that the host cannot connect.
func (s *site) hostIsRefused(v *csi.Volume) {
	s.t.Helper()
	if c, err := s.connect(v); err == nil {
		c.Close()
		s.t.Errorf("%s connects to a volume that is not published to it", hostName)
	}
}
