package takeover

import (
	"errors"
	"net"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	csi "github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/cleatproject/cleat/internal/kubeobject"
	telemetry "github.com/cleatproject/cleat/internal/server"
	"github.com/cleatproject/cleat/test/testkit"
)

var leases = schema.GroupVersionResource{Group: "coordination.k8s.io", Version: "v1", Resource: "leases"}

// replica is one of several controllers of a site.
type replica struct {
	*testkit.Process
	csi.ControllerClient
	identity csi.IdentityClient
	state    string // directory
	listen   string
}

// replica starts a controller that takes part in the election.
func (s *driverSite) replica(name, host string) *replica {
	s.t.Helper()
	_, port, _ := net.SplitHostPort(s.endpoint)
	r := &replica{state: filepath.Join(s.dir, name+"-state"), listen: net.JoinHostPort(host, port)}
	socket := filepath.Join(s.dir, name, "csi.sock")
	conn := testkit.Open(testkit.Connect(socket))(s.t)
	r.ControllerClient, r.identity = csi.NewControllerClient(conn), csi.NewIdentityClient(conn)
	r.Process = testkit.Start(s.t, exec.Command(cleat, append([]string{"csi", "--endpoint", "unix://" + socket, "--state-dir", r.state,
		"--lease", namespace + "/" + s.name, "--lease-kubeconfig", testkit.Value(api.Kubeconfig(""))(s.t), "--lease-duration", "15s"}, s.flags(r.listen)...)...))
	return r
}

func (r *replica) awaitServing(t testing.TB) {
	t.Helper()
	testkit.EventuallyNil(t, "the replica serves", func() error {
		answer, err := r.identity.Probe(testkit.Context(t), &csi.ProbeRequest{})
		if err == nil && !answer.GetReady().GetValue() {
			err = errors.New("it is not ready")
		}
		return err
	})
}

// awaitWaiting waits until a replica is ready, and fails if it serves.
func (r *replica) awaitWaiting(t testing.TB) {
	t.Helper()
	testkit.EventuallyNil(t, "the replica waits for the Lease", func() error {
		var answer struct{ Ready bool }
		err := telemetry.Ask(testkit.Context(t), filepath.Join(r.state, telemetry.StatusName), "/readyz", &answer)
		if err == nil && !answer.Ready {
			err = errors.New("it is not ready")
		}
		return err
	})
	if answer, err := r.identity.Probe(testkit.Context(t), &csi.ProbeRequest{}); err != nil || answer.GetReady().GetValue() {
		t.Errorf("sidecars do not wait for a replica without the Lease: %v, %v", answer, err)
	}
	if _, err := r.CreateVolume(testkit.Context(t), &csi.CreateVolumeRequest{}); status.Code(err) != codes.Unimplemented {
		t.Errorf("a replica without the Lease serves CSI: %v", err)
	}
	if c, err := net.Dial("tcp", r.listen); err == nil {
		_ = c.Close()
		t.Error("a replica without the Lease accepts fences")
	}
}

func (s *driverSite) holder() string {
	s.t.Helper()
	l := testkit.Value(kubeobject.Get[coordinationv1.Lease](testkit.Context(s.t), s.client, leases, namespace, s.name))(s.t)
	if l.Spec.HolderIdentity == nil {
		return ""
	}
	return *l.Spec.HolderIdentity
}

// Of several controllers one serves. The next one serves soon after it hangs, is killed,
// or ends, and what had hung changes nothing when it continues, with a call that it had
// got before.
func TestReplicasOfController(t *testing.T) {
	t.Parallel() // most of the time it waits for the Lease, whose duration is that of the default
	s := newSPDKSite(t)
	a := s.replica("a", "127.0.0.1")
	a.awaitServing(t)
	b := s.replica("b", "127.0.0.2")
	b.awaitWaiting(t)
	s.create(a)
	testkit.Must(t, s.publish(a, "lost"))
	session := testkit.Value(s.connect("lost"))(t)
	defer session.Close()

	testkit.Must(t, a.Signal(unix.SIGSTOP))
	stopped := time.Now()
	stale := make(chan error, 1)
	go func() {
		_, err := a.ControllerUnpublishVolume(t.Context(), &csi.ControllerUnpublishVolumeRequest{VolumeId: s.volume.GetVolumeId(), NodeId: s.nodeID("lost")})
		stale <- err
	}()
	b.awaitServing(t)
	t.Logf("served %s after the other one was stopped", time.Since(stopped))
	testkit.Must(t, s.publish(b, "lost"))
	testkit.Must(t, a.Signal(unix.SIGCONT))
	<-a.Done()
	if err := <-stale; err == nil {
		t.Error("a controller that was replaced has revoked a grant")
	}
	if err := s.publish(b, "healthy"); status.Code(err) != codes.FailedPrecondition || !session.Alive() {
		t.Errorf("the grant is lost: %v, connected %t", err, session.Alive())
	}

	c := s.replica("c", "127.0.0.1")
	c.awaitWaiting(t)
	b.Kill()
	killed := time.Now()
	c.awaitServing(t)
	t.Logf("served %s after the other one was killed", time.Since(killed))
	testkit.Must(t, s.publish(c, "lost"))

	d := s.replica("d", "127.0.0.2")
	d.awaitWaiting(t)
	before, ending := s.holder(), time.Now()
	testkit.Must(t, c.Stop())
	if now := s.holder(); now == before {
		t.Errorf("the Lease is still that of %s", now)
	}
	d.awaitServing(t)
	t.Logf("served %s after the other one began to end", time.Since(ending))
	s.unpublish(d, "lost")
	testkit.Must(t, s.publish(d, "healthy"))
	if session.Alive() {
		t.Error("the lost node's host is still connected")
	}
	testkit.Must(t, d.Stop())
}
