// Package plan computes the steps from the observed state of a node's SR-IOV
// functions to the state that a SriovNetworkNodeState specifies. It is pure.
package plan

// Plan is the remaining work.
type Plan struct {
	// Steps are in execution order. When a step fails, later steps of the same
	// PF are not safe: observe and plan again.
	Steps []Step
	// Touches are the addresses of the functions that the steps disturb,
	// without duplicates. The steps require that no pod holds one of them.
	Touches []string
	// Problems are differences that no step can resolve.
	Problems []Finding
	// Notes are about differences that are left alone. They do not block the
	// plan.
	Notes []Finding
	// More reports that further steps depend on the outcome of these: observe
	// and plan again. Doing so is always safe.
	More bool
}

// Done reports whether the node is in the desired state.
func (p Plan) Done() bool { return len(p.Steps) == 0 && len(p.Problems) == 0 }

// Finding is a problem or a note.
type Finding struct {
	PF   string // address of the PF; "": the whole node
	Text string // what is wrong, and what would be right
}

func (f Finding) String() string {
	if f.PF == "" {
		return f.Text
	}
	return f.PF + ": " + f.Text
}

// Options are the inputs of a plan besides desired and observed state.
type Options struct {
	// Managed are the addresses of PFs whose functions earlier plans created.
	// Their functions are removed when the desired state does not name the PF.
	// PFs that were managed externally do not belong here.
	Managed []string
	// Held are the addresses of functions that pods hold. Settings that a pod's
	// network can change (addresses, MTU, trust, spoof check) are not compared
	// then; driver and existence are.
	Held []string
	// Fresh are the addresses of PFs whose functions were just created. The
	// addresses in their tables are random ones of drivers; they are set
	// explicitly, so that the functions keep them.
	Fresh []string
	// GUIDs are the static GUIDs of the operator's file, for InfiniBand. PFs
	// without a pool get GUIDs derived from their own.
	GUIDs []GUIDPool
}

// Link types, by the kernel's encapsulation.
const (
	Ether      = "ether"
	InfiniBand = "infiniband"
)

// State is the part of a node's observed state that a plan needs.
type State struct {
	PFs []PF // every network function that supports virtual functions, by address
	// RDMAMode is the mode of the RDMA subsystem: shared, exclusive; "": not
	// reported.
	RDMAMode string
}

// PF is a physical function.
type PF struct {
	Address        string
	Vendor, Device string   // four hexadecimal digits
	Driver         string   // bound driver; "": no driver
	Netdev         string   // "": no network device, or in another namespace
	Names          []string // Netdev and its alternative names
	Link           string   // Ether, InfiniBand, other; "" without a Netdev
	MAC            string
	MTU            int // of the Netdev
	Up             bool
	TotalVFs       int
	NumVFs         int
	ESwitch        string // legacy, switchdev; "": not reported, treated as legacy
	VFs            []VF   // by index
}

// VF is a virtual function.
type VF struct {
	Index   int
	Address string
	Device  string // id, four hexadecimal digits
	Driver  string // bound driver; "": no driver

	Netdev string // "": no network device, or moved to a pod
	MAC    string // of the Netdev
	MTU    int    // of the Netdev

	// From the PF's table of its functions.
	Known      bool   // the table has an entry for the VF
	AdminMAC   string // "" and zeros: not set
	VLAN       int
	Trust      bool
	SpoofCheck bool
	GUIDs      bool   // the table has the two InfiniBand GUIDs
	NodeGUID   string // "" and zeros: not set
	PortGUID   string

	RDMA []string // names of RDMA devices
	VDPA string   // virtio, vhost; "": no vDPA device
}

// Step is one idempotent change to a node.
type Step interface {
	// Function is the address of the function that the step changes.
	Function() string
	// String describes the step: "create 8 virtual functions on 0000:3b:00.0".
	String() string
}
