package device_test

import (
	"context"
	"fmt"
	"log"
	"net"
	"os"
	"path/filepath"

	"google.golang.org/grpc"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/cleatproject/cleat/kubelet/handler/device"
	"github.com/cleatproject/cleat/kubelet/watch"
)

// cameras is a device plugin with two devices.
type cameras struct {
	api.UnimplementedDevicePluginServer
}

func (cameras) GetDevicePluginOptions(context.Context, *api.Empty) (*api.DevicePluginOptions, error) {
	return &api.DevicePluginOptions{}, nil
}

func (cameras) ListAndWatch(_ *api.Empty, stream grpc.ServerStreamingServer[api.ListAndWatchResponse]) error {
	if err := stream.Send(&api.ListAndWatchResponse{Devices: []*api.Device{
		{ID: "video0", Health: api.Healthy}, {ID: "video1", Health: api.Unhealthy},
	}}); err != nil {
		return err
	}
	<-stream.Context().Done()
	return nil
}

func (cameras) Allocate(_ context.Context, r *api.AllocateRequest) (*api.AllocateResponse, error) {
	path := "/dev/" + r.GetContainerRequests()[0].GetDevicesIds()[0]
	return &api.AllocateResponse{ContainerResponses: []*api.ContainerAllocateResponse{{
		Devices: []*api.DeviceSpec{{HostPath: path, ContainerPath: path, Permissions: "rw"}},
	}}}, nil
}

// A plugin host would call Register; this example calls it directly.
func Example() {
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	socket := filepath.Join(dir, "cameras.sock")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		log.Fatal(err)
	}
	server := grpc.NewServer()
	api.RegisterDevicePluginServer(server, cameras{})
	go func() { _ = server.Serve(listener) }()
	defer server.Stop()

	ctx := context.Background()
	devices := device.New(device.Options{})
	defer devices.Close()
	p := watch.Plugin{Type: device.Type, Name: "example.com/camera", Endpoint: socket, Versions: []string{"v1beta1"}}
	if err := devices.Register(ctx, p); err != nil {
		log.Fatal(err)
	}
	for r := range devices.Changes(ctx) {
		if r.Current { // the first list has arrived
			for _, d := range r.Devices {
				fmt.Println(d.ID, d.Healthy)
			}
			break
		}
	}
	answer, err := devices.Allocate(ctx, "example.com/camera", "job 17", "video0")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(answer.GetDevices()[0].GetHostPath())
	_, err = devices.Allocate(ctx, "example.com/camera", "job 18", "video0")
	fmt.Println(err)
	if err := devices.Release("example.com/camera", "job 17"); err != nil {
		log.Fatal(err)
	}
	// Output:
	// video0 true
	// video1 false
	// /dev/video0
	// allocate example.com/camera: device video0: already allocated to "job 17"
}
