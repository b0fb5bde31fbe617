package upstream

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
	csiplugin "k8s.io/kubernetes/pkg/volume/csi"
	volumetest "k8s.io/kubernetes/pkg/volume/testing"

	"github.com/cleatproject/cleat/kubelet/register"
	"github.com/cleatproject/cleat/kubelet/watch/watchtest"
	"github.com/cleatproject/cleat/test/driver"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/test/upstream/kubelet"
)

const nodeName = "node-1"

// node is a kubelet with its plugin manager and CSI plugin, and a fake API
// server.
type node struct {
	api      kubernetes.Interface
	registry string // the directory for registration sockets
	dir      string // for all other files
}

// newNode starts a node. The CSI plugin keeps its drivers in a package
// variable: tests use different names.
func newNode(t *testing.T) *node {
	t.Helper()
	n := newCSIPlugin(t)
	m := kubelet.New(n.registry, nil)
	m.AddHandler(registration.CSIPlugin, csiplugin.PluginHandler)
	startHost(t, m)
	return n
}

func newCSIPlugin(t *testing.T) *node {
	t.Helper()
	// Short, for the 107 bytes of a socket's path.
	dir, err := os.MkdirTemp("", "n")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	api := fake.NewClientset(&core.Node{ObjectMeta: meta.ObjectMeta{Name: nodeName}})
	storage := informers.NewSharedInformerFactory(api, 0).Storage().V1()
	volumetest.NewFakeKubeletVolumeHostWithCSINodeName(t, filepath.Join(dir, "kubelet"), api, csiplugin.ProbeVolumePlugins(),
		nodeName, storage.CSIDrivers().Lister(), storage.VolumeAttachments().Lister())
	return &node{api: api, registry: filepath.Join(dir, "registry"), dir: dir}
}

func startHost(t *testing.T, h watchtest.Host) {
	t.Helper()
	if err := h.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
}

// driverID returns the id of a driver in the node's CSINode object, or "".
func (n *node) driverID(ctx context.Context, name string) (string, error) {
	object, err := n.api.StorageV1().CSINodes().Get(ctx, nodeName, meta.GetOptions{})
	if err != nil {
		return "", err
	}
	for _, d := range object.Spec.Drivers {
		if d.Name == name {
			return d.NodeID, nil
		}
	}
	return "", nil
}

// annotatedID returns it from the annotation of the Node object.
func (n *node) annotatedID(ctx context.Context, name string) (string, error) {
	object, err := n.api.CoreV1().Nodes().Get(ctx, nodeName, meta.GetOptions{})
	if err != nil {
		return "", err
	}
	ids := map[string]string{}
	if text := object.Annotations["csi.volume.kubernetes.io/nodeid"]; text != "" {
		err = json.Unmarshal([]byte(text), &ids)
	}
	return ids[name], err
}

// knows waits until the node lists a driver with an id, or does not list it
// ("").
func (n *node) knows(t *testing.T, name, id string) {
	t.Helper()
	testkit.EventuallyNil(t, "the kubelet has the node's id", func() error {
		for _, ask := range []func(context.Context, string) (string, error){n.driverID, n.annotatedID} {
			if got, err := ask(t.Context(), name); err != nil || got != id {
				return fmt.Errorf("%s has the id %q at this node, want %q: %w", name, got, id, orNil(err))
			}
		}
		return nil
	})
}

func orNil(err error) error {
	if err == nil {
		return context.DeadlineExceeded
	}
	return err
}

// The driver registers with the kubelet by itself, registers again after a
// kill, and is deregistered when it stops.
func TestDriverRegistersByItself(t *testing.T) {
	const name = "by-itself.csi.cleat.dev"
	n := newNode(t)
	cleat := cleatProgram(t)
	flags := []string{"--pool", filepath.Join(n.dir, "pool"), "--node-id", "me", "--driver-name", name, "--registration-dir", n.registry}
	p, err := driver.Launch(t.Context(), cleat, n.dir, "csi", nil, flags...)
	if err != nil {
		t.Fatal(err)
	}
	n.knows(t, name, "me")
	object, err := n.api.StorageV1().CSINodes().Get(t.Context(), nodeName, meta.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if keys := object.Spec.Drivers[0].TopologyKeys; len(keys) == 0 {
		t.Errorf("the node's CSINode has no topology of %s: %+v", name, object.Spec.Drivers)
	}
	status(t, cleat, n.dir, "registered")
	if err := p.Kill(); err != nil {
		t.Fatal(err)
	}

	p, err = driver.Launch(t.Context(), cleat, n.dir, "csi", nil, flags...)
	if err != nil {
		t.Fatal(err)
	}
	status(t, cleat, n.dir, "registered")
	n.knows(t, name, "me")
	if err := p.Stop(); err != nil {
		t.Fatal(err)
	}
	n.knows(t, name, "")
	if left, err := os.ReadDir(n.registry); err != nil || len(left) != 0 {
		t.Errorf("left over by the driver: %v, %v", left, err)
	}
}

// status waits until cleat csi status reports a registration state.
func status(t *testing.T, cleat, dir, want string) {
	t.Helper()
	testkit.EventuallyNil(t, "registration "+want, func() error {
		out, err := exec.CommandContext(t.Context(), cleat, "csi", "status", "-o", "json", "--state-dir", filepath.Join(dir, "csi-state")).Output()
		if err != nil && len(out) == 0 {
			return err
		}
		var got struct{ Registration register.Status }
		if err := json.Unmarshal(out, &got); err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		if got.Registration.State != register.State(want) {
			return fmt.Errorf("cleat csi status reports %+v, want %s", got.Registration, want)
		}
		return nil
	})
}

// nodeService is the part of a CSI driver that hosts call at its registration.
type nodeService struct {
	spec.UnimplementedIdentityServer
	spec.UnimplementedNodeServer
	name, id string
}

func (s *nodeService) GetPluginInfo(context.Context, *spec.GetPluginInfoRequest) (*spec.GetPluginInfoResponse, error) {
	return &spec.GetPluginInfoResponse{Name: s.name, VendorVersion: "1"}, nil
}

func (*nodeService) GetPluginCapabilities(context.Context, *spec.GetPluginCapabilitiesRequest) (*spec.GetPluginCapabilitiesResponse, error) {
	return &spec.GetPluginCapabilitiesResponse{}, nil
}

func (*nodeService) Probe(context.Context, *spec.ProbeRequest) (*spec.ProbeResponse, error) {
	return &spec.ProbeResponse{}, nil
}

func (s *nodeService) NodeGetInfo(context.Context, *spec.NodeGetInfoRequest) (*spec.NodeGetInfoResponse, error) {
	return &spec.NodeGetInfoResponse{NodeId: s.id}, nil
}

// serveDriver serves a driver and returns its endpoint.
func (n *node) serveDriver(t *testing.T, name, id string) string {
	t.Helper()
	path := filepath.Join(n.dir, id+".sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	service := &nodeService{name: name, id: id}
	spec.RegisterIdentityServer(server, service)
	spec.RegisterNodeServer(server, service)
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	t.Cleanup(func() { server.Stop(); <-served })
	return path
}

// startRegistrar runs a registrar until the test ends.
func startRegistrar(t *testing.T, c register.Config) *register.Registrar {
	t.Helper()
	r, err := register.New(c)
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- r.Serve(context.Background()) }()
	t.Cleanup(func() {
		if err := r.Stop(context.Background()); err != nil {
			t.Error(err)
		}
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return r
}

// csi returns the configuration of a registrar. The driver is removed from the
// kubelet's CSI plugin when the test ends.
func (n *node) csi(t *testing.T, name, endpoint string) register.Config {
	t.Cleanup(func() { csiplugin.PluginHandler.DeRegisterPlugin(context.Background(), name, endpoint) })
	return register.Config{Dir: n.registry, Every: 100 * time.Millisecond,
		Plugin: register.Plugin{Type: register.CSI, Name: name, Endpoint: endpoint, Versions: []string{"1.0.0"}}}
}

func reaches(t *testing.T, r *register.Registrar, want register.State) register.Status {
	t.Helper()
	testkit.EventuallyNil(t, "registration "+string(want), func() error {
		if s := r.Status(); s.State != want {
			return fmt.Errorf("the registrar reports %+v, want %s", s, want)
		}
		return nil
	})
	return r.Status()
}

// A second instance of a driver waits while the first is registered, and takes
// over.
func TestSecondInstanceTakesOver(t *testing.T) {
	const name = "follows.csi.cleat.dev"
	n := newNode(t)
	first := startRegistrar(t, n.csi(t, name, n.serveDriver(t, name, "first")))
	reaches(t, first, register.Registered)
	n.knows(t, name, "first")
	second := startRegistrar(t, n.csi(t, name, n.serveDriver(t, name, "second")))
	reaches(t, second, register.Yielding)
	n.knows(t, name, "first")
	if err := first.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	reaches(t, second, register.Registered)
	n.knows(t, name, "second")
}

// The kubelet's refusal reaches the plugin unchanged, and the plugin is
// registered once the reason is gone.
func TestNameConflictIsRefused(t *testing.T) {
	const name = "refused.csi.cleat.dev"
	n := newNode(t)
	holder := n.csi(t, name, n.serveDriver(t, name, "holder"))
	holder.Dir = filepath.Join(n.registry, "of-another-vendor")
	if err := os.MkdirAll(holder.Dir, 0o750); err != nil {
		t.Fatal(err)
	}
	holding := startRegistrar(t, holder)
	reaches(t, holding, register.Registered)

	r := startRegistrar(t, n.csi(t, name, n.serveDriver(t, name, "late")))
	refused := reaches(t, r, register.Refused)
	for _, word := range []string{"RegisterPlugin error -- plugin validation failed with err: ", "Another driver with the same name is already registered"} {
		if !strings.Contains(refused.Error, word) {
			t.Errorf("the refusal %q does not contain %q", refused.Error, word)
		}
	}
	if err := holding.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	reaches(t, r, register.Registered)
	n.knows(t, name, "late")
}

// A driver that the kubelet cannot call is refused with the reason.
func TestDriverWithoutEndpointIsRefused(t *testing.T) {
	n := newNode(t)
	r := startRegistrar(t, n.csi(t, "absent.csi.cleat.dev", filepath.Join(n.dir, "absent.sock")))
	refused := reaches(t, r, register.Refused)
	if !strings.Contains(refused.Error, "RegisterPlugin error -- plugin registration failed with err: ") {
		t.Errorf("the refusal is %q", refused.Error)
	}
	if refused.Reason == "" {
		t.Errorf("no reason in %+v", refused)
	}
}
