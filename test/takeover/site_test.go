package takeover

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"

	"github.com/cleatproject/cleat/internal/kubeobject"
	"github.com/cleatproject/cleat/internal/mutualtls"
	"github.com/cleatproject/cleat/takeover"
	"github.com/cleatproject/cleat/test/fence/rig"
	"github.com/cleatproject/cleat/test/fence/serve"
	"github.com/cleatproject/cleat/test/fence/storage"
	"github.com/cleatproject/cleat/test/testkit"
)

var (
	nodes       = schema.GroupVersionResource{Version: "v1", Resource: "nodes"}
	pods        = schema.GroupVersionResource{Version: "v1", Resource: "pods"}
	attachments = schema.GroupVersionResource{Group: "storage.k8s.io", Version: "v1", Resource: "volumeattachments"}
	names       atomic.Uint64 // of sites: all share the API server, in which addresses are unique
)

const (
	port      = 4420 // of the storage server
	fencePort = 9070
)

var server = netip.MustParsePrefix("10.9.0.2/16")

// site is a storage server with its fence service, a node that is lost and
// writes on, and a healthy one.
type site struct {
	t         testing.TB
	client    dynamic.Interface
	number    uint64
	name      string // prefix of its objects
	namespace string // of its remediation and of the Lease of its controllers
	machine   *rig.Machine
	network   *rig.Network
	service   *serve.Service
	records   *storage.Records
	lost      *rig.Namespace
	lostAddr  netip.Addr
	authority *testkit.Authority
	endpoint  string // of the fence service, for controllers
	coverage  string // file
	// Of controllers that start from now on.
	program, kubeconfig string
	leaseDuration       time.Duration
}

func newSite(t testing.TB) *site {
	t.Helper()
	s := newSiteWithoutStorage(t)
	s.machine, s.network, s.lost = rig.NewMachine(t), rig.NewNetwork(t), rig.NewNamespace(t)
	s.network.Attach(t, s.machine.Namespace, server)
	s.network.Attach(t, s.lost, netip.PrefixFrom(s.lostAddr, 16))
	s.records = testkit.Value(storage.StartRecords(s.machine, port))(t)
	s.serve()
	s.endpoint = s.forward(netip.AddrPortFrom(server.Addr(), fencePort))
	s.coverBy("storage", ", nodeAddresses: true")
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("logs of the fence service:\n%s", serve.Logs(s.machine))
		}
	})
	return s
}

// newSiteWithoutStorage returns a site with its nodes. It has no backend yet.
func newSiteWithoutStorage(t testing.TB) *site {
	t.Helper()
	number := names.Add(1)
	s := &site{
		t: t, client: testkit.Value(api.Client(""))(t), number: number, name: fmt.Sprintf("s%d", number), namespace: namespace, authority: testkit.NewAuthority(t, "fencing"),
		lostAddr: netip.AddrFrom4([4]byte{10, 9, byte(number / 100), byte(2*(number%100) + 10)}), coverage: filepath.Join(testkit.Dir(t), "coverage.yaml"),
		program: cleat, kubeconfig: testkit.Value(api.Kubeconfig(account))(t), leaseDuration: time.Second,
	}
	s.createNodes(s.name, s.lostAddr)
	return s
}

// isolate gives a site's remediation a namespace of its own, with the rights that the
// chart gives the controller in the release's: sites of several tests run at a time.
func (s *site) isolate() {
	s.t.Helper()
	s.namespace = s.name
	objects := []map[string]any{{"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": s.namespace}}}
	for _, resource := range []string{"roles", "rolebindings"} {
		r := schema.GroupVersionResource{Group: "rbac.authorization.k8s.io", Version: "v1", Resource: resource}
		for _, u := range testkit.Value(s.client.Resource(r).Namespace(namespace).List(s.t.Context(), metav1.ListOptions{}))(s.t).Items {
			u.Object["metadata"] = map[string]any{"name": u.GetName(), "namespace": s.namespace}
			objects = append(objects, u.Object)
		}
	}
	for _, o := range objects {
		testkit.Must(s.t, apply(s.t.Context(), testkit.Value(yaml.Marshal(o))(s.t)))
	}
	s.t.Cleanup(func() { // every pass of the other sites lists all of these
		only := metav1.ListOptions{LabelSelector: "test.example.com/site=" + s.name}
		testkit.Must(s.t,
			s.client.Resource(nodes).DeleteCollection(testkit.Context(s.t), metav1.DeleteOptions{}, only),
			s.client.Resource(attachments).Delete(testkit.Context(s.t), s.name+"-net", metav1.DeleteOptions{}),
		)
	})
}

// serve starts the fence service, and with a crash point does not wait until it is ready.
func (s *site) serve(crashPoint ...string) {
	s.t.Helper()
	flags := append(tlsFlags(s.authority.Files(s.t, nil, "127.0.0.1")),
		"--ports", fmt.Sprint(port), "--check-interval", "200ms", "--listen", fmt.Sprintf(":%d", fencePort))
	service, err := serve.Begin(s.machine, cleat, crashAt(crashPoint), flags...)
	testkit.Must(s.t, err)
	s.service = service
	s.t.Cleanup(func() { _ = service.Close() })
	if len(crashPoint) == 0 {
		testkit.Must(s.t, service.Ready(s.t.Context()))
	}
}

// restart implements place.
func (s *site) restart(crashPoint ...string) {
	s.t.Helper()
	testkit.Must(s.t, s.service.Kill())
	s.serve(crashPoint...)
}

// crashAt returns the environment of a process that is killed at these points.
func crashAt(points []string) []string {
	return []string{"CLEAT_CRASHPOINT=" + strings.Join(points, ",")}
}

func tlsFlags(f mutualtls.Files) []string {
	return []string{"--tls-cert", f.Cert, "--tls-key", f.Key, "--tls-ca", f.CA}
}

// forward returns an address here of a server on the machine: controllers run
// where the API server is.
func (s *site) forward(to netip.AddrPort) string {
	s.t.Helper()
	l := testkit.Value(net.Listen("tcp", "127.0.0.1:0"))(s.t)
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	s.t.Cleanup(func() { cancel(); _ = l.Close(); running.Wait() })
	running.Go(func() {
		for {
			near, err := l.Accept()
			if err != nil {
				return
			}
			running.Go(func() {
				defer near.Close()
				far, err := s.machine.Dial(ctx, to, netip.Addr{})
				if err != nil {
					return
				}
				defer far.Close()
				stop := context.AfterFunc(ctx, func() { _, _ = near.Close(), far.Close() })
				defer stop()
				running.Go(func() {
					_, _ = io.Copy(far, near)
					_ = far.Close()
				})
				_, _ = io.Copy(near, far)
			})
		}
	})
	return l.Addr().String()
}

// coverBy covers the volumes by a backend at the endpoint.
func (s *site) coverBy(backend, more string) {
	s.t.Helper()
	s.cover(fmt.Sprintf(`
maxConcurrent: 5
drivers:
- {driver: net.example.com, backend: %[1]s}
- {driver: disk.example.com, local: true}
backends:
- {name: %[1]s, endpoint: %[2]q%[3]s}
`, backend, s.endpoint, more))
}

// cover writes the configuration of controllers that start from now on.
func (s *site) cover(text string) {
	s.t.Helper()
	testkit.Must(s.t, os.WriteFile(s.coverage, []byte(text), 0o600))
}

// createNodes creates a lost node with two pods, one with a volume on the network
// and one with a volume of the node's own disk, and a healthy node.
func (s *site) createNodes(name string, lost netip.Addr) {
	s.t.Helper()
	text := ""
	for node, address := range map[string]string{"lost": lost.String(), "healthy": lost.Next().String()} {
		ready := map[string]string{"lost": "Unknown", "healthy": "True"}[node]
		text += fmt.Sprintf(`
---
apiVersion: v1
kind: Node
metadata: {name: %[1]s-%[2]s, labels: {test.example.com/site: %[1]s}}
status:
  addresses: [{type: InternalIP, address: %[3]s}]
  conditions: [{type: Ready, status: %[4]q, reason: test, message: "", lastHeartbeatTime: "2026-01-01T00:00:00Z", lastTransitionTime: "2026-01-01T00:00:00Z"}]
  nodeInfo: {machineID: %[1]s-m-%[2]s, systemUUID: %[1]s-u-%[2]s, bootID: %[1]s-b-%[2]s, kernelVersion: "", osImage: "", containerRuntimeVersion: "", kubeletVersion: "", kubeProxyVersion: "", operatingSystem: linux, architecture: amd64}
`, name, node, address, ready)
	}
	for volume, driver := range map[string]string{"net": "net.example.com", "disk": "disk.example.com"} {
		text += fmt.Sprintf(`
---
apiVersion: v1
kind: PersistentVolume
metadata: {name: %[1]s-%[2]s}
spec:
  capacity: {storage: 1Gi}
  accessModes: [ReadWriteOnce]
  csi: {driver: %[3]s, volumeHandle: %[1]s-%[2]s-handle}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: %[1]s-%[2]s, namespace: default}
spec: {volumeName: %[1]s-%[2]s, accessModes: [ReadWriteOnce], storageClassName: "", resources: {requests: {storage: 1Gi}}}
---
apiVersion: v1
kind: Pod
metadata: {name: %[1]s-%[2]s, namespace: default}
spec:
  nodeName: %[1]s-lost
  containers: [{name: c, image: i, volumeMounts: [{name: data, mountPath: /data}]}]
  volumes: [{name: data, persistentVolumeClaim: {claimName: %[1]s-%[2]s}}]
`, name, volume, driver)
	}
	text += fmt.Sprintf(`
---
apiVersion: storage.k8s.io/v1
kind: VolumeAttachment
metadata: {name: %[1]s-net}
spec: {attacher: net.example.com, nodeName: %[1]s-lost, source: {persistentVolumeName: %[1]s-net}}
`, name)
	testkit.Must(s.t, apply(s.t.Context(), []byte(text)))
}

func (s *site) node() string { return s.name + "-lost" }

// writer writes from the lost node until the test ends.
func (s *site) writer(id uint64) *storage.Writer {
	s.t.Helper()
	ctx := testkit.Context(s.t)
	conn := testkit.Value(s.lost.Dial(ctx, netip.AddrPortFrom(server.Addr(), port), s.lostAddr))(s.t)
	w := storage.NewWriter(id, storage.RecordSession(id, conn), time.Millisecond)
	s.t.Cleanup(w.Close)
	testkit.Must(s.t, w.Await(ctx, 20))
	return w
}

// controller starts cleat takeover with more environment.
func (s *site) controller(env ...string) *testkit.Process {
	s.t.Helper()
	args := append(tlsFlags(s.authority.Files(s.t, nil, "takeover")), "--coverage", s.coverage, "--namespace", s.namespace, "--lease-duration", s.leaseDuration.String(),
		"--kubeconfig", s.kubeconfig, "--log-level", "debug", "--log-format", "text")
	cmd := exec.Command(s.program, append([]string{"takeover"}, args...)...)
	cmd.Env = append(os.Environ(), env...)
	return testkit.Start(s.t, cmd)
}

// run runs a command of cleat takeover as the administrator.
func (s *site) run(args ...string) (string, error) {
	cmd := exec.CommandContext(testkit.Context(s.t), cleat, append([]string{"takeover", args[0], s.node(), "--kubeconfig", testkit.Value(api.Kubeconfig(""))(s.t)}, args[1:]...)...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("cleat takeover %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return string(out), err
}

func (s *site) remediation() *takeover.Remediation {
	s.t.Helper()
	for _, r := range testkit.Value(takeover.Of(testkit.Context(s.t), s.client, s.namespace, s.node()))(s.t) {
		return r
	}
	return nil
}

func (s *site) nodeObject() *corev1.Node {
	s.t.Helper()
	return testkit.Value(kubeobject.Get[corev1.Node](testkit.Context(s.t), s.client, nodes, "", s.node()))(s.t)
}

// reason is that of the remediation.
func (s *site) reason() string {
	s.t.Helper()
	return reasonOf(s.remediation())
}

// reasonOf is that of the condition Processing, empty without a remediation.
func reasonOf(r *takeover.Remediation) string {
	if r == nil {
		return ""
	}
	for _, c := range r.Status.Conditions {
		if c.Type == "Processing" {
			return c.Reason + ": " + c.Message
		}
	}
	return ""
}

func (s *site) awaitReason(want string) {
	s.t.Helper()
	testkit.EventuallyNil(s.t, "reason "+want, func() error {
		if now := s.reason(); !strings.HasPrefix(now, want+":") {
			return fmt.Errorf("the reason is %q", now)
		}
		return nil
	})
}

// podsLeft returns the pods of the node that exist.
func (s *site) podsLeft() (left []string) {
	s.t.Helper()
	all := testkit.Value(kubeobject.List[corev1.Pod](testkit.Context(s.t), s.client, pods, "default", metav1.ListOptions{FieldSelector: "spec.nodeName=" + s.node()}))(s.t)
	for _, p := range all {
		left = append(left, p.Name)
	}
	return left
}

// reboot reports another boot of the same machine, which is Ready.
func (s *site) reboot() {
	s.t.Helper()
	testkit.EventuallyNil(s.t, "the reboot", func() error {
		ctx := testkit.Context(s.t)
		u, err := s.client.Resource(nodes).Get(ctx, s.node(), metav1.GetOptions{})
		if err != nil {
			return err
		}
		status := u.Object["status"].(map[string]any)
		status["nodeInfo"].(map[string]any)["bootID"] = "another"
		status["conditions"].([]any)[0].(map[string]any)["status"] = "True"
		_, err = s.client.Resource(nodes).UpdateStatus(ctx, u, metav1.UpdateOptions{})
		return err
	})
}

func (s *site) delete() {
	s.t.Helper()
	testkit.Must(s.t, s.client.Resource(takeover.Resource).Namespace(namespace).Delete(context.WithoutCancel(s.t.Context()), s.node(), metav1.DeleteOptions{}))
}

// coverageText returns the configuration of controllers.
func (s *site) coverageText() string {
	s.t.Helper()
	return string(testkit.Value(os.ReadFile(s.coverage))(s.t))
}
