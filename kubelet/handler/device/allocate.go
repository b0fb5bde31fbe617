package device

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/cleatproject/cleat/kubelet/handler/internal/instance"
)

// Allocate calls the plugin and returns what a container needs: device files,
// mounts, environment variables, CDI names. The devices are allocated to
// holder, any string, until Release. A holder can repeat it, with a new answer
// from the plugin.
//
// The error is ErrUnknown, ErrUnhealthy, ErrHeld, ErrBusy, or the plugin's;
// then nothing new is allocated. If ctx ends, the plugin might have handled the
// call: v1beta1 cannot undo an allocation, and plugins must accept a repeated
// one.
func (h *Handler) Allocate(ctx context.Context, name, holder string, ids ...string) (*api.ContainerAllocateResponse, error) {
	if holder == "" {
		return nil, fmt.Errorf("allocate %s: the holder is empty; it identifies the devices to Release", name)
	}
	ids = slices.Clone(ids)
	p, err := h.beginAllocate(name, holder, ids)
	if err != nil {
		return nil, fmt.Errorf("allocate %s: %w", name, err)
	}
	allocated := false
	defer func() { h.finish(name, ids, allocated) }()
	answer, err := p.api.Allocate(ctx, &api.AllocateRequest{ContainerRequests: []*api.ContainerAllocateRequest{{DevicesIds: ids}}})
	if err != nil {
		return nil, fmt.Errorf("allocate %s: %w", name, instance.Explain(p.Endpoint, "Allocate", err))
	}
	if n := len(answer.GetContainerResponses()); n != 1 || answer.GetContainerResponses()[0] == nil {
		return nil, fmt.Errorf("allocate %s: the plugin at %s returned %d container responses, want 1", name, p.Endpoint, n)
	}
	allocated = true
	return answer.GetContainerResponses()[0], nil
}

func (h *Handler) beginAllocate(name, holder string, ids []string) (*plugin, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	p, err := h.usable(name)
	if err != nil {
		return nil, err
	}
	if len(ids) == 0 {
		return nil, errors.New("no device requested; request at least one device by ID")
	}
	if err := p.check(ids); err != nil {
		return nil, err
	}
	if err := h.resources[name].allocated.reserve(holder, ids); err != nil {
		return nil, err
	}
	h.feed.Touch(name)
	return p, nil
}

func (h *Handler) finish(name string, ids []string, allocated bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.resources[name].allocated.finish(ids, allocated) // exists while it has allocations
	h.drop(name)
	h.feed.Touch(name)
}

// usable needs the lock.
func (h *Handler) usable(name string) (*plugin, error) {
	p := h.resources[name].serving()
	switch {
	case p == nil:
		return nil, fmt.Errorf("resource %q: %w; registered resources: %v", name, ErrUnknown, h.present())
	case !p.current:
		return nil, fmt.Errorf("all devices are %w because the plugin's device list is out of date: %w", ErrUnhealthy, p.failure)
	}
	return p, nil
}

// check refuses duplicate, unknown or unhealthy devices.
func (p *plugin) check(ids []string) error {
	for i, id := range ids {
		if slices.Contains(ids[:i], id) {
			return fmt.Errorf("device %s is requested twice", id)
		}
		at, found := slices.BinarySearchFunc(p.devices, id, func(d Device, id string) int { return cmp.Compare(d.ID, id) })
		switch {
		case !found:
			return fmt.Errorf("device %q: %w", id, ErrUnknown)
		case !p.devices[at].Healthy:
			return fmt.Errorf("device %s: %w", id, ErrUnhealthy)
		}
	}
	return nil
}

// Release frees a holder's devices. It is idempotent. v1beta1 has no call to
// the plugin for it. The error is ErrBusy while an Allocate or PreStart of the
// holder is in flight.
func (h *Handler) Release(name, holder string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	r := h.resources[name]
	if r == nil {
		return nil
	}
	ids, err := r.allocated.heldBy(holder)
	if err != nil {
		return fmt.Errorf("release %s: %w", name, err)
	}
	for _, id := range ids {
		delete(r.allocated, id)
	}
	if len(ids) > 0 {
		h.drop(name)
		h.feed.Touch(name)
	}
	return nil
}

// PreStart calls PreStartContainer, if required, before each start of the
// container.
func (h *Handler) PreStart(ctx context.Context, name, holder string) error {
	p, ids, err := h.beginPreStart(name, holder)
	if err != nil {
		return fmt.Errorf("prepare %s: %w", name, err)
	}
	if len(ids) == 0 {
		return nil
	}
	defer h.finish(name, ids, true)
	ctx, cancel := context.WithTimeout(ctx, api.KubeletPreStartContainerRPCTimeoutInSecs*time.Second)
	defer cancel()
	if _, err := p.api.PreStartContainer(ctx, &api.PreStartContainerRequest{DevicesIds: ids}); err != nil {
		return fmt.Errorf("prepare %s: %w", name, instance.Explain(p.Endpoint, "PreStartContainer", err))
	}
	return nil
}

func (h *Handler) beginPreStart(name, holder string) (*plugin, []string, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	p, err := h.usable(name)
	if err != nil {
		return nil, nil, err
	}
	allocated := h.resources[name].allocated
	ids, err := allocated.heldBy(holder)
	switch {
	case err != nil:
		return nil, nil, err
	case len(ids) == 0:
		return nil, nil, fmt.Errorf("%q holds no device of the resource; call Allocate first", holder)
	case !p.options.GetPreStartRequired():
		return nil, nil, nil
	}
	return p, ids, allocated.reserve(holder, ids)
}
