package inventory

import "iter"

// Snapshot has the devices at one moment. It is immutable.
type Snapshot struct {
	Functions []Function  // network functions and accelerators, by address
	Auxiliary []Auxiliary // by name
	// Problems are read errors; the affected devices or properties are left
	// out.
	Problems []Problem
}

// Devices returns all functions, then all auxiliary devices. They point into
// the snapshot.
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

// The classes.
const (
	NetworkClass     DeviceClass = "network"     // class 0x02
	AcceleratorClass DeviceClass = "accelerator" // class 0x12
)

// NoIndex is the VF of a function that is not a VF.
const NoIndex = -1

// NoNode is the NUMA node of a function without one.
const NoNode = -1

// Function is a PCI function.
type Function struct {
	Address string // 0000:3b:02.1
	Kind    DeviceClass
	Class   uint32 // 24 bits, as sysfs has it
	Vendor  string // four hexadecimal digits, lower case, without 0x
	Device  string // likewise
	Driver  string // bound; "" for none
	NUMA    int    // NoNode: none

	PF       string   // address of the physical function; a PF's own address
	PFNames  []string // of the PF's network devices: primary names first, then alternative names
	VF       int      // index below the PF; NoIndex: not a virtual function
	VFs      int      // number of a PF's virtual functions; equals sriov_numvfs except while that is being written
	TotalVFs int      // sriov_totalvfs of a PF

	Netdevs      []Netdev
	ACPIIndex    string // "" for none
	IOMMUGroup   string // "" for none; "noiommu-3" is a VFIO group without an IOMMU
	UIO          string // "uio0"; "" for none
	RDMA         []RDMA
	RDMACapable  bool   // it has RDMA devices, or its driver reports RDMA, as it does while they are in a pod's namespace
	VDPA         *VDPA  // nil: none
	Representor  string // network device of the switchdev representor; "" for none
	DDPProfile   string // DDP profile of the function or its PF; "" if none or not known
	PKey         string // InfiniBand partition key at index 0, such as 0x8001; "" for none
	DefaultRoute bool   // one of its network devices carries a default route
}

// IsPF reports whether the function is a physical function with virtual
// functions.
func (f Function) IsPF() bool { return f.VF == NoIndex && f.VFs > 0 }

// Netdev is a network device in this network namespace.
type Netdev struct {
	Name  string
	Names []string // alternative names
	Link  string   // ether, infiniband, ...: the kernel's link encapsulation
	MAC   string
	MTU   int
	Up    bool // operational state
}

// RDMA is an RDMA device with its character devices, as paths below /dev.
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
	Path   string // /dev/vhost-vdpa-3; "" unless the driver is vhost_vdpa
}

// Auxiliary is a device on the auxiliary bus, such as a scalable function.
type Auxiliary struct {
	Name   string // mlx5_core.sf.4
	Type   string // sf
	Index  int    // SF number; NoIndex: not known
	Driver string // bound; "" for none
	Parent Function
	Netdev []Netdev
	RDMA   []RDMA

	RDMACapable  bool // see Function
	DefaultRoute bool // one of its network devices carries a default route
}

// Problem is a read error.
type Problem struct {
	What string // 0000:3b:02.1, or a path
	Err  error
}
