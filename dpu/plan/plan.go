// Package plan says of what objects a device is made, and how they are called.
// It is pure, and the same request gives the same plan at any time, on any
// start, so that a retry finds what was begun.
package plan

import (
	"net/netip"

	"github.com/cleatproject/cleat/volume/access"
)

// Kind is what an object is.
type Kind string

// The kinds, in the words of SPDK, save for the mount, which is the machine's.
const (
	Controller Kind = "nvme-controller"
	Key        Kind = "key" // in SPDK's keyring
	AIO        Kind = "aio-bdev"
	RBD        Kind = "rbd-bdev"
	RBDCluster Kind = "rbd-cluster"
	Mount      Kind = "mount"
	AIOFsdev   Kind = "aio-fsdev"
)

// ID names an object; of one kind there is one of a name.
type ID struct {
	Kind Kind   `json:"kind"`
	Name string `json:"name"`
}

func (id ID) String() string { return string(id.Kind) + " " + id.Name }

// Object is a thing that a device needs. It is made before the device and taken
// away when no device needs it any more. It holds no secret. The member of its
// kind is set.
type Object struct {
	ID
	Controller *ControllerSpec `json:"controller,omitempty"`
	Key        *KeySpec        `json:"key,omitempty"`
	AIO        *AIOSpec        `json:"aio,omitempty"`
	RBD        *RBDSpec        `json:"rbd,omitempty"`
	RBDCluster *RBDClusterSpec `json:"rbdCluster,omitempty"`
	Mount      *MountSpec      `json:"mount,omitempty"`
	Fsdev      *FsdevSpec      `json:"fsdev,omitempty"`
}

// ControllerSpec is a controller of an NVMe-oF subsystem, with all its paths.
type ControllerSpec struct {
	Transport string           `json:"transport"` // tcp or rdma
	Paths     []netip.AddrPort `json:"paths"`
	SubNQN    string           `json:"subnqn"`
	HostNQN   string           `json:"hostnqn"`
	// HostGiven: the locator asks for that host NQN, and no other will do.
	HostGiven bool `json:"hostGiven,omitempty"`

	Timeouts     access.Timeouts `json:"timeouts"` // all given
	IOQueues     int             `json:"ioQueues,omitempty"`
	HeaderDigest bool            `json:"headerDigest,omitempty"`
	DataDigest   bool            `json:"dataDigest,omitempty"`

	// Names of objects of kind Key; empty: none.
	DHChap      string `json:"dhchap,omitempty"`
	DHChapCtrlr string `json:"dhchapCtrlr,omitempty"`
	TLS         string `json:"tls,omitempty"`
	TLSFile     string `json:"tlsFile,omitempty"` // of TLS; old processes take the file itself
}

// KeySpec is a key, by the name of its file in the directory of keys.
type KeySpec struct {
	File string `json:"file"`
}

// AIOSpec is a bdev on a file, or on a block device, of a pool.
type AIOSpec struct {
	File     access.File `json:"file"`
	ReadOnly bool        `json:"readOnly,omitempty"`
}

// RBDSpec is a bdev on an image.
type RBDSpec struct {
	Cluster string `json:"cluster"` // name of the object of kind RBDCluster
	// Of is which cluster that is, whoever asks it: its name, or its monitors.
	Of        string `json:"of"`
	Pool      string `json:"pool"`
	Namespace string `json:"namespace,omitempty"`
	Image     string `json:"image"`
	ReadOnly  bool   `json:"readOnly,omitempty"`
}

// RBDClusterSpec is a connection to a Ceph cluster.
type RBDClusterSpec struct {
	access.Ceph
}

// MountSpec is a file system that the machine mounts at a directory of the
// object's name, below the directory of volumes. One of the three is set.
type MountSpec struct {
	NFS    *access.NFS    `json:"nfs,omitempty"`
	CephFS *access.CephFS `json:"cephfs,omitempty"`
	// Directory of a pool, bound to where SNAP looks.
	Directory *access.File `json:"directory,omitempty"`
	ReadOnly  bool         `json:"readOnly,omitempty"`
}

// FsdevSpec is a file system device on a mount.
type FsdevSpec struct {
	Mount string `json:"mount"` // name of the object
}

// Choice says which namespace of a controller a device is; what is zero does
// not matter. With all zero there must be just one.
type Choice struct {
	NSID  uint32 `json:"nsid,omitempty"`
	UUID  string `json:"uuid,omitempty"`
	NGUID string `json:"nguid,omitempty"`
}

// Device is the plan of one.
type Device struct {
	// Name is the device_name; empty where it follows from the namespace that
	// Choice finds: <controller>n<nsid>.
	Name    string
	Objects []Object // in the order of making; the last is the one that is shown
	Choice  Choice
}

// Shown is the object that makes up the device.
func (d Device) Shown() Object { return d.Objects[len(d.Objects)-1] }

// Exclusive names what an object takes for itself, such as a file; there must
// not be two objects that take the same. Empty: it shares.
func (o Object) Exclusive() string {
	switch {
	case o.AIO != nil:
		return "file " + o.AIO.File.Name + " of pool " + o.AIO.File.Pool
	case o.RBD != nil:
		return "image " + o.RBD.Pool + "/" + o.RBD.Namespace + "/" + o.RBD.Image + " of Ceph cluster " + o.RBD.Of
	}
	return ""
}
