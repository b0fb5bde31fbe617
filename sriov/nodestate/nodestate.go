// Package nodestate has the SriovNetworkNodeState of the SR-IOV network
// operator (sriovnetwork.openshift.io/v1): the desired and the observed state
// of the functions of one node. It decodes and validates one from a file or
// from an object of the API server.
package nodestate

// The type of the object.
const (
	Group      = "sriovnetwork.openshift.io"
	Version    = "v1"
	APIVersion = Group + "/" + Version
	Kind       = "SriovNetworkNodeState"
	Resource   = "sriovnetworknodestates" // in the paths of the API server
)

// NodeState is the desired and the observed state of one node.
type NodeState struct {
	Name            string // of the node
	Namespace       string
	UID             string // "" when it does not come from an API server
	ResourceVersion string
	// Generation counts changes of Spec. It is 1 for text without one: files
	// are compared by Spec.Hash.
	Generation  int64
	Deleting    bool // it has a deletionTimestamp
	Annotations map[string]string
	Spec        Spec
	Status      Status
}

// Spec is the desired state. Its JSON is the operator's, with two additions in
// VFGroup.
type Spec struct {
	Interfaces []Interface `json:"interfaces,omitempty"`
	Bridges    Bridges     `json:"bridges,omitzero"`
	System     System      `json:"system,omitzero"`
}

// Values of a spec.
const (
	NetDevice = "netdevice" // the functions have a driver of the kernel's network
	VFIO      = "vfio-pci"  // the functions are for programs

	Ethernet   = "eth" // a spec may also say ETH; a status always does
	InfiniBand = "ib"  // or IB

	Legacy    = "legacy"
	Switchdev = "switchdev"

	VirtIO = "virtio"
	VHost  = "vhost"

	Shared    = "shared"
	Exclusive = "exclusive"

	On  = "on"
	Off = "off"
)

// Interface is the desired state of one physical function.
type Interface struct {
	PCIAddress        string    `json:"pciAddress"`
	NumVFs            int       `json:"numVfs,omitempty"`
	MTU               int       `json:"mtu,omitempty"`         // 0 is any; it is only ever raised
	Name              string    `json:"name,omitempty"`        // the address counts, not the name
	LinkType          string    `json:"linkType,omitempty"`    // eth, ib, in either case; "" is any
	ESwitchMode       string    `json:"eSwitchMode,omitempty"` // legacy (also ""), switchdev
	VFGroups          []VFGroup `json:"vfGroups,omitempty"`
	ExternallyManaged bool      `json:"externallyManaged,omitempty"` // others make and remove the virtual functions
}

// Mode is the desired mode of the embedded switch: Legacy or Switchdev.
func (i Interface) Mode() string {
	if i.ESwitchMode == "" {
		return Legacy
	}
	return i.ESwitchMode
}

// Group is the group that a virtual function is in, by its index.
func (i Interface) Group(index int) (VFGroup, bool) {
	for _, g := range i.VFGroups {
		if r, err := ParseRange(g.VFRange); err == nil && r.Has(index) {
			return g, true
		}
	}
	return VFGroup{}, false
}

// VFGroup is the desired state of some virtual functions of a physical one.
type VFGroup struct {
	ResourceName string `json:"resourceName,omitempty"`
	DeviceType   string `json:"deviceType,omitempty"` // netdevice (also ""), vfio-pci
	VFRange      string `json:"vfRange,omitempty"`    // "0-3"
	PolicyName   string `json:"policyName,omitempty"`
	MTU          int    `json:"mtu,omitempty"` // 0 is any
	IsRDMA       bool   `json:"isRdma,omitempty"`
	VDPAType     string `json:"vdpaType,omitempty"` // virtio, vhost; "" for none

	// Two that the operator does not have: it leaves them to the networks of
	// pods. on, off; "" is any.
	Trust      string `json:"trust,omitempty" bool:"on,off"`
	SpoofCheck string `json:"spoofChk,omitempty" bool:"on,off"`
}

// Type is the desired type of the functions of the group: NetDevice or VFIO.
func (g VFGroup) Type() string {
	if g.DeviceType == "" {
		return NetDevice
	}
	return g.DeviceType
}

// Bridges are those of Open vSwitch that the operator makes. Nothing here
// makes them.
type Bridges struct {
	OVS []Bridge `json:"ovs,omitempty"`
}

// Bridge is one bridge. Settings that are only passed on stay as they were
// written.
type Bridge struct {
	Name    string         `json:"name"`
	Bridge  map[string]any `json:"bridge,omitempty"`
	Uplinks []Uplink       `json:"uplinks,omitempty"`
}

// Uplink is a physical function in a bridge.
type Uplink struct {
	PCIAddress string         `json:"pciAddress"`
	Name       string         `json:"name,omitempty"`
	Interface  map[string]any `json:"interface,omitempty"`
}

// System is what holds for the whole node.
type System struct {
	RDMAMode string `json:"rdmaMode,omitempty"` // shared, exclusive; "" is any
}
