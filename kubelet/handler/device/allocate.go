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

// Allocate asks the plugin for devices and returns what their user needs:
// device files, mounts, variables, CDI names. From then on they are the
// holder's, a word of the caller's choice, until Release. The same holder may
// ask again for what it has, and gets a new answer of the plugin.
//
// Errors are ErrUnknown, ErrUnhealthy, ErrHeld, ErrBusy, and what the plugin
// says; then nothing is allocated that was not before. A call that ctx cuts
// off may have reached the plugin: v1beta1 has no way to take it back, and
// plugins are made to be asked again.
func (h *Handler) Allocate(ctx context.Context, name, holder string, ids ...string) (*api.ContainerAllocateResponse, error) {
	if holder == "" {
		return nil, fmt.Errorf("devices of %s need a holder, by whose name they are released", name)
	}
	ids = slices.Clone(ids)
	p, err := h.begin(name, holder, ids)
	if err != nil {
		return nil, fmt.Errorf("allocate %s: %w", name, err)
	}
	allocated := false
	defer func() { h.settle(name, ids, allocated) }()
	answer, err := p.api.Allocate(ctx, &api.AllocateRequest{ContainerRequests: []*api.ContainerAllocateRequest{{DevicesIds: ids}}})
	if err != nil {
		return nil, fmt.Errorf("allocate %s: %w", name, instance.Explain(p.Endpoint, "Allocate", err))
	}
	if n := len(answer.GetContainerResponses()); n != 1 || answer.GetContainerResponses()[0] == nil {
		return nil, fmt.Errorf("allocate %s: the plugin at %s answered for %d containers when asked for one", name, p.Endpoint, n)
	}
	allocated = true
	return answer.GetContainerResponses()[0], nil
}

// begin checks what is asked for and marks it in the book.
func (h *Handler) begin(name, holder string, ids []string) (*plugin, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	p, err := h.usable(name)
	if err != nil {
		return nil, err
	}
	if len(ids) == 0 {
		return nil, errors.New("no device is asked for; name one of its devices at least")
	}
	if err := p.check(ids); err != nil {
		return nil, err
	}
	if err := h.resources[name].book.take(holder, ids); err != nil {
		return nil, err
	}
	h.feed.Touch(name)
	return p, nil
}

func (h *Handler) settle(name string, ids []string, allocated bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.resources[name].book.settle(ids, allocated) // kept while its book has entries
	h.drop(name)
	h.feed.Touch(name)
}

// usable is the plugin to ask. The caller has the lock.
func (h *Handler) usable(name string) (*plugin, error) {
	p := h.resources[name].serving()
	switch {
	case p == nil:
		return nil, fmt.Errorf("resource %q: %w; registered are %v", name, ErrUnknown, h.present())
	case !p.current:
		return nil, fmt.Errorf("all its devices are %w, since their plugin does not keep their list up to date: %w", ErrUnhealthy, p.failure)
	}
	return p, nil
}

// check refuses devices that are asked for twice, unknown or unhealthy.
func (p *plugin) check(ids []string) error {
	for i, id := range ids {
		if slices.Contains(ids[:i], id) {
			return fmt.Errorf("device %s is asked for twice", id)
		}
		at, found := slices.BinarySearchFunc(p.devices, id, func(d Device, id string) int { return cmp.Compare(d.ID, id) })
		switch {
		case !found:
			return fmt.Errorf("device %q: %w; see Devices for those there are", id, ErrUnknown)
		case !p.devices[at].Healthy:
			return fmt.Errorf("device %s: %w", id, ErrUnhealthy)
		}
	}
	return nil
}

// Release frees what a holder has of a resource; a repeat frees nothing. The
// plugin is not told, since v1beta1 has no call for it. The error is ErrBusy
// while an Allocate or PreStart of the holder's runs.
func (h *Handler) Release(name, holder string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	r := h.resources[name]
	if r == nil {
		return nil
	}
	ids, err := r.book.of(holder)
	if err != nil {
		return fmt.Errorf("release %s: %w", name, err)
	}
	for _, id := range ids {
		delete(r.book, id)
	}
	if len(ids) > 0 {
		h.drop(name)
		h.feed.Touch(name)
	}
	return nil
}

// PreStart prepares a holder's devices for a start of what uses them, where
// the plugin wants that; else it does nothing.
func (h *Handler) PreStart(ctx context.Context, name, holder string) error {
	p, ids, err := h.toPrepare(name, holder)
	if err != nil {
		return fmt.Errorf("prepare %s: %w", name, err)
	}
	if len(ids) == 0 {
		return nil
	}
	defer h.settle(name, ids, true)
	ctx, cancel := context.WithTimeout(ctx, api.KubeletPreStartContainerRPCTimeoutInSecs*time.Second)
	defer cancel()
	if _, err := p.api.PreStartContainer(ctx, &api.PreStartContainerRequest{DevicesIds: ids}); err != nil {
		return fmt.Errorf("prepare %s: %w", name, instance.Explain(p.Endpoint, "PreStartContainer", err))
	}
	return nil
}

func (h *Handler) toPrepare(name, holder string) (*plugin, []string, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	p, err := h.usable(name)
	if err != nil {
		return nil, nil, err
	}
	b := h.resources[name].book
	ids, err := b.of(holder)
	switch {
	case err != nil:
		return nil, nil, err
	case len(ids) == 0:
		return nil, nil, fmt.Errorf("%q holds no device of it; allocate first", holder)
	case !p.options.GetPreStartRequired():
		return nil, nil, nil
	}
	return p, ids, b.take(holder, ids)
}
