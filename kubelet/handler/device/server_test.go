package device_test

import (
	"context"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/cleatproject/cleat/kubelet/handler/device"
	"github.com/cleatproject/cleat/kubelet/watch"
	"github.com/cleatproject/cleat/test/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const gpu = "example.com/gpu"

// gpus is a device plugin. Fields that are nil have a default answer.
type gpus struct {
	api.UnimplementedDevicePluginServer
	options  api.DevicePluginOptions
	opened   func(context.Context) error // before a list is sent
	allocate func(context.Context, []string) (*api.AllocateResponse, error)
	prefer   func(*api.ContainerPreferredAllocationRequest) *api.PreferredAllocationResponse
	prepare  func([]string) error

	mu      sync.Mutex
	devices []*api.Device
	changed chan struct{} // closed when devices or end change
	end     bool
}

func newGPUs(ids ...string) *gpus {
	g := &gpus{changed: make(chan struct{})}
	g.devices = healthy(ids...)
	return g
}

func healthy(ids ...string) (devices []*api.Device) {
	for _, id := range ids {
		devices = append(devices, &api.Device{ID: id, Health: api.Healthy})
	}
	return devices
}

// send sends another list to all streams.
func (g *gpus) send(devices ...*api.Device) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.devices = devices
	close(g.changed)
	g.changed = make(chan struct{})
}

// hangUp ends all open streams; later ones continue.
func (g *gpus) hangUp() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.end = true
	close(g.changed)
	g.changed = make(chan struct{})
}

func (g *gpus) GetDevicePluginOptions(context.Context, *api.Empty) (*api.DevicePluginOptions, error) {
	return &api.DevicePluginOptions{PreStartRequired: g.options.PreStartRequired, GetPreferredAllocationAvailable: g.options.GetPreferredAllocationAvailable}, nil
}

func (g *gpus) ListAndWatch(_ *api.Empty, stream grpc.ServerStreamingServer[api.ListAndWatchResponse]) error {
	if g.opened != nil {
		if err := g.opened(stream.Context()); err != nil {
			return err
		}
	}
	g.mu.Lock()
	g.end = false
	g.mu.Unlock()
	for {
		g.mu.Lock()
		devices, changed, end := g.devices, g.changed, g.end
		g.mu.Unlock()
		if end {
			return nil
		}
		if err := stream.Send(&api.ListAndWatchResponse{Devices: devices}); err != nil {
			return err
		}
		select {
		case <-changed:
		case <-stream.Context().Done():
			return stream.Context().Err()
		}
	}
}

func (g *gpus) Allocate(ctx context.Context, r *api.AllocateRequest) (*api.AllocateResponse, error) {
	if len(r.GetContainerRequests()) != 1 {
		return nil, status.Errorf(codes.InvalidArgument, "%d containers", len(r.GetContainerRequests()))
	}
	ids := r.GetContainerRequests()[0].GetDevicesIds()
	if g.allocate != nil {
		return g.allocate(ctx, ids)
	}
	return &api.AllocateResponse{ContainerResponses: []*api.ContainerAllocateResponse{{Envs: map[string]string{"GPUS": strings.Join(ids, ",")}}}}, nil
}

func (g *gpus) GetPreferredAllocation(_ context.Context, r *api.PreferredAllocationRequest) (*api.PreferredAllocationResponse, error) {
	if g.prefer == nil {
		return nil, status.Error(codes.Unimplemented, "no preference")
	}
	return g.prefer(r.GetContainerRequests()[0]), nil
}

func (g *gpus) PreStartContainer(_ context.Context, r *api.PreStartContainerRequest) (*api.PreStartContainerResponse, error) {
	if g.prepare == nil {
		return nil, status.Error(codes.Unimplemented, "nothing to prepare")
	}
	return &api.PreStartContainerResponse{}, g.prepare(r.GetDevicesIds())
}

// serve serves the plugin at path until stop is called or the test ends.
func (g *gpus) serve(t *testing.T, path string) (stop func()) {
	t.Helper()
	return testkit.Serve(t, path, func(s grpc.ServiceRegistrar) { api.RegisterDevicePluginServer(s, g) })
}

// at returns the plugin of gpu with an endpoint.
func at(endpoint string) watch.Plugin {
	return watch.Plugin{Type: device.Type, Name: gpu, Endpoint: endpoint, Socket: endpoint + "-reg", Versions: []string{api.Version}}
}

// begin returns a handler with short pauses.
func begin(t *testing.T) *device.Handler {
	t.Helper()
	h := device.New(device.Options{Logger: slog.New(slog.DiscardHandler), Timeout: time.Minute, Pause: 2 * time.Millisecond, MostPause: 20 * time.Millisecond})
	t.Cleanup(h.Close)
	return h
}

// served is a handler with one plugin whose list has arrived.
func served(t *testing.T, g *gpus) (*device.Handler, watch.Plugin) {
	t.Helper()
	h, p := begin(t), at(filepath.Join(t.TempDir(), "gpu.sock"))
	g.serve(t, p.Endpoint)
	register(t, h, p)
	await(t, h, func(r device.Resource) bool { return r.Current })
	return h, p
}

func register(t *testing.T, h *device.Handler, p watch.Plugin) {
	t.Helper()
	testkit.Must(t, h.Validate(t.Context(), p))
	testkit.Must(t, h.Register(t.Context(), p))
}

// await waits until the resource fulfils a condition, and returns it.
func await(t *testing.T, h *device.Handler, wanted func(device.Resource) bool) device.Resource {
	t.Helper()
	ctx := testkit.Context(t)
	var last device.Resource
	for r := range h.Changes(ctx) {
		if last = r; r.Name == gpu && wanted(r) {
			return r
		}
	}
	t.Fatalf("the resource never was as wanted; the last: %+v", last)
	return last
}

// ids lists the devices; unhealthy ones have the suffix x.
func ids(r device.Resource) string {
	var all []string
	for _, d := range r.Devices {
		word := d.ID
		if !d.Healthy {
			word += "x"
		}
		all = append(all, word)
	}
	return strings.Join(all, " ")
}

func has(want string) func(device.Resource) bool {
	return func(r device.Resource) bool { return ids(r) == want }
}
