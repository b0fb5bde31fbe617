// Package plan computes the steps from a node's observed SR-IOV functions to
// those that a SriovNetworkNodeState specifies. It is pure.
package plan

import "cmp"

// Plan is the remaining work.
type Plan struct {
	// In order. When a step fails, the PF's later steps are not safe: observe
	// and plan again.
	Steps []Step
	// Functions that the steps disturb, without duplicates. Pods must not hold
	// any of them.
	Touches []string
	// Differences that no step resolves.
	Problems []Finding
	// What the node lacks and no step of this plan provides; unless accepted, also
	// in Problems.
	Unmet []Unmet
	// Differences that are left alone and do not block the plan.
	Notes []Finding
	// Further steps depend on these: observe and plan again, which is always
	// safe.
	More bool
}

// Done reports whether the node is in the desired state.
func (p Plan) Done() bool { return len(p.Steps) == 0 && len(p.Problems) == 0 }

// Finding is a problem or a note.
type Finding struct {
	PF       string // "": the whole node
	Function string // the only virtual function that it concerns; "": the whole PF
	Text     string // what is wrong, and what would be right
}

func (f Finding) String() string {
	if of := cmp.Or(f.Function, f.PF); of != "" {
		return of + ": " + f.Text
	}
	return f.Text
}

// Unmet is what the desired state asks for and the node does not have.
type Unmet struct {
	PF       string
	Function string // "": the whole PF
	Kind     string // one of Kinds
}

// Options are further inputs of a plan.
type Options struct {
	// PFs whose functions earlier plans created. The functions are removed when
	// the desired state does not name the PF. Externally managed PFs do not
	// belong here.
	Managed []string
	// Functions that pods hold. What a pod's network can change (addresses,
	// MTU, trust, spoof check) is not compared.
	Held []string
	// Functions that no pod holds, as they were before a pod held them. What
	// differs is reset: the pod's network left it.
	Baselines map[string]VF
	// KeepResidue leaves what pods' networks left, with a note.
	KeepResidue bool
	// Kinds of Unmet that do not block. No step provides them.
	Accept []string
	// Single ones, likewise.
	Accepted []Unmet
	// PFs whose functions were just created. Their drivers' random addresses
	// are set explicitly, so that the functions keep them.
	Fresh []string
	// What could not be read, with the reason: PFs and VFs by address. Nothing is
	// planned for them.
	Unreadable map[string]string
	// Static InfiniBand GUIDs. Other PFs' functions get derived GUIDs.
	GUIDs []GUIDPool
}

// Link types, as the kernel names them.
const (
	Ether      = "ether"
	InfiniBand = "infiniband"
)

// State is a node's observed state.
type State struct {
	PFs []PF // network functions that support VFs, by address
	// Network functions without VFs: in a virtual machine also VFs of its host.
	Others []Function
	// shared, exclusive; "": not reported.
	RDMAMode string
	// Open vSwitch bridges by name.
	Bridges map[string]Bridge
	// Why Bridges is not known; "": it is.
	BridgesUnknown string
}

// Bridge is an Open vSwitch bridge.
type Bridge struct {
	// What is wrong with each interface, by name; "": nothing.
	Interfaces map[string]string
	// Of a bridge that CreateBridge created: its PF and Config.
	PF, Config string
}

// Function is a network function.
type Function struct{ Address, Driver string }

// PF is a physical function.
type PF struct {
	Address        string
	Vendor, Device string // four hexadecimal digits
	Driver         string
	Netdev         string   // "": none, or in another namespace
	Names          []string // with alternative names
	Link           string   // "" without a Netdev
	MAC            string
	MTU            int
	Up             bool
	TotalVFs       int
	NumVFs         int
	ESwitch        string // "": not reported, treated as legacy
	TCOffload      string // on, off, Fixed; "": not reported, or not in mode switchdev
	FlowSteering   string // dmfs, SMFS; "": not reported
	VFs            []VF   // by index
}

// SMFS is the flow steering mode in which software manages the rules.
const SMFS = "smfs"

// Fixed is off, and the driver does not let it be changed.
const Fixed = "fixed"

// VF is a virtual function.
type VF struct {
	Index   int
	Address string
	Device  string // id
	Driver  string
	// Instance differs if the function was removed and created again.
	Instance string

	Netdev string // "": none, or in a pod
	MAC    string
	MTU    int

	// From the PF's table.
	Known      bool   // the table has an entry
	AdminMAC   string // zeros: not set
	VLAN, QoS  int
	QinQ       bool // VLAN is a service tag (802.1ad)
	Trust      bool
	SpoofCheck bool
	LinkState  int // LinkAuto, LinkUp, LinkDown
	// In Mbit/s; 0: no limit.
	MinRate, MaxRate int
	GUIDs            bool   // the table has GUIDs
	NodeGUID         string // zeros: not set
	PortGUID         string

	RDMA []string // names
	VDPA string   // virtio, vhost
}

// Step is an idempotent change to a node.
type Step interface {
	// The function that the step changes.
	Function() string
	// Example: "create 8 virtual functions on 0000:3b:00.0".
	String() string
}
