// Package device handles device plugins (v1beta1): it keeps the list of each
// plugin's devices up to date and allocates them for the program, as the
// kubelet does for its containers. It has no memory beyond the process, and no
// part in which device a caller chooses.
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

// Type is what device plugins register as.
const Type = "DevicePlugin"

// Options are those of New; the zero value serves.
type Options struct {
	Logger *slog.Logger // nil: no log
	// Timeout bounds the first call to a plugin, GetDevicePluginOptions; zero
	// is 10 s, which the kubelet takes for connecting.
	Timeout time.Duration
	// Pause is the time before a list of devices that broke off is asked for
	// again; it doubles up to MostPause, and begins anew with each list. Zero is
	// 500 ms and 30 s.
	Pause, MostPause time.Duration
}

// Handler is the watch.Handler for Type. The name of a plugin is that of its
// resource, as example.com/gpu.
//
// For each registration it owns one goroutine, which reads the plugin's list.
// Of several plugins for one resource the newest whose list is up to date
// serves, so an update takes over without a gap, and the end of either harms
// the other in no way.
type Handler struct {
	options Options

	mu        sync.Mutex
	closed    bool
	resources map[string]*resource
	feed      instance.Feed[string] // names of resources
}

var _ watch.Handler = (*Handler)(nil)

// resource lives as long as it has a plugin or a device that somebody holds.
type resource struct {
	plugins instance.Set[*plugin]
	book    book
}

// New makes a handler; Close ends it.
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

// Validate holds a plugin to the kubelet's rules: version v1beta1, and the name
// of an extended resource. The refusals begin with the kubelet's words.
func (h *Handler) Validate(_ context.Context, p watch.Plugin) error {
	if !slices.Contains(p.Versions, api.Version) {
		return fmt.Errorf("manager version, %s, is not among plugin supported versions %v", api.Version, p.Versions)
	}
	if err := checkName(p.Name); err != nil {
		return fmt.Errorf("invalid name of device plugin socket: the ResourceName %q is invalid: %w", p.Name, err)
	}
	return instance.CheckEndpoint(p.Endpoint)
}

// Register asks the plugin for its options and begins to read its list, for
// which it does not wait. A repeat begins anew.
func (h *Handler) Register(ctx context.Context, p watch.Plugin) error {
	if err := h.Validate(ctx, p); err != nil {
		return err
	}
	next, err := h.connect(ctx, p)
	if err != nil {
		h.remove(p) // what an earlier registration of this socket told is not true any more
		return err
	}
	h.mu.Lock()
	if h.closed {
		h.mu.Unlock()
		return errors.Join(errors.New("the handler of device plugins is closed"), next.conn.Close())
	}
	r := h.resources[p.Name]
	if r == nil {
		r = &resource{book: book{}}
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

// DeRegister takes away this registration, and no other of the same resource.
// Devices that are held stay so until they are released.
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

// drop forgets a resource of which nothing is left. The caller has the lock.
func (h *Handler) drop(name string) {
	if r := h.resources[name]; r != nil && len(r.plugins) == 0 && len(r.book) == 0 {
		delete(h.resources, name)
	}
}

// Close takes every plugin away and waits until its goroutine has ended.
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

// checkName applies the kubelet's rules for names of extended resources
// (IsExtendedResourceName of k8s.io/kubernetes/pkg/apis/core/v1/helper).
func checkName(name string) error {
	const quota = "requests." // prefix of quotas on the resource
	switch {
	case !strings.Contains(name, "/"):
		return errors.New("it has no domain; write domain/name, as example.com/gpu")
	case strings.Contains(name, "kubernetes.io/"):
		return errors.New("kubernetes.io/ is for what Kubernetes itself knows; take a domain of your own")
	case strings.HasPrefix(name, quota):
		return errors.New("names that begin with requests. are for quotas")
	}
	if wrong := content.IsLabelKey(quota + name); len(wrong) != 0 {
		return errors.New(strings.Join(wrong, "; "))
	}
	return nil
}
