// Package plan computes the steps from the observed state of the SR-IOV
// functions of a machine to the one that a SriovNetworkNodeState specifies. It is
// pure.
package plan

// Plan is what is left to do.
type Plan struct {
	// Steps can be done in this order. When one fails, those of the same PF that
	// follow are not safe: read and plan again.
	Steps []Step
	// Touches are the addresses of the functions that the steps disturb, each
	// once: no pod may hold one of them.
	Touches []string
	// Problems are differences that no step can remove.
	Problems []Finding
	// Notes are about what is left alone; they hold nothing back.
	Notes []Finding
	// More: what follows depends on the outcome of the steps; read and plan again.
	// It is safe to do so always.
	More bool
}

// Done reports whether the node is in the desired state: no steps, no problems.
func (p Plan) Done() bool { return len(p.Steps) == 0 && len(p.Problems) == 0 }

// Finding is a problem or a note.
type Finding struct {
	PF   string // its address; "" is the whole node
	Text string // what is wrong, and what would be right
}

func (f Finding) String() string {
	if f.PF == "" {
		return f.Text
	}
	return f.PF + ": " + f.Text
}

// Options are the inputs of a plan besides the desired and the observed state.
type Options struct {
	// Managed are the addresses of PFs whose functions earlier plans created. They
	// lose their functions when the desired state does not name them. PFs that were
	// managed externally do not belong here.
	Managed []string
	// Held are the addresses of functions that pods hold. What the network of a pod
	// may change (addresses, MTU, trust, spoof check) is not compared then; driver
	// and existence are.
	Held []string
	// Fresh are the addresses of PFs whose functions were just created: the
	// addresses in their tables are random ones of drivers, and are set, so that the
	// functions keep them.
	Fresh []string
	// GUIDs are the static ones of the operator's file, for InfiniBand. PFs without
	// a pool get GUIDs derived from their own.
	GUIDs []GUIDPool
}

// Link types, by the kernel's encapsulation.
const (
	Ether      = "ether"
	InfiniBand = "infiniband"
)

// State is the observed state of a machine, as far as a plan needs it.
type State struct {
	PFs []PF // every network function that can have virtual ones, by address
	// RDMAMode is that of the RDMA subsystem: shared, exclusive; "": not reported.
	RDMAMode string
}

// PF is a physical function.
type PF struct {
	Address        string
	Vendor, Device string   // four hexadecimal digits
	Driver         string   // bound; "": none
	Netdev         string   // "": none, or in another namespace
	Names          []string // Netdev and its alternative names
	Link           string   // Ether, InfiniBand, other; "" without a Netdev
	MAC            string
	MTU            int // of the Netdev
	Up             bool
	TotalVFs       int
	NumVFs         int
	ESwitch        string // legacy, switchdev; "": not reported, which is legacy
	VFs            []VF   // by index
}

// VF is a virtual function.
type VF struct {
	Index   int
	Address string
	Device  string // id, four hexadecimal digits
	Driver  string // bound; "": none

	Netdev string // "": none, or in a pod
	MAC    string // of the Netdev
	MTU    int    // of the Netdev

	// Of the PF's table of its functions.
	Known      bool   // the table has it
	AdminMAC   string // "" and zeros: none
	VLAN       int
	Trust      bool
	SpoofCheck bool
	GUIDs      bool   // the table has the two, of InfiniBand
	NodeGUID   string // "" and zeros: none
	PortGUID   string

	RDMA []string // names of RDMA devices
	VDPA string   // virtio, vhost; "": none
}

// Step is one change to a machine. It is idempotent.
type Step interface {
	// Function is the address of the function that it changes.
	Function() string
	// String describes it: "make 8 virtual functions on 0000:3b:00.0".
	String() string
}
