package inventory

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/cleatproject/cleat/internal/strictjson"
)

// DefaultPrefix is used if no prefix is configured.
const DefaultPrefix = "intel.com"

// MaxConfigSize bounds config.json in bytes: no ConfigMap is larger.
const MaxConfigSize = 1 << 20

// ParseOptions are the options of ParseConfig.
type ParseOptions struct {
	Prefix string // of resources that name none; "" is DefaultPrefix
	Strict bool   // probable mistakes are errors
	// NoDDPTool: ddptool is not installed; selectors with DDP profiles get a
	// warning.
	NoDDPTool bool
}

// Config is the content of config.json.
type Config struct {
	Resources []Resource // without dropped ones
}

// DeviceType is the type of the devices of a resource.
type DeviceType string

// The device types.
const (
	NetDevice    DeviceType = "netDevice"
	Accelerator  DeviceType = "accelerator"
	AuxNetDevice DeviceType = "auxNetDevice"
)

func DeviceTypes() []DeviceType { return []DeviceType{NetDevice, Accelerator, AuxNetDevice} }

// Resource is an element of resourceList.
type Resource struct {
	Index           int        // in resourceList
	Name            string     `json:"resourceName"`
	Prefix          string     `json:"resourcePrefix"`
	Type            DeviceType `json:"deviceType"`
	ExcludeTopology bool       `json:"excludeTopology"` // no NUMA node is published
	Selectors       []Selector // at least one
	// By PCI address (of an auxiliary device: its parent's), or "*".
	AdditionalInfo map[string]map[string]string `json:"additionalInfo"`
}

// FullName is the name that a pod requests: intel.com/sriov.
func (r Resource) FullName() string { return r.Prefix + "/" + r.Name }

// EnvVariable returns the name of the environment variable with the ids of the
// resource's devices.
func (r Resource) EnvVariable() string {
	return strings.ToUpper(strings.ReplaceAll("PCIDEVICE_"+r.Prefix+"_"+r.Name, ".", "_"))
}

// Info returns the additional information for a PCI address: "*", overridden by
// the device's own entry.
func (r Resource) Info(address string) map[string]string {
	if r.AdditionalInfo == nil {
		return nil
	}
	all := map[string]string{}
	maps.Copy(all, r.AdditionalInfo["*"])
	maps.Copy(all, r.AdditionalInfo[address])
	return all
}

// Selector selects the devices that pass all its non-empty filters.
type Selector struct {
	Vendors      []string `json:"vendors"`
	Devices      []string `json:"devices"`
	Drivers      []string `json:"drivers"`
	PCIAddresses []string `json:"pciAddresses" for:"netDevice,accelerator"`
	ACPIIndexes  []string `json:"acpiIndexes" for:"netDevice"`
	AuxTypes     []string `json:"auxTypes" for:"auxNetDevice"`
	PFNames      []PFItem `json:"pfNames" for:"netDevice,auxNetDevice"`
	RootDevices  []PFItem `json:"rootDevices" for:"netDevice,auxNetDevice"`
	LinkTypes    []string `json:"linkTypes" for:"netDevice,auxNetDevice"`
	DDPProfiles  []string `json:"ddpProfiles" for:"netDevice"`
	PKeys        []string `json:"pKeys" for:"netDevice"`
	RDMA         bool     `json:"isRdma" for:"netDevice,auxNetDevice"`       // also adds RDMA's device nodes to the container
	VhostNet     bool     `json:"needVhostNet" for:"netDevice,auxNetDevice"` // no filter: adds /dev/vhost-net and /dev/net/tun
	VDPAType     string   `json:"vdpaType" for:"netDevice"`                  // virtio, vhost; "" is no filter
}

// ParseConfig parses config.json. Warnings are in the order of the text. The
// error joins one *strictjson.Problem per mistake.
func ParseConfig(text []byte, o ParseOptions) (Config, []strictjson.Problem, error) {
	if len(text) > MaxConfigSize {
		return Config{}, nil, &strictjson.Problem{Line: 1, Column: 1, Text: fmt.Sprintf("the text has %d bytes, want at most %d", len(text), MaxConfigSize)}
	}
	root, err := strictjson.Parse(text)
	if err != nil {
		return Config{}, nil, err
	}
	r := &configReader{noDDPTool: o.NoDDPTool}
	resources := r.document(root, cmp.Or(o.Prefix, DefaultPrefix))
	slices.SortStableFunc(r.problems, func(a, b strictjson.Problem) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
	var warnings, errs []strictjson.Problem
	for _, p := range r.problems {
		if p.Kind == "" || o.Strict && isMistake(p.Kind) {
			errs = append(errs, p)
		} else {
			warnings = append(warnings, p)
		}
	}
	if len(errs) > 0 {
		return Config{}, warnings, strictjson.JoinErrors(errs)
	}
	return Config{Resources: resources}, warnings, nil
}
