package plugin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

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
func (e *endpoint) GetDevicePluginOptions(context.Context, *v1beta1.Empty) (*v1beta1.DevicePluginOptions, error) {
	return options(), nil
}

// PreStartContainer does nothing and is not announced.
func (e *endpoint) PreStartContainer(context.Context, *v1beta1.PreStartContainerRequest) (*v1beta1.PreStartContainerResponse, error) {
	return &v1beta1.PreStartContainerResponse{}, nil
}

// ListAndWatch sends the gate's lists. The kubelet calls it once per
// connection: it returns only when the client disconnects, the plugin stops, or
// the kubelet ignores the stream (audit.go).
func (e *endpoint) ListAndWatch(_ *v1beta1.Empty, wire grpc.ServerStreamingServer[v1beta1.ListAndWatchResponse]) error {
	p := e.plugin
	var s *gate.Stream
	p.step(func(now time.Time) {
		if s = p.gate.Listen(now, e.name); s != nil {
			e.stream = s
		}
	})
	if s == nil {
		return answerOf(errStopped)
	}
	defer p.step(func(now time.Time) {
		if e.stream == s {
			e.stream = nil
		}
		p.gate.Hangup(now, e.name, s)
	})
	for seq := uint64(0); ; {
		var list []gate.Device
		var end error
		err := p.await(wire.Context(), func() bool {
			switch {
			case e.stopped:
				end = errStopped
			case e.ignored == s:
				end = &gate.End{Code: codes.Aborted, Reason: "the kubelet ignores this stream"}
			case s.Seq == seq:
				return false
			}
			seq, list = s.Seq, s.List
			return true
		})
		if err = cmp.Or(err, end); err != nil {
			return answerOf(err)
		}
		if err := wire.Send(e.list(list)); err != nil {
			return fmt.Errorf("send the device list: %w", err)
		}
		p.step(func(now time.Time) { p.gate.Sent(now, e.name, s, seq) })
	}
}

// A device that is leaving is not in the offer and has no topology.
func (e *endpoint) list(devices []gate.Device) *v1beta1.ListAndWatchResponse {
	o := e.plugin.offer(e.name)
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
func (e *endpoint) GetPreferredAllocation(ctx context.Context, q *v1beta1.PreferredAllocationRequest) (*v1beta1.PreferredAllocationResponse, error) {
	answer := &v1beta1.PreferredAllocationResponse{}
	err := e.withAdmission(nil, func(o *offer) error {
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
func (e *endpoint) Allocate(ctx context.Context, q *v1beta1.AllocateRequest) (*v1beta1.AllocateResponse, error) {
	var ids []string
	for _, c := range q.ContainerRequests {
		ids = append(ids, c.DevicesIds...)
	}
	answer := &v1beta1.AllocateResponse{}
	err := e.withAdmission(ids, func(o *offer) error {
		for _, c := range q.ContainerRequests {
			given, err := e.allocateContainer(ctx, o, c.DevicesIds)
			if err != nil {
				return err
			}
			answer.ContainerResponses = append(answer.ContainerResponses, given)
		}
		return nil
	})
	e.plugin.metrics.allocated(e.name, err)
	if err != nil {
		return nil, err
	}
	return answer, nil
}

func (e *endpoint) allocateContainer(ctx context.Context, o *offer, ids []string) (*v1beta1.ContainerAllocateResponse, error) {
	members := make([]inventory.Member, 0, len(ids))
	for _, id := range ids {
		m, exists := o.members[id]
		if !exists {
			return nil, fmt.Errorf("device %q is not in resource %s", id, e.name)
		}
		if m.Wrong != "" {
			return nil, fmt.Errorf("device %q is not healthy: %s", id, m.Wrong)
		}
		if err := inventory.Verify(ctx, e.plugin.cfg.Discovery, m.Device); err != nil {
			e.plugin.Rescan() // the kubelet's list is stale
			return nil, fmt.Errorf("device %q changed after it was offered: %w", id, err)
		}
		members = append(members, m)
	}
	given, err := inventory.Allocate(o.pool.Resource, members, e.plugin.settings)
	if err != nil {
		return nil, err
	}
	if err := e.plugin.recordAllocation(ctx, e.name, members); err != nil {
		return nil, err
	}
	return given, e.writeDeviceInfo(o, members)
}

func (e *endpoint) writeDeviceInfo(o *offer, members []inventory.Member) error {
	for _, m := range members {
		file, content, ok := inventory.DeviceInfo(o.pool.Resource, m)
		if !ok {
			continue
		}
		if err := e.plugin.cfg.Files.Write(file, content); err != nil {
			return fmt.Errorf("write device information of %q for Multus: %w", m.ID, err)
		}
	}
	return nil
}

// withAdmission needs the gate's admission before work, and its approval before
// the answer.
func (e *endpoint) withAdmission(ids []string, work func(o *offer) error) error {
	p := e.plugin
	var call *gate.Call
	var o *offer
	var err error = errStopped
	p.step(func(now time.Time) {
		e.checkCall()
		call, err = p.gate.Begin(now, e.name, ids)
		o = p.offer(e.name)
	})
	if err != nil {
		return answerOf(err)
	}
	defer p.step(func(now time.Time) { p.gate.End(now, e.name, call) })
	if err := work(o); err != nil {
		return err
	}
	err = errStopped
	p.step(func(now time.Time) { err = p.gate.Check(now, e.name, call) })
	return answerOf(err)
}

// answerOf returns the answer for the kubelet.
func answerOf(err error) error {
	if end, is := errors.AsType[*gate.End](err); is {
		return status.Error(end.Code, end.Reason)
	}
	return err
}
