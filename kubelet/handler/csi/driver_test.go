package csi

import (
	"context"
	"path/filepath"
	"sync"
	"testing"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/cleatproject/cleat/internal/unixsock"
	"github.com/cleatproject/cleat/kubelet/watch"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// driver is a small CSI driver. What a test sets must be set before it serves.
type driver struct {
	spec.UnimplementedIdentityServer
	spec.UnimplementedNodeServer

	name         string
	ready        func() (*wrapperspb.BoolValue, error) // nil: ready
	capabilities []*spec.PluginCapability
	node         func(context.Context) (*spec.NodeGetInfoResponse, error) // nil: a node
	noNode       bool                                                     // the node service is not served

	mu    sync.Mutex
	calls []string
}

func (d *driver) called(name string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.calls = append(d.calls, name)
}

func (d *driver) GetPluginInfo(context.Context, *spec.GetPluginInfoRequest) (*spec.GetPluginInfoResponse, error) {
	d.called("GetPluginInfo")
	return &spec.GetPluginInfoResponse{Name: d.name, VendorVersion: "7.1", Manifest: map[string]string{"url": "https://csi.example.com"}}, nil
}

func (d *driver) Probe(context.Context, *spec.ProbeRequest) (*spec.ProbeResponse, error) {
	d.called("Probe")
	if d.ready == nil {
		return &spec.ProbeResponse{}, nil
	}
	ready, err := d.ready()
	return &spec.ProbeResponse{Ready: ready}, err
}

func (d *driver) GetPluginCapabilities(context.Context, *spec.GetPluginCapabilitiesRequest) (*spec.GetPluginCapabilitiesResponse, error) {
	d.called("GetPluginCapabilities")
	return &spec.GetPluginCapabilitiesResponse{Capabilities: d.capabilities}, nil
}

func (d *driver) NodeGetInfo(ctx context.Context, _ *spec.NodeGetInfoRequest) (*spec.NodeGetInfoResponse, error) {
	d.called("NodeGetInfo")
	if d.node != nil {
		return d.node(ctx)
	}
	return &spec.NodeGetInfoResponse{NodeId: "node-of-" + d.name, MaxVolumesPerNode: 8,
		AccessibleTopology: &spec.Topology{Segments: map[string]string{"example.com/zone": "1"}}}, nil
}

// serve serves the driver at path until stop is called or the test ends.
func (d *driver) serve(t *testing.T, path string) (stop func()) {
	t.Helper()
	l, err := unixsock.Listen(t.Context(), unixsock.Address{Path: path, SharedDir: true})
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	spec.RegisterIdentityServer(server, d)
	if !d.noNode {
		spec.RegisterNodeServer(server, d)
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	stop = sync.OnceFunc(func() {
		server.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return stop
}

// served is a plugin whose driver runs.
func served(t *testing.T, d *driver, versions ...string) watch.Plugin {
	t.Helper()
	dir := t.TempDir()
	p := watch.Plugin{Type: Type, Name: d.name, Endpoint: filepath.Join(dir, "csi.sock"), Socket: filepath.Join(dir, "reg.sock"), Versions: versions}
	d.serve(t, p.Endpoint)
	return p
}
