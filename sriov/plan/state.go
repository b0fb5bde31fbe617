package plan

// Link types, as the kernel encapsulates.
const (
	Ether      = "ether"
	InfiniBand = "infiniband"
)

// Modes of an embedded switch, as devlink names them.
const (
	Legacy    = "legacy"
	Switchdev = "switchdev"
)

// State is what a machine has, as far as a plan needs it.
type State struct {
	PFs []PF // every network function that can have virtual ones, by address
	// RDMAMode is that of the RDMA subsystem: shared, exclusive; "" when the
	// kernel does not tell.
	RDMAMode string
}

// PF is a physical function.
type PF struct {
	Address        string
	Vendor, Device string   // four hexadecimal digits
	Driver         string   // bound; "" is none
	Netdev         string   // "" is none, or it is in another namespace
	Names          []string // the same and its alternative names
	Link           string   // Ether, InfiniBand, other; "" without a Netdev
	MAC            string
	MTU            int // of the Netdev
	Up             bool
	TotalVFs       int
	NumVFs         int
	ESwitch        string // Legacy, Switchdev; "" when the driver does not tell, which is Legacy
	VFs            []VF   // by index
}

// VF is a virtual function that exists.
type VF struct {
	Index    int
	Address  string
	Device   string // id, four hexadecimal digits
	Driver   string // bound; "" is none
	Override string // driver_override; "" is none

	Netdev string // "" is none, or it is in a pod
	MAC    string // of the Netdev
	MTU    int    // of the Netdev
	Up     bool

	// As the PF's table of its functions says.
	Known      bool   // the table has it
	AdminMAC   string // "" is none, also written as zeros
	VLAN       int
	Trust      bool
	SpoofCheck bool
	GUIDs      bool   // the table tells the two, of InfiniBand
	NodeGUID   string // "" is none, also written as zeros
	PortGUID   string

	RDMA []string // names of RDMA devices
	VDPA string   // virtio, vhost, "" is none
}

// Step is one change to a machine. Each may be done twice: who does it looks
// first.
type Step interface {
	// Function is the address of the function that it changes.
	Function() string
	// String says it to people: "make 8 virtual functions on 0000:3b:00.0 (ens1f0)".
	String() string
}
