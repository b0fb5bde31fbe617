package device

import (
	"context"
	"iter"
	"maps"
	"slices"
)

// Resource is what the plugin of a resource offers.
type Resource struct {
	Name string `json:"name"` // as example.com/gpu
	// Endpoint is the socket of the plugin that serves; it is empty when there
	// is none any more.
	Endpoint string `json:"endpoint,omitempty"`
	// Current is set while the plugin keeps its list of devices up to date;
	// else Error says why not, and no device is healthy.
	Current bool   `json:"current"`
	Error   string `json:"error,omitempty"`
	// PreStart: devices want PreStart before each start of what uses them.
	PreStart bool `json:"preStart"`
	// Prefers: the plugin itself chooses in Preferred.
	Prefers bool     `json:"prefers"`
	Devices []Device `json:"devices"` // by id
}

// Device is one device of a resource.
type Device struct {
	ID      string `json:"id"`
	Healthy bool   `json:"healthy"`
	// NUMA has the nodes that the device is near to; empty: not known.
	NUMA []int64 `json:"numa,omitempty"`
	// Holder is who the device is allocated to; empty: it is free.
	Holder string `json:"holder,omitempty"`
}

func (d Device) equal(other Device) bool {
	return d.ID == other.ID && d.Healthy == other.Healthy && slices.Equal(d.NUMA, other.NUMA)
}

// serving is the newest plugin whose list is up to date, or else the newest.
// The caller has the handler's lock.
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

// view describes a resource. The caller has the handler's lock.
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
		d.Holder = r.book[d.ID].holder
		v.Devices = append(v.Devices, d)
	}
	return v
}

// Resource returns a resource; found is false when no plugin serves it.
func (h *Handler) Resource(name string) (r Resource, found bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	r = h.view(name)
	return r, r.Endpoint != ""
}

// Resources returns those that have a plugin, by name.
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

// Devices returns the devices of a resource, none when it has no plugin.
func (h *Handler) Devices(name string) []Device {
	r, _ := h.Resource(name)
	return r.Devices
}

// Held returns who holds which devices of a resource, those included that its
// plugin does not list any more: holder by device.
func (h *Handler) Held(name string) map[string]string {
	h.mu.Lock()
	defer h.mu.Unlock()
	held := map[string]string{}
	if r := h.resources[name]; r != nil {
		for id, e := range r.book {
			held[id] = e.holder
		}
	}
	return held
}

// Changes tells of every resource there is, and then of each that changes,
// until ctx ends or the loop is left; it is ranged over once. A slow reader is
// told the last state of each resource, not the states between.
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
