package takeover

import (
	"context"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	csi "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/cleatproject/cleat/spdk/spdktest"
	"github.com/cleatproject/cleat/test/driver"
	spdkrig "github.com/cleatproject/cleat/test/spdk/rig"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/volume/access"
)

const nvmeCluster = "east"

// driverSite is a site whose backend is the controller of its volumes, as the chart
// starts it.
type driverSite struct {
	*site
	dir     string
	engine  []string // flags of the engine
	volume  *csi.Volume
	process *driver.Process
}

func newDriverSite(t testing.TB) *driverSite {
	t.Helper()
	s := &driverSite{site: newSiteWithoutStorage(t), dir: testkit.Dir(t)}
	s.endpoint = fmt.Sprintf("127.0.0.1:%d", 20000+s.number)
	s.coverBy("own", "")
	return s
}

// spdkSite is a driverSite whose storage is an SPDK target.
type spdkSite struct {
	*driverSite
	network  *spdktest.Network
	target   *spdkrig.Target
	lostHost *host // of write
}

func newSPDKSite(t testing.TB) *spdkSite {
	t.Helper()
	s := &spdkSite{driverSite: newDriverSite(t), network: spdktest.NewNetwork(nil)}
	s.target = spdkrig.NewTarget(t, s.network, 1024)
	s.engine = []string{
		"--engine", "spdk", "--cluster-id", nvmeCluster, "--spdk-config", s.target.Config,
		"--spdk-state", "configmap:" + namespace + "/" + s.name, "--spdk-kubeconfig", testkit.Value(api.Kubeconfig(""))(t), // where the chart has it
	}
	return s
}

// restart implements place, with the controller of the volumes.
func (s *driverSite) restart(crashPoint ...string) {
	s.t.Helper()
	if s.process != nil {
		testkit.Must(s.t, s.process.Kill())
		s.process = nil
	}
	p, err := driver.Launch(s.t.Context(), s.program, s.dir, "controller", crashAt(crashPoint), s.flags(s.endpoint)...)
	if err != nil && len(crashPoint) > 0 {
		return // it was killed during its start
	}
	testkit.Must(s.t, err)
	s.t.Cleanup(func() { _ = p.Kill() })
	s.process = p
}

// flags are those of the chart for a controller.
func (s *driverSite) flags(listen string) []string {
	host, _, _ := net.SplitHostPort(listen)
	f := s.authority.Files(s.t, nil, host)
	return append([]string{
		"--services", "controller", "--driver-name", "net.example.com", "--node-id", "controller", "--fence-listen", listen,
		"--fence-tls-cert", f.Cert, "--fence-tls-key", f.Key, "--fence-tls-ca", f.CA, "--fence-check-interval", "200ms", "--log-format", "text",
	}, s.engine...)
}

// prepare starts the controller of the volumes, and publishes one to the lost node.
func (s *driverSite) prepare() {
	s.t.Helper()
	s.restart()
	c := csi.NewControllerClient(s.process.Conn)
	s.create(c)
	testkit.Must(s.t, s.publish(c, "lost"))
}

func writerCapability() *csi.VolumeCapability {
	return &csi.VolumeCapability{
		AccessType: &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}},
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
	}
}

func (s *driverSite) create(c csi.ControllerClient) {
	s.t.Helper()
	answer := testkit.Value(c.CreateVolume(testkit.Context(s.t), &csi.CreateVolumeRequest{
		Name: s.name, CapacityRange: &csi.CapacityRange{RequiredBytes: 64 << 20}, VolumeCapabilities: []*csi.VolumeCapability{writerCapability()},
	}))(s.t)
	s.volume = answer.GetVolume()
}

// nodeID is that of the lost or the healthy node, as its node service reports it.
func (s *driverSite) nodeID(node string) string {
	address := s.lostAddr
	if node == "healthy" {
		address = address.Next()
	}
	return fmt.Sprintf("%s-%s@%s", s.name, node, address)
}

func (s *driverSite) publish(c csi.ControllerClient, node string) error {
	_, err := c.ControllerPublishVolume(testkit.Context(s.t), &csi.ControllerPublishVolumeRequest{
		VolumeId: s.volume.GetVolumeId(), NodeId: s.nodeID(node), VolumeCapability: writerCapability(), VolumeContext: s.volume.GetVolumeContext(),
	})
	return err
}

func (s *driverSite) unpublish(c csi.ControllerClient, node string) {
	s.t.Helper()
	_, err := c.ControllerUnpublishVolume(testkit.Context(s.t), &csi.ControllerUnpublishVolumeRequest{VolumeId: s.volume.GetVolumeId(), NodeId: s.nodeID(node)})
	testkit.Must(s.t, err)
}

func (s *spdkSite) connect(node string) (*spdktest.Session, error) {
	address := s.lostAddr
	if node == "healthy" {
		address = address.Next()
	}
	return s.network.Connect(access.HostNQN(nvmeCluster+"/"+s.name+"-"+node), address.String(), s.volume.GetVolumeContext()["nqn"], s.target.Address())
}

// host is a host that connects again as soon as it is disconnected, until the test ends.
type host struct {
	mu   sync.Mutex
	last time.Time // when its last command began that the target accepted
	stop func()
}

func (s *spdkSite) host(node string) *host {
	s.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	h := &host{stop: func() { cancel(); running.Wait() }}
	s.t.Cleanup(h.stop)
	session := testkit.Value(s.connect(node))(s.t)
	running.Go(func() {
		for tick := time.NewTicker(2 * time.Millisecond); ; {
			now := time.Now()
			if session == nil || !session.Alive() {
				session, _ = s.connect(node) // refused while it is fenced
			}
			if session != nil && session.Alive() {
				h.mu.Lock()
				h.last = now
				h.mu.Unlock()
			}
			select {
			case <-ctx.Done():
				tick.Stop()
				if session != nil {
					session.Close()
				}
				return
			case <-tick.C:
			}
		}
	})
	return h
}

func (h *host) seen() time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.last
}

// write starts the controller of the volumes and a host on the lost node, and returns
// when the last command of the host began that the target accepted: as long as it is
// connected.
func (s *spdkSite) write() (accepted func() time.Time) {
	s.t.Helper()
	s.prepare()
	s.lostHost = s.host("lost")
	return s.lostHost.seen
}

// reboot also ends the host's connection.
func (s *spdkSite) reboot() {
	s.t.Helper()
	s.lostHost.stop()
	s.site.reboot()
}

// checkReturned fails unless node and storage are as before the takeover.
func (s *spdkSite) checkReturned() {
	s.t.Helper()
	s.checkNode()
	testkit.Must(s.t, s.publish(csi.NewControllerClient(s.process.Conn), "lost"))
	testkit.Value(s.connect("lost"))(s.t).Close()
}

// The controller of a network engine is the backend of its own volumes: the lost node's
// host is connected no more when the certificate is written, the volume moves to another
// node when its attacher is called, and the fence is lifted after the reboot.
func TestControllerOfSPDK(t *testing.T) {
	s := newSPDKSite(t)
	p := driver.Start(t, cleat, s.dir, "controller", s.flags(s.endpoint)...)
	c := csi.NewControllerClient(p.Conn)
	s.create(c)
	testkit.Must(t, s.publish(c, "lost"))
	lost := s.host("lost")
	s.controller()
	testkit.Value(s.run("start"))(t)
	s.awaitReason("TakenOver")
	certificate := s.remediation().Status.Certificate
	if len(certificate.Proofs) != 1 || certificate.Proofs[0].Backend != "own" {
		t.Errorf("the proofs are %+v", certificate.Proofs)
	}
	if taintOf(s.nodeObject()) == "" || len(s.podsLeft()) > 0 {
		t.Errorf("taints %+v, pods %v", s.nodeObject().Spec.Taints, s.podsLeft())
	}

	// What the attacher does when the attach-detach controller sees the taint.
	if err := s.publish(c, "healthy"); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("the volume is published to two nodes: %v", err)
	}
	s.unpublish(c, "lost")
	testkit.Must(t, s.publish(c, "healthy"))
	next := testkit.Value(s.connect("healthy"))(t)
	if last := lost.seen(); !last.Before(certificate.At) {
		t.Errorf("the lost node's host was connected %s after the certificate", last.Sub(certificate.At))
	}
	if err := s.publish(c, "lost"); err == nil {
		t.Error("a volume is published to the fenced node")
	}
	next.Close()
	s.unpublish(c, "healthy")
	s.site.reboot() // and the host goes on
	s.awaitReason("Released")
	testkit.Must(t, s.publish(c, "lost"))
	testkit.Eventually(t, "the host is connected again", func() bool { return lost.seen().After(certificate.At) })
}
