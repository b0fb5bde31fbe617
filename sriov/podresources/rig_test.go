package podresources

import (
	"context"
	"net"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/grpc"
	podresourcesv1 "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// kubelet answers with what it is told to.
type kubelet struct {
	podresourcesv1.UnimplementedPodResourcesListerServer
	list    func(context.Context) (*podresourcesv1.ListPodResourcesResponse, error)
	offered func(context.Context) (*podresourcesv1.AllocatableResourcesResponse, error)
}

func (k *kubelet) List(ctx context.Context, r *podresourcesv1.ListPodResourcesRequest) (*podresourcesv1.ListPodResourcesResponse, error) {
	if k.list == nil {
		return k.UnimplementedPodResourcesListerServer.List(ctx, r)
	}
	return k.list(ctx)
}

func (k *kubelet) GetAllocatableResources(ctx context.Context, r *podresourcesv1.AllocatableResourcesRequest) (*podresourcesv1.AllocatableResourcesResponse, error) {
	if k.offered == nil {
		return k.UnimplementedPodResourcesListerServer.GetAllocatableResources(ctx, r)
	}
	return k.offered(ctx)
}

// listing is a kubelet that lists these pods.
func listing(pods ...*podresourcesv1.PodResources) *kubelet {
	return &kubelet{list: func(context.Context) (*podresourcesv1.ListPodResourcesResponse, error) {
		return &podresourcesv1.ListPodResourcesResponse{PodResources: pods}, nil
	}}
}

// pod has one container with devices of one resource.
func pod(namespace, name, resource string, ids ...string) *podresourcesv1.PodResources {
	return &podresourcesv1.PodResources{Namespace: namespace, Name: name,
		Containers: []*podresourcesv1.ContainerResources{{Name: "main", Devices: devices(resource, ids...)}}}
}

func devices(resource string, ids ...string) []*podresourcesv1.ContainerDevices {
	return []*podresourcesv1.ContainerDevices{{ResourceName: resource, DeviceIds: ids}}
}

// serve serves on a socket until the test is over or stop is called.
func serve(t *testing.T, path string, k *kubelet) (stop func()) {
	t.Helper()
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	podresourcesv1.RegisterPodResourcesListerServer(server, k)
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(l) }()
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		server.Stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(stop)
	return stop
}

func client(t *testing.T, path string) *Client {
	t.Helper()
	c := New(path)
	c.patience = time.Minute // only tests of it wait
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// asking is a client of a kubelet.
func asking(t *testing.T, k *kubelet) *Client {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kubelet.sock")
	serve(t, path, k)
	return client(t, path)
}
