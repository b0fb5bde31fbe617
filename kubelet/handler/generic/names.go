package generic

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"

	"github.com/cleatproject/cleat/kubelet/watch"
)

// Name is a name with its registered instances.
type Name struct {
	Type string `json:"type"`
	Name string `json:"name"`
	// Newest first; can be empty.
	Instances []watch.Plugin `json:"instances"`
}

// Serving returns the instance to use.
func (n Name) Serving() (p watch.Plugin, found bool) {
	if len(n.Instances) == 0 {
		return watch.Plugin{}, false
	}
	return n.Instances[0], true
}

// Serving returns a name's newest instance.
func (h *Handler) Serving(kind, name string) (p watch.Plugin, found bool) {
	return h.Name(kind, name).Serving()
}

// Instances returns a name's instances, newest first.
func (h *Handler) Instances(kind, name string) []watch.Plugin {
	return h.Name(kind, name).Instances
}

// Name returns a name's state; unknown ones have no instances.
func (h *Handler) Name(kind, name string) Name {
	k := key{kind, name}
	instances, _ := h.get(k)
	return k.with(instances)
}

// Names returns the names with an instance, sorted by type and name.
func (h *Handler) Names() []Name {
	h.mu.Lock()
	defer h.mu.Unlock()
	names := make([]Name, 0, len(h.names))
	for _, k := range h.present() {
		names = append(names, k.with(h.names[k].instances))
	}
	return names
}

func (h *Handler) present() []key {
	keys := slices.SortedFunc(maps.Keys(h.names), func(a, b key) int {
		return cmp.Or(cmp.Compare(a.kind, b.kind), cmp.Compare(a.name, b.name))
	})
	return slices.DeleteFunc(keys, func(k key) bool { return len(h.names[k].instances) == 0 })
}

// Reach returns the newest instance that passes the probe. A killed plugin that
// left its socket file stays registered unless the host has a grace time. The
// error has each instance's probe error.
func (h *Handler) Reach(ctx context.Context, kind, name string) (watch.Plugin, error) {
	probe := h.options.Probe
	if probe == nil {
		probe = Connect
	}
	var failures []error
	for _, p := range h.Instances(kind, name) {
		err := probe(ctx, p)
		if err == nil {
			return p, nil
		}
		failures = append(failures, err)
	}
	if failures == nil {
		return watch.Plugin{}, fmt.Errorf("no %s named %q is registered", kind, name)
	}
	return watch.Plugin{}, fmt.Errorf("no instance of %s %q passed the probe: %w", kind, name, errors.Join(failures...))
}

// Changes yields every name, then each that changes, until ctx ends. It can be
// ranged over once. A slow reader sees the latest state.
func (h *Handler) Changes(ctx context.Context) iter.Seq[Name] {
	h.mu.Lock()
	changed := h.feed.Subscribe(h.present()...)
	h.mu.Unlock()
	stop := context.AfterFunc(ctx, changed.Close)
	return func(yield func(Name) bool) {
		defer changed.Close()
		defer stop()
		for {
			k, err := changed.Next(ctx)
			if err != nil || !yield(h.Name(k.kind, k.name)) {
				return
			}
		}
	}
}

func (k key) with(instances set) Name {
	n := Name{Type: k.kind, Name: k.name, Instances: instances.Endpoints()}
	for i := range n.Instances {
		n.Instances[i] = clone(n.Instances[i])
	}
	return n
}
