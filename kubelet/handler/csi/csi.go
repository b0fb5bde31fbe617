// Package csi handles CSI drivers. It applies the kubelet's rules, describes
// drivers through their endpoint, and reports which one serves a name.
package csi

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/validate/content"
	"k8s.io/apimachinery/pkg/util/version"

	"github.com/cleatproject/cleat/kubelet/handler/internal/instance"
	"github.com/cleatproject/cleat/kubelet/watch"
)

// Type is the plugin type of CSI drivers.
const Type = "CSIPlugin"

// Options configure a Handler; all are optional.
type Options struct {
	// Timeout bounds all RPCs of a Register, including the wait until ready.
	// Zero is 2 min, as in the kubelet.
	Timeout time.Duration
}

// Driver is a driver as read at registration.
type Driver struct {
	Name     string `json:"name"`
	Endpoint string `json:"endpoint"`
	// Highest CSI version 1.x of the driver.
	Contract      string            `json:"contract"`
	VendorVersion string            `json:"vendorVersion,omitempty"`
	Manifest      map[string]string `json:"manifest,omitempty"`
	// From GetPluginCapabilities, sorted. Expansion modes have the prefix
	// VolumeExpansion_.
	Capabilities []string `json:"capabilities"`
	NodeID       string   `json:"nodeID"`
	// Volumes on this node; 0 means no limit.
	MaxVolumes int64             `json:"maxVolumes,omitempty"`
	Topology   map[string]string `json:"topology,omitempty"`
}

// Handler implements watch.Handler for Type. It is safe for concurrent use.
type Handler struct {
	timeout time.Duration

	mu      sync.Mutex
	drivers map[string]instance.Set[entry] // by name
}

var _ watch.Handler = (*Handler)(nil)

// Of one name the highest version serves; others take over when it is
// deregistered.
type entry struct {
	driver  Driver
	version *version.Version
}

// New returns a Handler, which need not be closed.
func New(o Options) *Handler {
	if o.Timeout == 0 {
		o.Timeout = 2 * time.Minute
	}
	return &Handler{timeout: o.Timeout, drivers: map[string]instance.Set[entry]{}}
}

// Validate refuses invalid names and endpoints, drivers without a CSI version
// 1.x, and a name that another endpoint has with the same or a higher version.
// The last two texts are the kubelet's.
func (h *Handler) Validate(_ context.Context, p watch.Plugin) error {
	if _, err := h.check("ValidatePlugin", p); err != nil {
		return fmt.Errorf("validation failed for CSI Driver %s at endpoint %s: %w", p.Name, p.Endpoint, err)
	}
	return nil
}

func (h *Handler) check(caller string, p watch.Plugin) (*version.Version, error) {
	if err := checkName(p.Name); err != nil {
		return nil, err
	}
	if err := instance.CheckEndpoint(p.Endpoint); err != nil {
		return nil, err
	}
	refused := fmt.Sprintf("kubernetes.io/csi: %s for CSI driver %q failed.", caller, p.Name)
	if len(p.Versions) == 0 {
		return nil, fmt.Errorf("%s Plugin returned an empty list for supported versions", refused)
	}
	// The kubelet's function: it skips unparseable versions and 2.x; 0.x is not
	// enough.
	highest, err := version.HighestSupportedVersion(p.Versions)
	if err != nil {
		return nil, fmt.Errorf("%s None of the versions specified %q are supported. err=%w", refused, p.Versions, err)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if other := conflict(h.drivers[p.Name], p.Endpoint, highest); other != nil {
		return nil, fmt.Errorf("%s Another driver with the same name is already registered with a higher supported version: %q", refused, other)
	}
	return highest, nil
}

// Names are used in paths.
func checkName(name string) error {
	if len(name) > 63 || len(content.IsDNS1123Subdomain(strings.ToLower(name))) != 0 {
		return fmt.Errorf("the name %q is not a domain name of at most 63 letters, digits, dashes and dots, as csi.example.com is", name)
	}
	return nil
}

// As in the kubelet, only a higher version replaces a driver; the same endpoint
// can register again.
func conflict(registered instance.Set[entry], path string, v *version.Version) *version.Version {
	for _, other := range registered {
		if other.Endpoint != path && !other.Value.version.LessThan(v) {
			return other.Value.version
		}
	}
	return nil
}

// Register queries the driver until it is ready, and stores its description.
// After a failure the driver is not registered.
func (h *Handler) Register(ctx context.Context, p watch.Plugin) error {
	v, err := h.check("RegisterPlugin", p)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, h.timeout)
	defer cancel()
	d, err := queryDriver(ctx, p)
	if err != nil {
		h.remove(p) // stale
		return err
	}
	d.Contract = v.String()
	h.mu.Lock()
	defer h.mu.Unlock()
	if other := conflict(h.drivers[p.Name], p.Endpoint, v); other != nil {
		return fmt.Errorf("another CSI driver %q registered in the meantime, with version %q", p.Name, other)
	}
	h.drivers[p.Name] = h.drivers[p.Name].With(p.Endpoint, p.Socket, entry{d, v})
	return nil
}

// DeRegister removes only this registration.
func (h *Handler) DeRegister(_ context.Context, p watch.Plugin) error {
	h.remove(p)
	return nil
}

func (h *Handler) remove(p watch.Plugin) {
	h.mu.Lock()
	defer h.mu.Unlock()
	rest, _, _ := h.drivers[p.Name].Without(p.Endpoint, p.Socket)
	if len(rest) == 0 {
		delete(h.drivers, p.Name)
		return
	}
	h.drivers[p.Name] = rest
}

// Driver returns the serving driver of a name.
func (h *Handler) Driver(name string) (d Driver, found bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return serving(h.drivers[name])
}

// Drivers returns the serving drivers by name.
func (h *Handler) Drivers() []Driver {
	h.mu.Lock()
	defer h.mu.Unlock()
	all := make([]Driver, 0, len(h.drivers))
	for _, name := range slices.Sorted(maps.Keys(h.drivers)) {
		d, _ := serving(h.drivers[name])
		all = append(all, d)
	}
	return all
}

// The highest version serves; of several, the newest.
func serving(registered instance.Set[entry]) (d Driver, found bool) {
	var best *version.Version
	for _, r := range registered {
		if best == nil || best.LessThan(r.Value.version) {
			best, d = r.Value.version, r.Value.driver
		}
	}
	d.Capabilities = slices.Clone(d.Capabilities)
	d.Manifest, d.Topology = maps.Clone(d.Manifest), maps.Clone(d.Topology)
	return d, best != nil
}
