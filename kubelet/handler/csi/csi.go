// Package csi handles CSI drivers: it takes and refuses them as the kubelet
// does, reads who they are through the endpoint that they announce, and tells
// the program which driver serves where.
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

// Type is what CSI drivers register as.
const Type = "CSIPlugin"

// Options are those of New; the zero value serves.
type Options struct {
	// Timeout bounds all that Register asks a driver, the wait until it is
	// ready included; zero is 2 min, as in the kubelet.
	Timeout time.Duration
}

// Driver is a registered driver, as it described itself then.
type Driver struct {
	Name     string `json:"name"`
	Endpoint string `json:"endpoint"` // the path of its socket
	// Contract is the highest 1.x of the versions that it registered with.
	Contract      string            `json:"contract"`
	VendorVersion string            `json:"vendorVersion,omitempty"`
	Manifest      map[string]string `json:"manifest,omitempty"`
	// Capabilities are the specification's words of GetPluginCapabilities,
	// sorted; those of expansion begin with VolumeExpansion_.
	Capabilities []string `json:"capabilities"`
	NodeID       string   `json:"nodeID"`
	// MaxVolumes is how many can be published to this node; 0: no limit told.
	MaxVolumes int64             `json:"maxVolumes,omitempty"`
	Topology   map[string]string `json:"topology,omitempty"`
}

// Handler is the watch.Handler for Type.
type Handler struct {
	timeout time.Duration

	mu      sync.Mutex
	drivers map[string]instance.Set[held] // by name
}

var _ watch.Handler = (*Handler)(nil)

// held is a driver that is registered. Of those with one name, the one with the
// highest version serves; the others stand by until they are deregistered.
type held struct {
	driver  Driver
	version *version.Version
}

// New makes a handler. It keeps no connection and has nothing to close.
func New(o Options) *Handler {
	if o.Timeout == 0 {
		o.Timeout = 2 * time.Minute
	}
	return &Handler{timeout: o.Timeout, drivers: map[string]instance.Set[held]{}}
}

// Validate refuses what could not be used: odd names, endpoints that are not
// plain paths, versions of CSI without a 1.x, and a name that another endpoint
// holds, unless the version is higher than its. The last two have the kubelet's
// words.
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
	// The library is the one that the kubelet asks: what does not parse is
	// skipped, 2.x is ignored, 0.x is not enough.
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

// checkName holds a name to the rules of CSI, since it ends up in paths.
func checkName(name string) error {
	if len(name) > 63 || len(content.IsDNS1123Subdomain(strings.ToLower(name))) != 0 {
		return fmt.Errorf("the name %q is not a domain name of at most 63 letters, digits, dashes and dots, as csi.example.com is", name)
	}
	return nil
}

// conflict returns the version that keeps another one of the same name out. The
// kubelet's rule is that only a higher version replaces what is held; the same
// endpoint may register again, since that is the same driver.
func conflict(registered instance.Set[held], path string, v *version.Version) *version.Version {
	for _, other := range registered {
		if other.Endpoint != path && !other.Value.version.LessThan(v) {
			return other.Value.version
		}
	}
	return nil
}

// Register asks the driver who it is, waits until it is ready, and keeps what
// it told.
func (h *Handler) Register(ctx context.Context, p watch.Plugin) error {
	v, err := h.check("RegisterPlugin", p)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, h.timeout)
	defer cancel()
	d, err := ask(ctx, p)
	if err != nil {
		h.remove(p) // what an earlier registration of this socket told is not true any more
		return err
	}
	d.Contract = v.String()
	h.mu.Lock()
	defer h.mu.Unlock()
	if other := conflict(h.drivers[p.Name], p.Endpoint, v); other != nil {
		return fmt.Errorf("another CSI driver %q registered meanwhile, with version %q", p.Name, other)
	}
	h.drivers[p.Name] = h.drivers[p.Name].With(p.Endpoint, p.Socket, held{d, v})
	return nil
}

// DeRegister forgets this registration, and no other of the same name.
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

// Driver returns the driver that serves under a name.
func (h *Handler) Driver(name string) (d Driver, found bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return serving(h.drivers[name])
}

// Drivers returns the driver that serves under each name, by name.
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

// serving is the one with the highest version, and the newest of those.
func serving(registered instance.Set[held]) (d Driver, found bool) {
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
