package plugin

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/cleatproject/cleat/sriov/gate"
	"github.com/cleatproject/cleat/sriov/inventory"
)

func options() *v1beta1.DevicePluginOptions {
	return &v1beta1.DevicePluginOptions{GetPreferredAllocationAvailable: true}
}

// GetDevicePluginOptions announces GetPreferredAllocation.
func (r *resource) GetDevicePluginOptions(context.Context, *v1beta1.Empty) (*v1beta1.DevicePluginOptions, error) {
	return options(), nil
}

// PreStartContainer does nothing and is not announced.
func (r *resource) PreStartContainer(context.Context, *v1beta1.PreStartContainerRequest) (*v1beta1.PreStartContainerResponse, error) {
	return &v1beta1.PreStartContainerResponse{}, nil
}

// ListAndWatch sends the gate's lists. The kubelet calls it once per
// connection: it returns only when the client disconnects, the plugin stops, or
// the kubelet ignores the stream (audit.go).
func (r *resource) ListAndWatch(_ *v1beta1.Empty, wire grpc.ServerStreamingServer[v1beta1.ListAndWatchResponse]) error {
	id, in, end := r.plugin.call()
	defer end()
	r.send(gate.StreamUp{Stream: id})
	defer r.send(gate.StreamDown{Stream: id})
	for {
		select {
		case <-wire.Context().Done():
			return wire.Context().Err()
		case <-r.closing:
			return status.Error(codes.Unavailable, "the plugin is shutting down")
		case a, open := <-in:
			if !open { // by audit.go
				return status.Error(codes.Aborted, "the kubelet ignores this stream")
			}
			list := a.(gate.Send)
			if err := wire.Send(r.list(list.Devices)); err != nil {
				return fmt.Errorf("send the device list: %w", err)
			}
			r.send(gate.Sent{Stream: id, Seq: list.Seq})
		}
	}
}

// A device that is leaving is not in the offer and has no topology.
func (r *resource) list(devices []gate.Device) *v1beta1.ListAndWatchResponse {
	o := r.offer.Load()
	answer := &v1beta1.ListAndWatchResponse{Devices: make([]*v1beta1.Device, 0, len(devices))}
	for _, d := range devices {
		entry := &v1beta1.Device{ID: d.ID, Health: v1beta1.Unhealthy}
		if d.Healthy {
			entry.Health = v1beta1.Healthy
		}
		if m, exists := o.members[d.ID]; exists {
			entry.Topology = inventory.Topology(o.pool.Resource, m)
		}
		answer.Devices = append(answer.Devices, entry)
	}
	return answer
}

// GetPreferredAllocation is admitted like Allocate: the kubelet is choosing
// from its list.
func (r *resource) GetPreferredAllocation(ctx context.Context, q *v1beta1.PreferredAllocationRequest) (*v1beta1.PreferredAllocationResponse, error) {
	answer := &v1beta1.PreferredAllocationResponse{}
	err := r.withAdmission(ctx, nil, func() error {
		o := r.offer.Load()
		for _, c := range q.ContainerRequests {
			ids := inventory.Prefer(o.pool, c.AvailableDeviceIDs, c.MustIncludeDeviceIDs, int(c.AllocationSize))
			answer.ContainerResponses = append(answer.ContainerResponses, &v1beta1.ContainerPreferredAllocationResponse{DeviceIDs: ids})
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return answer, nil
}

// Allocate verifies and records the devices before it answers.
func (r *resource) Allocate(ctx context.Context, q *v1beta1.AllocateRequest) (*v1beta1.AllocateResponse, error) {
	var ids []string
	for _, c := range q.ContainerRequests {
		ids = append(ids, c.DevicesIds...)
	}
	answer := &v1beta1.AllocateResponse{}
	err := r.withAdmission(ctx, ids, func() error {
		o := r.offer.Load()
		for _, c := range q.ContainerRequests {
			given, err := r.allocateContainer(ctx, o, c.DevicesIds)
			if err != nil {
				return err
			}
			answer.ContainerResponses = append(answer.ContainerResponses, given)
		}
		return nil
	})
	r.plugin.metrics.allocated(r.name, err)
	if err != nil {
		return nil, err
	}
	return answer, nil
}

func (r *resource) allocateContainer(ctx context.Context, o *offer, ids []string) (*v1beta1.ContainerAllocateResponse, error) {
	members := make([]inventory.Member, 0, len(ids))
	for _, id := range ids {
		m, exists := o.members[id]
		if !exists {
			return nil, fmt.Errorf("device %q is not in resource %s", id, r.name)
		}
		if m.Wrong != "" {
			return nil, fmt.Errorf("device %q is not healthy: %s", id, m.Wrong)
		}
		if err := inventory.Verify(ctx, r.plugin.cfg.Discovery, m.Device); err != nil {
			r.plugin.Rescan() // the kubelet's list is stale
			return nil, fmt.Errorf("device %q changed after it was offered: %w", id, err)
		}
		members = append(members, m)
	}
	given, err := inventory.Allocate(o.pool.Resource, members, r.plugin.settings)
	if err != nil {
		return nil, err
	}
	if err := r.plugin.recordAllocation(ctx, r.name, members); err != nil {
		return nil, err
	}
	return given, r.writeDeviceInfo(o, members)
}

func (r *resource) writeDeviceInfo(o *offer, members []inventory.Member) error {
	for _, m := range members {
		file, content, ok := inventory.DeviceInfo(o.pool.Resource, m)
		if !ok {
			continue
		}
		if err := r.plugin.cfg.Files.Write(file, content); err != nil {
			return fmt.Errorf("write device information of %q for Multus: %w", m.ID, err)
		}
	}
	return nil
}

// withAdmission needs the gate's admission before work, and its approval before
// the answer.
func (r *resource) withAdmission(ctx context.Context, ids []string, work func() error) error {
	id, in, end := r.plugin.call()
	defer end()
	r.send(gate.AllocateBegin{Call: id, Devices: ids})
	defer r.send(gate.AllocateEnd{Call: id})
	if err := r.awaitVerdict(ctx, in); err != nil {
		return err
	}
	if err := work(); err != nil {
		return err
	}
	r.send(gate.AllocateCheck{Call: id})
	return r.awaitVerdict(ctx, in)
}

func (r *resource) awaitVerdict(ctx context.Context, in inbox) error {
	a, err := r.plugin.next(ctx, in)
	if errors.Is(err, errStopped) {
		return status.Error(errStopped.Code, errStopped.Reason)
	}
	if refused, is := a.(gate.Refuse); is {
		return status.Error(refused.Code, refused.Reason)
	}
	return err
}
