package inventory

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
)

// DefaultPrefix is the prefix of a resource when nobody names one.
const DefaultPrefix = "intel.com"

// MaxSize bounds the text in bytes: no ConfigMap is larger.
const MaxConfigSize = 1 << 20

// ParseOptions say how a text is read.
type ParseOptions struct {
	Prefix string // of resources that name none; "" is DefaultPrefix
	Strict bool   // what is probably a mistake is an error
	// NoDDPTool: the program ddptool is not installed, which is worth a warning
	// where profiles are asked for.
	NoDDPTool bool
}

// Config is what config.json says.
type Config struct {
	Resources []Resource // in the order of resourceList, without dropped ones
}

// DeviceType is the kind of device that a resource consists of.
type DeviceType string

// The device types.
const (
	NetDevice    DeviceType = "netDevice"
	Accelerator  DeviceType = "accelerator"
	AuxNetDevice DeviceType = "auxNetDevice"
)

// DeviceTypes are all of them.
// DeviceTypes returns all device types.
func DeviceTypes() []DeviceType { return []DeviceType{NetDevice, Accelerator, AuxNetDevice} }

// Resource is an element of resourceList.
type Resource struct {
	Index           int    // in resourceList
	Prefix          string // its own or that of Options
	Name            string
	Type            DeviceType
	ExcludeTopology bool       // no NUMA node is published
	Selectors       []Selector // at least one
	// AdditionalInfo is by address of the PCI device (of an auxiliary device:
	// of its parent), or "*" for all.
	AdditionalInfo map[string]map[string]string
}

// FullName is the name that a pod asks for: intel.com/sriov.
func (r Resource) FullName() string { return r.Prefix + "/" + r.Name }

// Info is the additional information of the device at a PCI address: what all
// have, overridden by its own. It is nil when the resource has none at all.
func (r Resource) Info(address string) map[string]string {
	if r.AdditionalInfo == nil {
		return nil
	}
	all := map[string]string{}
	maps.Copy(all, r.AdditionalInfo["*"])
	maps.Copy(all, r.AdditionalInfo[address])
	return all
}

// Selector takes the devices that pass each of its filters. An empty filter
// lets all pass. Filters that the device type does not have are empty.
type Selector struct {
	Vendors      []string
	Devices      []string
	Drivers      []string
	PCIAddresses []string
	ACPIIndexes  []string
	AuxTypes     []string
	PFNames      []PFItem
	RootDevices  []PFItem
	LinkTypes    []string
	DDPProfiles  []string
	PKeys        []string
	RDMA         bool   // filter, and RDMA's device nodes go into the container
	VDPAType     string // virtio, vhost; "" is no filter
	VhostNet     bool   // no filter: /dev/vhost-net and /dev/net/tun go into the container
}

// Filters reports whether the selector refuses anything at all.
func (s Selector) Filters() bool {
	for _, list := range [][]string{s.Vendors, s.Devices, s.Drivers, s.PCIAddresses, s.ACPIIndexes, s.AuxTypes, s.LinkTypes, s.DDPProfiles, s.PKeys} {
		if len(list) > 0 {
			return true
		}
	}
	return len(s.PFNames) > 0 || len(s.RootDevices) > 0 || s.RDMA || s.VDPAType != ""
}

// ParseConfig reads the text of config.json. Warnings are in the order of the text.
// The error joins one *Error for each thing that is wrong, in that order too;
// the Config is empty then.
func ParseConfig(text []byte, o ParseOptions) (Config, []ConfigWarning, error) {
	o.Prefix = cmp.Or(o.Prefix, DefaultPrefix)
	r := &configReader{textPosition: newTextPosition(text), strict: o.Strict, noDDPTool: o.NoDDPTool}
	root, err := parseJSON(text)
	if err != nil {
		return Config{}, nil, r.syntax(text, err)
	}
	resources := r.config(root, o.Prefix)
	slices.SortStableFunc(r.warnings, func(a, b ConfigWarning) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
	slices.SortStableFunc(r.errs, func(a, b *ConfigError) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
	if len(r.errs) > 0 {
		all := make([]error, len(r.errs))
		for i, e := range r.errs {
			all[i] = e
		}
		return Config{}, r.warnings, errors.Join(all...)
	}
	return Config{Resources: resources}, r.warnings, nil
}

// config reads the whole document.
func (r *configReader) config(root *jsonValue, prefix string) []Resource {
	if root.kind != objectKind {
		r.fail(root, "", "the document is %s, want an object: {\"resourceList\": [...]}", root.kind)
		return nil
	}
	var list *jsonValue
	r.members(root, "", keysOf(documentLevel), func(_ string, value *jsonValue, path string) {
		if value.kind != listKind && value.kind != nullKind {
			r.fail(value, path, "it is %s, want a list of resources", value.kind)
			return
		}
		list = value
	})
	if list == nil || len(list.items) == 0 {
		r.warn(NothingToDo, cmp.Or(list, root), "resourceList", "there is no resource: nothing will be advertised")
		return nil
	}
	var all []Resource
	for i, item := range list.items {
		if res, ok := r.resource(item, fmt.Sprintf("resourceList[%d]", i), prefix); ok {
			res.Index = i
			all = append(all, res)
		}
	}
	r.unique(list, all)
	return all
}
