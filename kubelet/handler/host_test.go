package handler_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	deviceapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/cleatproject/cleat/kubelet/handler/csi"
	"github.com/cleatproject/cleat/kubelet/handler/device"
	"github.com/cleatproject/cleat/kubelet/handler/generic"
	"github.com/cleatproject/cleat/kubelet/register"
	"github.com/cleatproject/cleat/kubelet/watch"
	"github.com/cleatproject/cleat/test/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// start runs a host with the given handlers, and returns it with its directory.
func start(t *testing.T, handlers map[string]watch.Handler) (*watch.Host, string) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "reg")
	h := testkit.Value(watch.New(watch.Options{
		Dir: dir, Handlers: handlers,
		Timeouts: watch.Timeouts{GetInfo: time.Minute, Notify: time.Minute, Register: 3 * time.Second, DeRegister: 3 * time.Second},
		BackOff:  watch.BackOff{First: 5 * time.Millisecond, Most: 50 * time.Millisecond},
	}))(t)
	testkit.Must(t, h.Start(t.Context()))
	t.Cleanup(func() { testkit.Must(t, h.Close(testkit.Context(t), true)) })
	return h, dir
}

// announce serves a registration socket until stop is called or the test ends.
func announce(t *testing.T, dir string, p register.Plugin) (r *register.Registrar, stop func()) {
	t.Helper()
	testkit.Must(t, os.MkdirAll(dir, 0o750))
	r = testkit.Value(register.New(register.Config{Dir: dir, Plugin: p}))(t)
	served := make(chan error, 1)
	go func() { served <- r.Serve(context.Background()) }()
	stop = sync.OnceFunc(func() {
		testkit.Must(t, r.Stop(testkit.Context(t)), <-served)
	})
	t.Cleanup(stop)
	return r, stop
}

const disks = "disks.example.com"

// driver is a CSI driver. NodeGetInfo waits for hang if it is set.
type driver struct {
	spec.UnimplementedIdentityServer
	spec.UnimplementedNodeServer
	hang <-chan struct{}
}

func (driver) GetPluginInfo(context.Context, *spec.GetPluginInfoRequest) (*spec.GetPluginInfoResponse, error) {
	return &spec.GetPluginInfoResponse{Name: disks}, nil
}

func (driver) Probe(context.Context, *spec.ProbeRequest) (*spec.ProbeResponse, error) {
	return &spec.ProbeResponse{}, nil
}

func (driver) GetPluginCapabilities(context.Context, *spec.GetPluginCapabilitiesRequest) (*spec.GetPluginCapabilitiesResponse, error) {
	return &spec.GetPluginCapabilitiesResponse{}, nil
}

func (d driver) NodeGetInfo(ctx context.Context, _ *spec.NodeGetInfoRequest) (*spec.NodeGetInfoResponse, error) {
	select {
	case <-d.hang:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	return &spec.NodeGetInfoResponse{NodeId: "n"}, nil
}

func serveDriver(t *testing.T, hang <-chan struct{}) (endpoint string) {
	t.Helper()
	endpoint = filepath.Join(t.TempDir(), "csi.sock")
	testkit.Serve(t, endpoint, func(s grpc.ServiceRegistrar) {
		spec.RegisterIdentityServer(s, driver{hang: hang})
		spec.RegisterNodeServer(s, driver{hang: hang})
	})
	return endpoint
}

// A second driver of one name is refused with the kubelet's error and registers
// when the first one is gone. A driver that hangs times out and is retried.
func TestCSIThroughHost(t *testing.T) {
	t.Parallel()
	drivers := csi.New(csi.Options{Timeout: 2 * time.Second})
	_, dir := start(t, map[string]watch.Handler{csi.Type: drivers})
	ready, hang := make(chan struct{}), make(chan struct{})
	close(ready)
	one := register.Plugin{Type: csi.Type, Name: disks, Endpoint: serveDriver(t, ready), Versions: []string{"1.0.0"}}
	two := one
	two.Endpoint = serveDriver(t, hang)

	_, stop := announce(t, filepath.Join(dir, "one"), one)
	testkit.Eventually(t, "the first is registered", func() bool { d, _ := drivers.Driver(disks); return d.Endpoint == one.Endpoint })
	second, _ := announce(t, filepath.Join(dir, "two"), two)
	testkit.Eventually(t, "the second is refused", func() bool { return second.Status().State == register.Refused })
	want := fmt.Sprintf(`RegisterPlugin error -- plugin validation failed with err: validation failed for CSI Driver %s at endpoint %s: `+
		`kubernetes.io/csi: ValidatePlugin for CSI driver %q failed. Another driver with the same name is already registered with a higher supported version: "1.0.0"`, disks, two.Endpoint, disks)
	testkit.Diff(t, "second.Status().Error", want, second.Status().Error)
	stop()
	testkit.Eventually(t, "Register of the second times out", func() bool {
		return strings.Contains(second.Status().Error, "plugin registration failed with err")
	})
	if d, found := drivers.Driver(disks); found {
		t.Errorf("a driver that hangs is offered: %+v", d)
	}
	close(hang)
	testkit.Eventually(t, "the second is registered", func() bool {
		d, _ := drivers.Driver(disks)
		return d.Endpoint == two.Endpoint && second.Status().State == register.Registered
	})
}

// cameras is a device plugin with one device.
type cameras struct {
	deviceapi.UnimplementedDevicePluginServer
	id string
}

func (cameras) GetDevicePluginOptions(context.Context, *deviceapi.Empty) (*deviceapi.DevicePluginOptions, error) {
	return &deviceapi.DevicePluginOptions{}, nil
}

func (c cameras) ListAndWatch(_ *deviceapi.Empty, stream grpc.ServerStreamingServer[deviceapi.ListAndWatchResponse]) error {
	err := stream.Send(&deviceapi.ListAndWatchResponse{Devices: []*deviceapi.Device{{ID: c.id, Health: deviceapi.Healthy}}})
	<-stream.Context().Done()
	return err
}

// A device plugin is updated: the new one serves, and the end of the old
// service and socket does not affect it.
func TestDeviceUpdateThroughHost(t *testing.T) {
	devices := device.New(device.Options{})
	t.Cleanup(devices.Close) // after the host
	_, dir := start(t, map[string]watch.Handler{device.Type: devices})
	const camera = "example.com/camera"
	run := func(id string) (stop func()) {
		path := filepath.Join(t.TempDir(), "camera.sock")
		stopService := testkit.Serve(t, path, func(s grpc.ServiceRegistrar) { deviceapi.RegisterDevicePluginServer(s, cameras{id: id}) })
		_, withdraw := announce(t, filepath.Join(dir, id), register.Plugin{Type: device.Type, Name: camera, Endpoint: path, Versions: []string{"v1beta1"}})
		return func() { stopService(); withdraw() }
	}
	offered := func(id string) func() bool {
		return func() bool {
			r, _ := devices.Resource(camera)
			return r.Current && len(r.Devices) == 1 && r.Devices[0].ID == id && r.Devices[0].Healthy
		}
	}
	stopOld := run("old")
	testkit.Eventually(t, "the old plugin serves", offered("old"))
	stopNew := run("new")
	testkit.Eventually(t, "the new plugin serves", offered("new"))
	stopOld()
	if !offered("new")() {
		t.Error("the old plugin's end changed its successor")
	}
	stopNew()
	testkit.Eventually(t, "the resource is withdrawn", func() bool { _, found := devices.Resource(camera); return !found })
}

// The newest instance serves, then the older one; while OnChange panics, the
// plugin is refused.
func TestGenericThroughHost(t *testing.T) {
	var mu sync.Mutex
	panics := false
	words := generic.New(generic.Options{OnChange: func(context.Context, generic.Name) error {
		mu.Lock()
		defer mu.Unlock()
		if panics {
			panic("no memory for words")
		}
		return nil
	}})
	_, dir := start(t, map[string]watch.Handler{"Word": words})
	p := register.Plugin{Type: "Word", Name: "w", Endpoint: "/run/1.sock", Versions: []string{"1"}}
	serving := func(endpoint string) func() bool {
		return func() bool {
			q, found := words.Serving("Word", "w")
			return q.Endpoint == endpoint && found == (endpoint != "")
		}
	}
	_, stopOne := announce(t, filepath.Join(dir, "1"), p)
	testkit.Eventually(t, "the first serves", serving("/run/1.sock"))
	mu.Lock()
	panics = true
	mu.Unlock()
	p.Endpoint = "/run/2.sock"
	two, stopTwo := announce(t, filepath.Join(dir, "2"), p)
	testkit.Eventually(t, "the second is refused", func() bool { return strings.Contains(two.Status().Error, "no memory for words") })
	if !serving("/run/1.sock")() {
		t.Error("a refused instance serves")
	}
	mu.Lock()
	panics = false
	mu.Unlock()
	testkit.Eventually(t, "the second serves", serving("/run/2.sock"))
	stopTwo()
	testkit.Eventually(t, "the first serves again", serving("/run/1.sock"))
	stopOne()
	testkit.Eventually(t, "none serves", serving(""))
}
