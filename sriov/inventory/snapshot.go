package inventory

import "iter"

// Snapshot has the devices at one moment and is immutable.
type Snapshot struct {
	Functions []Function  // network functions and accelerators, by address
	Auxiliary []Auxiliary // by name
	// Problems are read errors.
	Problems []Problem
}

// Devices returns functions, then auxiliary devices, as pointers into the
// snapshot.
func (s *Snapshot) Devices() iter.Seq[Device] {
	return func(yield func(Device) bool) {
		for i := range s.Functions {
			if f := &s.Functions[i]; !yield(Device{ID: f.Address, Function: f}) {
				return
			}
		}
		for i := range s.Auxiliary {
			if a := &s.Auxiliary[i]; !yield(Device{ID: a.Name, Function: &a.Parent, Auxiliary: a}) {
				return
			}
		}
	}
}

// DeviceClass is the PCI class of a function.
type DeviceClass string

const (
	NetworkClass     DeviceClass = "network"     // class 0x02
	AcceleratorClass DeviceClass = "accelerator" // class 0x12
)

// NoIndex: not a VF.
const NoIndex = -1

// NoNode: no NUMA node.
const NoNode = -1

// Function is a PCI function.
type Function struct {
	Address string // 0000:3b:02.1
	Kind    DeviceClass
	Class   uint32
	Vendor  string // four hexadecimal digits, lower case, without 0x
	Device  string // likewise
	Driver  string
	NUMA    int

	PF       string   // address; a PF's own
	PFNames  []string // primary names first, then alternative names
	VF       int
	VFs      int // of a PF; equals sriov_numvfs except while that is written
	TotalVFs int // sriov_totalvfs

	Netdevs      []Netdev
	ACPIIndex    string
	IOMMUGroup   string // "noiommu-3" is a VFIO group without an IOMMU
	UIO          string // uio0
	RDMA         []RDMA
	RDMACapable  bool // has RDMA devices, or the driver reports RDMA (they can be in a pod's namespace)
	VDPA         *VDPA
	Representor  string // switchdev representor
	DDPProfile   string // of the function or its PF
	PKey         string // InfiniBand partition key at index 0, such as 0x8001
	DefaultRoute bool
}

// IsPF reports whether the function has virtual functions.
func (f Function) IsPF() bool { return f.VF == NoIndex && f.VFs > 0 }

// Netdev is a network device in this network namespace.
type Netdev struct {
	Name  string
	Names []string
	Link  string // ether, infiniband, ...: the kernel's link encapsulation
	MAC   string
	MTU   int
	Up    bool // operational state
}

// RDMA is an RDMA device with its device nodes.
type RDMA struct {
	Name    string // mlx5_2
	Devices []CharDevice
}

// CharDevice is a device node that a container needs.
type CharDevice struct {
	Role string // uverbs, umad, issm, rdma_cm
	Path string // /dev/infiniband/uverbs2
}

// VDPA is a vDPA device on a function.
type VDPA struct {
	Name   string
	Driver string // virtio_vdpa, vhost_vdpa
	Path   string // /dev/vhost-vdpa-3; only of vhost_vdpa
}

// Auxiliary is a device on the auxiliary bus, such as a scalable function.
type Auxiliary struct {
	Name   string // mlx5_core.sf.4
	Type   string // sf
	Index  int    // SF number; NoIndex: not known
	Driver string
	Parent Function
	Netdev []Netdev
	RDMA   []RDMA

	RDMACapable  bool
	DefaultRoute bool
}

// Problem is a read error.
type Problem struct {
	What string // 0000:3b:02.1, or a path
	// Device is the only device that it concerns, by name or address; "": the
	// machine.
	Device string
	Err    error
}
