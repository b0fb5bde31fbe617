package device

import (
	"context"
	"iter"
	"maps"
	"slices"
)

// Resource is a resource as its plugin reports it.
type Resource struct {
	Name string `json:"name"` // such as example.com/gpu
	// Socket of the serving plugin, if any.
	Endpoint string `json:"endpoint,omitempty"`
	// The device list is up to date. Otherwise no device is healthy, and Error
	// says why.
	Current bool   `json:"current"`
	Error   string `json:"error,omitempty"`
	// The plugin requires PreStart before each start of a consumer.
	PreStart bool `json:"preStart"`
	// The plugin chooses in Preferred.
	Prefers bool     `json:"prefers"`
	Devices []Device `json:"devices"` // by ID
}

// Device is a resource's device.
type Device struct {
	ID      string `json:"id"`
	Healthy bool   `json:"healthy"`
	// Empty if unknown.
	NUMA []int64 `json:"numa,omitempty"`
	// Empty if free.
	Holder string `json:"holder,omitempty"`
}

func (d Device) equal(other Device) bool {
	return d.ID == other.ID && d.Healthy == other.Healthy && slices.Equal(d.NUMA, other.NUMA)
}

// serving prefers the newest current plugin. It needs the handler's lock.
func (r *resource) serving() *plugin {
	if r == nil || len(r.plugins) == 0 {
		return nil
	}
	for _, i := range r.plugins {
		if i.Value.current {
			return i.Value
		}
	}
	return r.plugins[0].Value
}

// view needs the handler's lock.
func (h *Handler) view(name string) Resource {
	r := h.resources[name]
	p := r.serving()
	if p == nil {
		return Resource{Name: name, Devices: []Device{}}
	}
	v := Resource{
		Name: name, Endpoint: p.Endpoint, Current: p.current,
		PreStart: p.options.GetPreStartRequired(), Prefers: p.options.GetGetPreferredAllocationAvailable(),
		Devices: make([]Device, 0, len(p.devices)),
	}
	if p.failure != nil {
		v.Error = p.failure.Error()
	}
	for _, d := range p.devices {
		d.NUMA = slices.Clone(d.NUMA)
		d.Healthy = d.Healthy && p.current
		d.Holder = r.allocated[d.ID].holder
		v.Devices = append(v.Devices, d)
	}
	return v
}

// Resource returns a resource that has a plugin.
func (h *Handler) Resource(name string) (r Resource, found bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	r = h.view(name)
	return r, r.Endpoint != ""
}

// Resources returns the resources that have a plugin, by name.
func (h *Handler) Resources() []Resource {
	h.mu.Lock()
	defer h.mu.Unlock()
	all := []Resource{}
	for _, name := range h.present() {
		all = append(all, h.view(name))
	}
	return all
}

func (h *Handler) present() []string {
	names := slices.Sorted(maps.Keys(h.resources))
	return slices.DeleteFunc(names, func(name string) bool { return len(h.resources[name].plugins) == 0 })
}

// Devices returns a resource's devices, if it has a plugin.
func (h *Handler) Devices(name string) []Device {
	r, _ := h.Resource(name)
	return r.Devices
}

// Held returns the holders by device ID. It includes devices that are no longer
// listed.
func (h *Handler) Held(name string) map[string]string {
	h.mu.Lock()
	defer h.mu.Unlock()
	held := map[string]string{}
	if r := h.resources[name]; r != nil {
		for id, e := range r.allocated {
			held[id] = e.holder
		}
	}
	return held
}

// Changes yields every resource, then each that changes, until ctx ends. It can
// be ranged over once. A slow reader sees the latest state.
func (h *Handler) Changes(ctx context.Context) iter.Seq[Resource] {
	h.mu.Lock()
	changed := h.feed.Subscribe(h.present()...)
	h.mu.Unlock()
	stop := context.AfterFunc(ctx, changed.Close)
	return func(yield func(Resource) bool) {
		defer changed.Close()
		defer stop()
		for {
			name, err := changed.Next(ctx)
			if err != nil {
				return
			}
			if r, _ := h.Resource(name); !yield(r) {
				return
			}
		}
	}
}
