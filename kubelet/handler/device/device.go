// Package device handles device plugins (v1beta1). It keeps their device lists
// up to date and allocates devices for the program, as the kubelet does for
// containers. Allocations are not persisted.
package device

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/validate/content"

	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/cleatproject/cleat/kubelet/handler/internal/instance"
	"github.com/cleatproject/cleat/kubelet/watch"
)

// Type is the plugin type of device plugins.
const Type = "DevicePlugin"

// Options configure a Handler; all are optional.
type Options struct {
	Logger *slog.Logger
	// Timeout of GetDevicePluginOptions, the first RPC. Zero is 10 s, the
	// kubelet's connection timeout.
	Timeout time.Duration
	// Pause precedes another request of a lost list, and doubles up to
	// MostPause until a list comes. The defaults are 500 ms and 30 s.
	Pause, MostPause time.Duration
}

// Handler implements watch.Handler for Type. A plugin's name is its resource,
// such as example.com/gpu.
//
// Each registration has a goroutine for the device list. Of a resource's
// plugins the newest with a current list serves: updates have no gap, and the
// end of one does not affect the other.
type Handler struct {
	options Options

	mu        sync.Mutex
	closed    bool
	resources map[string]*resource
	feed      instance.Feed[string]
}

var _ watch.Handler = (*Handler)(nil)

// resource exists while it has a plugin or an allocated device.
type resource struct {
	plugins   instance.Set[*plugin]
	allocated allocations
}

// New returns a Handler. Close ends its goroutines.
func New(o Options) *Handler {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Timeout == 0 {
		o.Timeout = 10 * time.Second
	}
	if o.Pause == 0 {
		o.Pause = 500 * time.Millisecond
	}
	if o.MostPause == 0 {
		o.MostPause = 30 * time.Second
	}
	return &Handler{options: o, resources: map[string]*resource{}}
}

// Validate applies the kubelet's rules: v1beta1, and the name of an extended
// resource. Its errors begin with the kubelet's texts.
func (h *Handler) Validate(_ context.Context, p watch.Plugin) error {
	if !slices.Contains(p.Versions, api.Version) {
		return fmt.Errorf("manager version, %s, is not among plugin supported versions %v", api.Version, p.Versions)
	}
	if err := checkName(p.Name); err != nil {
		return fmt.Errorf("invalid name of device plugin socket: the ResourceName %q is invalid: %w", p.Name, err)
	}
	return instance.CheckEndpoint(p.Endpoint)
}

// Register watches the plugin's device list, without waiting for the first one.
// A repeated registration starts over.
func (h *Handler) Register(ctx context.Context, p watch.Plugin) error {
	if err := h.Validate(ctx, p); err != nil {
		return err
	}
	next, err := h.connect(ctx, p)
	if err != nil {
		h.remove(p) // stale
		return err
	}
	h.mu.Lock()
	if h.closed {
		h.mu.Unlock()
		return errors.Join(errors.New("the handler of device plugins is closed"), next.conn.Close())
	}
	r := h.resources[p.Name]
	if r == nil {
		r = &resource{allocated: allocations{}}
		h.resources[p.Name] = r
	}
	before, replaced := r.plugins.Get(p.Endpoint, p.Socket)
	r.plugins = r.plugins.With(p.Endpoint, p.Socket, next)
	next.start()
	h.feed.Touch(p.Name)
	h.mu.Unlock()
	if replaced {
		before.stop()
	}
	return nil
}

// DeRegister removes only this registration. Devices stay allocated until
// released.
func (h *Handler) DeRegister(_ context.Context, p watch.Plugin) error {
	h.remove(p)
	return nil
}

func (h *Handler) remove(p watch.Plugin) {
	h.mu.Lock()
	r := h.resources[p.Name]
	if r == nil {
		h.mu.Unlock()
		return
	}
	rest, gone, found := r.plugins.Without(p.Endpoint, p.Socket)
	r.plugins = rest
	h.drop(p.Name)
	if found {
		h.feed.Touch(p.Name)
	}
	h.mu.Unlock()
	if found {
		gone.stop()
	}
}

// drop keeps resources in use. It needs the lock.
func (h *Handler) drop(name string) {
	if r := h.resources[name]; r != nil && len(r.plugins) == 0 && len(r.allocated) == 0 {
		delete(h.resources, name)
	}
}

// Close removes all plugins and waits for their goroutines.
func (h *Handler) Close() {
	h.mu.Lock()
	h.closed = true
	var all []*plugin
	for name, r := range h.resources {
		for _, i := range r.plugins {
			all = append(all, i.Value)
		}
		r.plugins = nil
		h.drop(name)
		h.feed.Touch(name)
	}
	h.mu.Unlock()
	for _, p := range all {
		p.stop()
	}
}

// checkName is IsExtendedResourceName of
// k8s.io/kubernetes/pkg/apis/core/v1/helper.
func checkName(name string) error {
	const quota = "requests." // of quotas
	switch {
	case !strings.Contains(name, "/"):
		return errors.New("it has no domain; use domain/name, such as example.com/gpu")
	case strings.Contains(name, "kubernetes.io/"):
		return errors.New("the domain kubernetes.io is reserved for Kubernetes; use your own domain")
	case strings.HasPrefix(name, quota):
		return errors.New("names that begin with \"requests.\" are reserved for quotas")
	}
	if wrong := content.IsLabelKey(quota + name); len(wrong) != 0 {
		return errors.New(strings.Join(wrong, "; "))
	}
	return nil
}
