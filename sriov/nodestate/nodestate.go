// Package nodestate defines, decodes and validates the SriovNetworkNodeState of
// the SR-IOV network operator (sriovnetwork.openshift.io/v1): desired and
// observed state of a node's SR-IOV functions.
package nodestate

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

const (
	Group      = "sriovnetwork.openshift.io"
	Version    = "v1"
	APIVersion = Group + "/" + Version
	Kind       = "SriovNetworkNodeState"
	Resource   = "sriovnetworknodestates" // in API paths
)

// NodeState is a node's desired and observed state.
type NodeState struct {
	Name            string // of the node
	Namespace       string
	UID             string // empty without an API server
	ResourceVersion string
	// Generation counts changes of Spec. Without an API server it is 1: compare
	// Spec.Hash.
	Generation  int64
	Deleting    bool
	Annotations map[string]string
	Spec        Spec
	Status      Status
}

// Spec is the desired state, in the operator's JSON with two more fields in
// VFGroup.
type Spec struct {
	Interfaces []Interface `json:"interfaces,omitempty"`
	Bridges    Bridges     `json:"bridges,omitzero"`
	System     System      `json:"system,omitzero"`
}

const (
	NetDevice = "netdevice" // kernel driver
	VFIO      = "vfio-pci"  // for user space

	Ethernet   = "eth" // or ETH; a status has ETH
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

// Interface is a PF's desired state.
type Interface struct {
	PCIAddress        string    `json:"pciAddress"`
	NumVFs            int       `json:"numVfs,omitempty"`
	MTU               int       `json:"mtu,omitempty"`         // 0 is any; only raised
	Name              string    `json:"name,omitempty"`        // informative
	LinkType          string    `json:"linkType,omitempty"`    // in either case; "" is any
	ESwitchMode       string    `json:"eSwitchMode,omitempty"` // legacy (also ""), switchdev
	VFGroups          []VFGroup `json:"vfGroups,omitempty"`
	ExternallyManaged bool      `json:"externallyManaged,omitempty"` // cleat creates and removes no functions
}

// Mode returns the switch mode: Legacy or Switchdev.
func (i Interface) Mode() string {
	return cmp.Or(i.ESwitchMode, Legacy)
}

// Group returns the group of a VF.
func (i Interface) Group(index int) (VFGroup, bool) {
	for _, g := range i.VFGroups {
		if r, err := ParseRange(g.VFRange); err == nil && r.Has(index) {
			return g, true
		}
	}
	return VFGroup{}, false
}

// VFGroup is the desired state of a range of VFs.
type VFGroup struct {
	ResourceName string `json:"resourceName,omitempty"`
	DeviceType   string `json:"deviceType,omitempty"` // netdevice (also ""), vfio-pci
	VFRange      string `json:"vfRange,omitempty"`    // "0-3"
	PolicyName   string `json:"policyName,omitempty"`
	MTU          int    `json:"mtu,omitempty"` // 0 is any
	IsRDMA       bool   `json:"isRdma,omitempty"`
	VDPAType     string `json:"vdpaType,omitempty"` // "" for none

	// Not the operator's, which has these per pod network. Values: on, off; ""
	// is any.
	Trust      string `json:"trust,omitempty" bool:"on,off"`
	SpoofCheck string `json:"spoofChk,omitempty" bool:"on,off"`
}

// Type returns NetDevice or VFIO.
func (g VFGroup) Type() string {
	return cmp.Or(g.DeviceType, NetDevice)
}

// Bridges are Open vSwitch bridges.
type Bridges struct {
	OVS []Bridge `json:"ovs,omitempty"`
}

// Bridge is a bridge. Of one that cleat did not create only the name and the
// uplinks are checked.
type Bridge struct {
	Name    string         `json:"name"`
	Bridge  map[string]any `json:"bridge,omitempty"`
	Uplinks []Uplink       `json:"uplinks,omitempty"`
}

// Uplink is a PF in a bridge.
type Uplink struct {
	PCIAddress string         `json:"pciAddress"`
	Name       string         `json:"name,omitempty"`
	Interface  map[string]any `json:"interface,omitempty"`
}

// System has node-wide settings.
type System struct {
	RDMAMode string `json:"rdmaMode,omitempty"` // "" is any
}

// Status is the observed state and the progress. Its JSON, including letter
// case, is the operator's.
type Status struct {
	Interfaces    []FoundInterface `json:"interfaces,omitempty"`
	Bridges       Bridges          `json:"bridges,omitzero"`
	System        System           `json:"system,omitzero"`
	SyncStatus    string           `json:"syncStatus,omitempty"`
	LastSyncError string           `json:"lastSyncError,omitempty"`
}

const (
	InProgress = "InProgress"
	Succeeded  = "Succeeded"
	Failed     = "Failed"
)

// In a FoundInterface; a spec has others.
const (
	FoundEthernet   = "ETH"
	FoundInfiniBand = "IB"
	LinkUp          = "up"
	LinkDown        = "down"
)

// FoundInterface is a PF's observed state.
type FoundInterface struct {
	Name              string    `json:"name,omitempty"`
	MAC               string    `json:"mac,omitempty"`
	Driver            string    `json:"driver,omitempty"`
	PCIAddress        string    `json:"pciAddress"`
	Vendor            string    `json:"vendor,omitempty"`
	DeviceID          string    `json:"deviceID,omitempty"`
	NetFilter         string    `json:"netFilter,omitempty"`
	MTU               int       `json:"mtu,omitempty"`
	NumVFs            int       `json:"numVfs,omitempty"`
	LinkSpeed         string    `json:"linkSpeed,omitempty"`
	LinkType          string    `json:"linkType,omitempty"`       // ETH, IB
	LinkAdminState    string    `json:"linkAdminState,omitempty"` // up, down
	ESwitchMode       string    `json:"eSwitchMode,omitempty"`
	ExternallyManaged bool      `json:"externallyManaged,omitempty"`
	TotalVFs          int       `json:"totalvfs,omitempty"`
	VFs               []FoundVF `json:"Vfs,omitempty"`
	AltNames          []string  `json:"altNames,omitempty"`
}

// FoundVF is a VF's observed state.
type FoundVF struct {
	Name            string `json:"name,omitempty"`
	MAC             string `json:"mac,omitempty"`
	Assigned        string `json:"assigned,omitempty"`
	Driver          string `json:"driver,omitempty"`
	PCIAddress      string `json:"pciAddress"`
	Vendor          string `json:"vendor,omitempty"`
	DeviceID        string `json:"deviceID,omitempty"`
	VLAN            int    `json:"Vlan,omitempty"`
	MTU             int    `json:"mtu,omitempty"`
	Index           int    `json:"vfID"`
	VDPAType        string `json:"vdpaType,omitempty"`
	RepresentorName string `json:"representorName,omitempty"`
	GUID            string `json:"guid,omitempty"` // 0011:2233:4455:6677
}

// Hash identifies the meaning of the spec in 64 hexadecimal digits. Order,
// explicit defaults, and ignored letter case do not matter.
func (s Spec) Hash() string {
	text, err := json.Marshal(s.canonical())
	if err != nil {
		// Only specs that were not decoded have values that are invalid in
		// JSON.
		text = fmt.Append(nil, s)
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

func (s Spec) canonical() Spec {
	s.Interfaces = slices.Clone(s.Interfaces)
	for n, i := range s.Interfaces {
		i.LinkType = strings.ToLower(i.LinkType)
		i.ESwitchMode = i.Mode()
		i.VFGroups = slices.Clone(i.VFGroups)
		for n := range i.VFGroups {
			i.VFGroups[n].DeviceType = i.VFGroups[n].Type()
		}
		slices.SortStableFunc(i.VFGroups, func(a, b VFGroup) int { return cmp.Compare(a.VFRange, b.VFRange) })
		s.Interfaces[n] = i
	}
	slices.SortStableFunc(s.Interfaces, func(a, b Interface) int { return cmp.Compare(a.PCIAddress, b.PCIAddress) })
	s.Bridges.OVS = slices.Clone(s.Bridges.OVS)
	slices.SortStableFunc(s.Bridges.OVS, func(a, b Bridge) int { return cmp.Compare(a.Name, b.Name) })
	return s
}
