package plugin

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/cleatproject/cleat/sriov/gate"
	"github.com/cleatproject/cleat/sriov/inventory"
)

// What the kubelet calls: package v1beta1 of the device plugin API.

func options() *v1beta1.DevicePluginOptions {
	return &v1beta1.DevicePluginOptions{GetPreferredAllocationAvailable: true}
}

// GetDevicePluginOptions tells that preferences can be asked for.
func (r *resource) GetDevicePluginOptions(context.Context, *v1beta1.Empty) (*v1beta1.DevicePluginOptions, error) {
	return options(), nil
}

// PreStartContainer is never asked for.
func (r *resource) PreStartContainer(context.Context, *v1beta1.PreStartContainerRequest) (*v1beta1.PreStartContainerResponse, error) {
	return &v1beta1.PreStartContainerResponse{}, nil
}

// ListAndWatch sends each list that the machine issues for this stream. The
// kubelet never calls again on the same connection, so it ends only with the
// caller, with the plugin, or when nobody hears it.
func (r *resource) ListAndWatch(_ *v1beta1.Empty, wire grpc.ServerStreamingServer[v1beta1.ListAndWatchResponse]) error {
	heard, drop := context.WithCancel(wire.Context())
	defer drop()
	s := &stream{id: r.ids.Add(1), next: make(chan gate.Send, 1), drop: drop}
	r.heard.Store(true)
	r.deps.listening.begin(r.name, s)
	defer r.deps.listening.end(r.name, s)
	r.post(letter{event: gate.StreamUp{Stream: s.id}, stream: s})
	defer r.tell(gate.StreamDown{Stream: s.id})
	for {
		select {
		case <-heard.Done():
			if err := wire.Context().Err(); err != nil {
				return err
			}
			return &refusal{codes.Aborted, "the kubelet does not hear this stream"}
		case <-r.closing:
			return &refusal{codes.Unavailable, "the plugin stops"}
		case list := <-s.next:
			if err := wire.Send(r.list(list.Devices)); err != nil {
				return fmt.Errorf("send the list of devices: %w", err)
			}
			r.tell(gate.Sent{Stream: list.Stream, Seq: list.Seq})
		}
	}
}

// list is what the kubelet reads. A device that is about to leave is none of the
// offer's any more, and has no topology.
func (r *resource) list(devices []gate.Device) *v1beta1.ListAndWatchResponse {
	o := r.offer.Load()
	answer := &v1beta1.ListAndWatchResponse{Devices: make([]*v1beta1.Device, 0, len(devices))}
	for _, d := range devices {
		told := &v1beta1.Device{ID: d.ID, Health: v1beta1.Unhealthy}
		if d.Healthy {
			told.Health = v1beta1.Healthy
		}
		if m, there := o.members[d.ID]; there {
			told.Topology = inventory.Topology(o.pool.Resource, m)
		}
		answer.Devices = append(answer.Devices, told)
	}
	return answer
}

// GetPreferredAllocation chooses by NUMA node and PF. It counts as an
// allocation: the kubelet chooses from its list then.
func (r *resource) GetPreferredAllocation(_ context.Context, q *v1beta1.PreferredAllocationRequest) (*v1beta1.PreferredAllocationResponse, error) {
	answer := &v1beta1.PreferredAllocationResponse{}
	err := r.admitted(nil, func() error {
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

// Allocate says what a container is given with its devices, after a look at each
// of them. What it promises is on record before it is said.
func (r *resource) Allocate(ctx context.Context, q *v1beta1.AllocateRequest) (*v1beta1.AllocateResponse, error) {
	var ids []string
	for _, c := range q.ContainerRequests {
		ids = append(ids, c.DevicesIds...)
	}
	answer := &v1beta1.AllocateResponse{}
	err := r.admitted(ids, func() error {
		o := r.offer.Load()
		for _, c := range q.ContainerRequests {
			given, err := r.give(ctx, o, c.DevicesIds)
			if err != nil {
				return err
			}
			answer.ContainerResponses = append(answer.ContainerResponses, given)
		}
		return nil
	})
	r.deps.metrics.allocated(r.name, err)
	if err != nil {
		return nil, err
	}
	return answer, nil
}

// give is the answer for one container.
func (r *resource) give(ctx context.Context, o *offer, ids []string) (*v1beta1.ContainerAllocateResponse, error) {
	members := make([]inventory.Member, 0, len(ids))
	for _, id := range ids {
		m, there := o.members[id]
		if !there {
			return nil, fmt.Errorf("device %q is not in the resource %s (any more)", id, r.name)
		}
		if m.Wrong != "" {
			return nil, fmt.Errorf("device %q is not healthy (any more): %s", id, m.Wrong)
		}
		if err := r.verify(ctx, m); err != nil {
			ring(r.deps.kicks) // what the kubelet was told is out of date
			return nil, fmt.Errorf("device %q is not what it was when it was offered: %w", id, err)
		}
		members = append(members, m)
	}
	given, err := inventory.Allocate(o.pool.Resource, members, r.deps.settings)
	if err != nil {
		return nil, err
	}
	if err := r.deps.remember(ctx, r.name, members); err != nil {
		return nil, err
	}
	return given, r.writeDeviceInfo(o, members)
}

func (r *resource) verify(ctx context.Context, m inventory.Member) error {
	if m.Auxiliary != nil {
		return inventory.VerifyAuxiliary(ctx, r.deps.discovery, *m.Auxiliary)
	}
	return inventory.Verify(ctx, r.deps.discovery, *m.Function)
}

// writeDeviceInfo tells Multus what the devices are.
func (r *resource) writeDeviceInfo(o *offer, members []inventory.Member) error {
	for _, m := range members {
		file, content, ok := inventory.DeviceInfo(o.pool.Resource, m)
		if !ok {
			continue
		}
		if err := r.deps.files.Write(file, content); err != nil {
			return fmt.Errorf("tell Multus of device %q: %w", m.ID, err)
		}
	}
	return nil
}

var errStopped = &refusal{codes.Unavailable, "the plugin stops"}

// admitted does work for a call if its devices are offered, and says so again
// just before it answers.
func (r *resource) admitted(ids []string, work func() error) error {
	c := &call{id: r.ids.Add(1), verdict: make(chan error, 2)}
	r.post(letter{event: gate.AllocateBegin{Call: c.id, Devices: ids}, call: c})
	if err := r.await(c); err != nil {
		r.tell(gate.AllocateEnd{Call: c.id}) // of a call that was not admitted: forgets it
		return err
	}
	defer r.tell(gate.AllocateEnd{Call: c.id})
	if err := work(); err != nil {
		return err
	}
	r.tell(gate.AllocateCheck{Call: c.id})
	return r.await(c)
}

func (r *resource) await(c *call) error {
	select {
	case err := <-c.verdict:
		return err
	case <-r.ended:
		select {
		case err := <-c.verdict:
			return err
		default:
		}
		return errors.Join(errStopped)
	}
}
