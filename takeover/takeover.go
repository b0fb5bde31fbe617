// Package takeover moves the pods of lost nodes once their storage is proved to
// be fenced. Package plan decides; this package observes the cluster and the
// backends, and acts. It keeps no state: each pass for a remediation reads
// everything again, and the process can end at any point.
package takeover

import (
	"context"
	"fmt"
	"net/netip"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/takeover/plan"
)

// Backend fences the clients of some storage. Each remediation is an owner of
// fences of its own, named by its UID. All calls are idempotent.
type Backend interface {
	// Fence fences addresses for an owner.
	Fence(ctx context.Context, owner string, addresses []netip.Addr) error
	// ReadBack reads the fences of an owner.
	ReadBack(ctx context.Context, owner string, addresses []netip.Addr) (Fences, error)
	// Unfence lifts the owner's fences of the addresses, and no others. The machines
	// with these addresses were restarted or are off.
	Unfence(ctx context.Context, owner string, addresses []netip.Addr) error
	// Forget removes what proves that the owner's fences of the addresses are lifted.
	Forget(ctx context.Context, owner string, addresses []netip.Addr) error
	// Clients returns the recorded clients of the storage, none for a backend that
	// records none.
	Clients(ctx context.Context) ([]Client, error)
	// Servers returns the addresses by which the backend itself is reached.
	Servers(ctx context.Context) ([]netip.Addr, error)
}

// Fences are those of an owner at a backend.
type Fences struct {
	Held     []netip.Addr // proved to be in force
	Recorded []netip.Addr // in any phase; all of Held
	// Lifted: it was read, from what fences, that no fence is left. Recorded is then what
	// Forget removes.
	Lifted   bool
	Evidence []string // what was read
	Missing  string   // why the fences are not held or not lifted yet
	// What an administrator has to do before a fence holds, or before it is lifted,
	// where fences of others are in the way.
	FenceBlocked, UnfenceBlocked string
}

// Client is a client that a backend has recorded, or that the node itself reports.
type Client struct {
	Node      string
	Addresses []netip.Addr // as last seen
	Former    []netip.Addr // before; no other client has them
	// Reported by a process of the node: more addresses to fence, and no proof that
	// these are all.
	Reported bool
	Rejected []string // reported texts that are no single address
}

// Coverage is the configuration file: which backend fences what.
type Coverage struct {
	// MaxConcurrent takeovers are in progress at a time; zero is 1.
	MaxConcurrent int `json:"maxConcurrent,omitempty"`
	// ExcludedNodes are never fenced.
	ExcludedNodes []string        `json:"excludedNodes,omitempty"`
	Drivers       []DriverRule    `json:"drivers,omitempty"`
	Backends      []BackendConfig `json:"backends,omitempty"`
	// StorageAddresses are addresses of nodes on networks that Kubernetes does not
	// know, by node.
	StorageAddresses map[string][]netip.Addr `json:"storageAddresses,omitempty"`
	// DPUs are clients of their own, by node. An administrator has to confirm that they are
	// off.
	DPUs map[string][]string `json:"dpus,omitempty"`
	// Protected is never fenced, as virtual addresses.
	Protected []ProtectedBlock `json:"protected,omitempty"`
}

// DriverRule says what fences the volumes of a driver. Without Backend and Local
// nothing does, and they block a takeover.
type DriverRule struct {
	// Driver is a CSI driver, or the key of another source of volumes, such as local.
	Driver string `json:"driver"`
	// Cluster is the volume attribute clusterID, targetAddr or server; empty: all of
	// the driver without a rule of their own.
	Cluster string `json:"cluster,omitempty"`
	Backend string `json:"backend,omitempty"`
	// Local: the volumes are on disks of the node itself.
	Local bool `json:"local,omitempty"`
}

// BackendConfig is a fence service of cleat, or a driver that CSI-Addons asks.
type BackendConfig struct {
	Name string `json:"name"`
	// Endpoint of the service is HOST:PORT with mutual TLS, or a UNIX socket.
	Endpoint string `json:"endpoint,omitempty"`
	// NetworkFenceClass names the class of the driver, instead of Endpoint.
	NetworkFenceClass string `json:"networkFenceClass,omitempty"`
	// NodeAddresses: clients use the addresses of the Node object, as behind a packet
	// filter, which records no clients.
	NodeAddresses bool `json:"nodeAddresses,omitempty"`
}

// ProtectedBlock is an address or a block.
type ProtectedBlock struct {
	Block string `json:"block"`
	Owner string `json:"owner"`
}

// ParseCoverage parses and checks the file. The error is errs.Invalid.
func ParseCoverage(text []byte) (Coverage, error) {
	var c Coverage
	if err := yaml.UnmarshalStrict(text, &c); err != nil {
		return c, errs.Errorf(errs.Invalid, "%w", err)
	}
	backends, rules := map[string]bool{}, map[string]bool{}
	for _, b := range c.Backends {
		switch {
		case b.Name == "" || (b.Endpoint == "") == (b.NetworkFenceClass == ""):
			return c, errs.Errorf(errs.Invalid, "backend %q: name, and either endpoint or networkFenceClass, are required", b.Name)
		case backends[b.Name]:
			return c, errs.Errorf(errs.Invalid, "two backends have the name %q", b.Name)
		}
		backends[b.Name] = true
	}
	for _, r := range c.Drivers {
		key := r.Driver + " " + r.Cluster
		switch {
		case r.Driver == "":
			return c, errs.Errorf(errs.Invalid, "a rule in drivers has no driver")
		case r.Local && r.Backend != "":
			return c, errs.Errorf(errs.Invalid, "driver %s: backend and local are mutually exclusive", r.Driver)
		case r.Backend != "" && !backends[r.Backend]:
			return c, errs.Errorf(errs.Invalid, "driver %s: no backend has the name %q", r.Driver, r.Backend)
		case rules[key]:
			return c, errs.Errorf(errs.Invalid, "driver %s: two rules for the cluster %q", r.Driver, r.Cluster)
		}
		rules[key] = true
	}
	for _, p := range c.Protected {
		if _, err := parseBlock(p.Block); err != nil {
			return c, errs.Errorf(errs.Invalid, "protected: %w", err)
		}
	}
	if c.MaxConcurrent < 0 {
		return c, errs.Errorf(errs.Invalid, "maxConcurrent %d is negative", c.MaxConcurrent)
	}
	return c, nil
}

// parseBlock accepts an address as a block of one.
func parseBlock(text string) (netip.Prefix, error) {
	if strings.Contains(text, "/") {
		return netip.ParsePrefix(text)
	}
	a, err := netip.ParseAddr(text)
	if err != nil {
		return netip.Prefix{}, fmt.Errorf("block %q: %w", text, err)
	}
	return single(a), nil
}

func single(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

// planConfig is the part that package plan needs.
func (c Coverage) planConfig() plan.Config {
	p := plan.Config{MaxConcurrent: max(c.MaxConcurrent, 1)}
	for _, r := range c.Drivers {
		p.Coverage = append(p.Coverage, plan.Rule{Driver: r.Driver, Cluster: r.Cluster, Backend: r.Backend, Local: r.Local})
	}
	for _, b := range c.Backends {
		p.Backends = append(p.Backends, plan.Backend{Name: b.Name, NodeAddresses: b.NodeAddresses})
	}
	return p
}

// Names of the API that the controller serves.
const (
	Group   = "remediation.cleat.dev"
	Version = "v1alpha1"
	Kind    = "StorageFenceRemediation"

	finalizer        = "remediation.cleat.dev/takeover"
	claimAnnotation  = "remediation.cleat.dev/claim"
	pausedAnnotation = "remediation.cleat.dev/paused"

	// Of NodeHealthCheck.
	nodeNameAnnotation = "remediation.medik8s.io/node-name"
	timedOutAnnotation = "remediation.medik8s.io/nhc-timed-out"
	excludeLabel       = "remediation.medik8s.io/exclude-from-remediation"

	outOfService = "node.kubernetes.io/out-of-service"
)

// Resource is the resource of StorageFenceRemediations.
var Resource = schema.GroupVersionResource{Group: Group, Version: Version, Resource: "storagefenceremediations"}

var (
	nodeResource       = schema.GroupVersionResource{Version: "v1", Resource: "nodes"}
	podResource        = schema.GroupVersionResource{Version: "v1", Resource: "pods"}
	claimResource      = schema.GroupVersionResource{Version: "v1", Resource: "persistentvolumeclaims"}
	volumeResource     = schema.GroupVersionResource{Version: "v1", Resource: "persistentvolumes"}
	attachmentResource = schema.GroupVersionResource{Group: "storage.k8s.io", Version: "v1", Resource: "volumeattachments"}
	driverResource     = schema.GroupVersionResource{Group: "storage.k8s.io", Version: "v1", Resource: "csidrivers"}
	sliceResource      = schema.GroupVersionResource{Group: "discovery.k8s.io", Version: "v1", Resource: "endpointslices"}
)
