package remote

import (
	"context"
	"errors"
	"fmt"
	"io"

	"google.golang.org/grpc"

	hostv1 "github.com/cleatproject/cleat/api/host/v1"
	"github.com/cleatproject/cleat/kubelet/handler/device"
)

func (s *Service) ListDevices(r *hostv1.ListDevicesRequest, stream grpc.ServerStreamingServer[hostv1.ListDevicesResponse]) error {
	var names []string
	found := false
	for _, resource := range s.Resources() {
		names = append(names, resource.Name)
		if r.GetResource() != "" && r.GetResource() != resource.Name {
			continue
		}
		found = true
		if err := stream.Send(&hostv1.ListDevicesResponse{Resource: resourceToWire(resource)}); err != nil {
			return err
		}
	}
	if r.GetResource() != "" && !found {
		return &apiError{kind: errUnknown, text: fmt.Sprintf("no device plugin offers %q%s; available resources: %s", r.GetResource(), suggestion(r.GetResource(), names), nameList(names))}
	}
	return nil
}

func resourceToWire(r device.Resource) *hostv1.Resource {
	w := &hostv1.Resource{Name: valid(r.Name), Endpoint: pathToWire(r.Endpoint), Current: r.Current, Error: valid(r.Error)}
	for _, d := range r.Devices {
		w.Devices = append(w.Devices, &hostv1.Device{Id: valid(d.ID), Healthy: d.Healthy, NumaNodes: d.NUMA, Holder: valid(d.Holder)})
	}
	return w
}

// Resource is a device plugin's resource.
type Resource struct {
	Name     string          `json:"name"`
	Endpoint string          `json:"endpoint"`
	Current  bool            `json:"current"`
	Error    string          `json:"error,omitempty"`
	Devices  []device.Device `json:"devices"`
}

// Devices returns the resources by name. With a resource, only that one, or an
// Error with NotFound.
func (h *Host) Devices(ctx context.Context, resource string) ([]Resource, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := h.calls.ListDevices(ctx, &hostv1.ListDevicesRequest{Resource: resource})
	all := []Resource{}
	for err == nil {
		var m *hostv1.ListDevicesResponse
		if m, err = stream.Recv(); err == nil {
			all = append(all, resourceFromWire(m.GetResource()))
		}
	}
	if errors.Is(err, io.EOF) {
		return all, nil
	}
	return nil, h.callError(err)
}

func resourceFromWire(w *hostv1.Resource) Resource {
	r := Resource{Name: w.GetName(), Endpoint: pathFromWire(w.GetEndpoint()), Current: w.GetCurrent(), Error: w.GetError(), Devices: []device.Device{}}
	for _, d := range w.GetDevices() {
		r.Devices = append(r.Devices, device.Device{ID: d.GetId(), Healthy: d.GetHealthy(), NUMA: d.GetNumaNodes(), Holder: d.GetHolder()})
	}
	return r
}
