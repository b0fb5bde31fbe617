package device

import (
	"context"
	"fmt"
	"math"
	"slices"

	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/cleatproject/cleat/kubelet/handler/internal/instance"
)

// Preferred chooses size free, healthy devices, including must: by the plugin's
// preference, else the first by ID. It allocates nothing.
func (h *Handler) Preferred(ctx context.Context, name string, size int, must ...string) ([]string, error) {
	p, free, err := h.candidates(name, size, must)
	if err != nil {
		return nil, fmt.Errorf("choose from %s: %w", name, err)
	}
	if p == nil {
		rest := slices.DeleteFunc(free, func(id string) bool { return slices.Contains(must, id) })
		return slices.Concat(must, rest[:size-len(must)]), nil
	}
	answer, err := p.api.GetPreferredAllocation(ctx, &api.PreferredAllocationRequest{ContainerRequests: []*api.ContainerPreferredAllocationRequest{{
		AvailableDeviceIDs: free, MustIncludeDeviceIDs: must, AllocationSize: int32(size),
	}}})
	if err != nil {
		return nil, fmt.Errorf("choose from %s: %w", name, instance.Explain(p.Endpoint, "GetPreferredAllocation", err))
	}
	if n := len(answer.GetContainerResponses()); n != 1 {
		return nil, fmt.Errorf("choose from %s: the plugin at %s returned %d container responses, want 1", name, p.Endpoint, n)
	}
	ids := answer.GetContainerResponses()[0].GetDeviceIDs()
	if err := checkChoice(ids, free, size, must); err != nil {
		return nil, fmt.Errorf("choose from %s: the plugin at %s chose %v: %w", name, p.Endpoint, ids, err)
	}
	return ids, nil
}

// p is nil if the plugin has no preference.
func (h *Handler) candidates(name string, size int, must []string) (p *plugin, free []string, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if p, err = h.usable(name); err != nil {
		return nil, nil, err
	}
	if size < max(1, len(must)) || size > math.MaxInt32 {
		return nil, nil, fmt.Errorf("%d devices requested, %d of them by ID; request at least one device, and at least as many as are named", size, len(must))
	}
	if err := p.check(must); err != nil {
		return nil, nil, err
	}
	allocated := h.resources[name].allocated
	for _, d := range p.devices {
		e, taken := allocated[d.ID]
		switch {
		case d.Healthy && !taken:
			free = append(free, d.ID)
		case taken && slices.Contains(must, d.ID):
			return nil, nil, fmt.Errorf("device %s: %w to %q", d.ID, ErrHeld, e.holder)
		}
	}
	if len(free) < size {
		return nil, nil, fmt.Errorf("%d devices requested, but only %d of %d are free and healthy", size, len(free), len(p.devices))
	}
	if !p.options.GetGetPreferredAllocationAvailable() {
		return nil, free, nil
	}
	return p, free, nil
}

// checkChoice validates the plugin's answer.
func checkChoice(ids, free []string, size int, must []string) error {
	if len(ids) != size {
		return fmt.Errorf("got %d devices, want %d", len(ids), size)
	}
	for i, id := range ids {
		switch {
		case slices.Contains(ids[:i], id):
			return fmt.Errorf("%q is listed twice", id)
		case !slices.Contains(free, id):
			return fmt.Errorf("%q is not one of the available devices", id)
		}
	}
	for _, id := range must {
		if !slices.Contains(ids, id) {
			return fmt.Errorf("%q is missing, although it was requested by ID", id)
		}
	}
	return nil
}
