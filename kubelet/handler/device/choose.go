package device

import (
	"context"
	"fmt"
	"math"
	"slices"

	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/cleatproject/cleat/kubelet/handler/internal/instance"
)

// Preferred chooses size free and healthy devices, those in must among them:
// as the plugin prefers, or else the first by id. It allocates nothing, so
// Allocate may still find one of them taken.
func (h *Handler) Preferred(ctx context.Context, name string, size int, must ...string) ([]string, error) {
	p, free, err := h.toChoose(name, size, must)
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
		return nil, fmt.Errorf("choose from %s: the plugin at %s answered for %d containers when asked for one", name, p.Endpoint, n)
	}
	ids := answer.GetContainerResponses()[0].GetDeviceIDs()
	if err := checkChoice(ids, free, size, must); err != nil {
		return nil, fmt.Errorf("choose from %s: the plugin at %s chose %v: %w", name, p.Endpoint, ids, err)
	}
	return ids, nil
}

// toChoose lists what there is to choose from; p is nil when the plugin leaves
// the choice to others.
func (h *Handler) toChoose(name string, size int, must []string) (p *plugin, free []string, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if p, err = h.usable(name); err != nil {
		return nil, nil, err
	}
	if size < max(1, len(must)) || size > math.MaxInt32 {
		return nil, nil, fmt.Errorf("%d devices are asked for, %d of them by name; ask for one at least, and not for fewer than are named", size, len(must))
	}
	if err := p.check(must); err != nil {
		return nil, nil, err
	}
	held := h.resources[name].book
	for _, d := range p.devices {
		e, taken := held[d.ID]
		switch {
		case d.Healthy && !taken:
			free = append(free, d.ID)
		case taken && slices.Contains(must, d.ID):
			return nil, nil, fmt.Errorf("device %s: %w, by %q", d.ID, ErrHeld, e.holder)
		}
	}
	if len(free) < size {
		return nil, nil, fmt.Errorf("%d devices are asked for, and only %d of %d are free and healthy", size, len(free), len(p.devices))
	}
	if !p.options.GetGetPreferredAllocationAvailable() {
		return nil, free, nil
	}
	return p, free, nil
}

// checkChoice holds what a plugin prefers to what it was asked for.
func checkChoice(ids, free []string, size int, must []string) error {
	if len(ids) != size {
		return fmt.Errorf("these are %d devices, not %d", len(ids), size)
	}
	for i, id := range ids {
		switch {
		case slices.Contains(ids[:i], id):
			return fmt.Errorf("%q is there twice", id)
		case !slices.Contains(free, id):
			return fmt.Errorf("%q was not to choose from", id)
		}
	}
	for _, id := range must {
		if !slices.Contains(ids, id) {
			return fmt.Errorf("%q is missing, which was asked for by name", id)
		}
	}
	return nil
}
