// Package plan determines the objects of a device and their names. It is pure
// and deterministic, also over restarts, so that a retry finds the objects of
// an interrupted call.
package plan

import (
	"net/netip"

	"github.com/cleatproject/cleat/volume/access"
)

// Kind of an object.
type Kind string

// The kinds, in SPDK's terms, except for the mount of the machine.
const (
	Controller Kind = "nvme-controller"
	Key        Kind = "key"
	AIO        Kind = "aio-bdev"
	RBD        Kind = "rbd-bdev"
	RBDCluster Kind = "rbd-cluster"
	Mount      Kind = "mount"
	AIOFsdev   Kind = "aio-fsdev"
)

// ID identifies an object; names are unique within a kind.
type ID struct {
	Kind Kind   `json:"kind"`
	Name string `json:"name"`
}

func (id ID) String() string { return string(id.Kind) + " " + id.Name }

// Object is something that a device needs; it is removed when no device needs
// it any more. It holds no secrets. Only the field of its kind is set.
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

// ControllerSpec is an NVMe-oF controller with its paths.
type ControllerSpec struct {
	Transport string           `json:"transport"` // tcp or rdma
	Paths     []netip.AddrPort `json:"paths"`
	SubNQN    string           `json:"subnqn"`
	HostNQN   string           `json:"hostnqn"`
	// HostGiven: the locator requires the host NQN.
	HostGiven bool `json:"hostGiven,omitempty"`

	Timeouts     access.Timeouts `json:"timeouts"` // all fields set
	IOQueues     int             `json:"ioQueues,omitempty"`
	HeaderDigest bool            `json:"headerDigest,omitempty"`
	DataDigest   bool            `json:"dataDigest,omitempty"`

	// Names of Key objects; empty: not used.
	DHChap      string `json:"dhchap,omitempty"`
	DHChapCtrlr string `json:"dhchapCtrlr,omitempty"`
	TLS         string `json:"tls,omitempty"`
	TLSFile     string `json:"tlsFile,omitempty"` // for old processes without a keyring
}

// KeySpec is a key, by its file in the key directory.
type KeySpec struct {
	File string `json:"file"`
}

// AIOSpec is a bdev on a file or block device of a pool.
type AIOSpec struct {
	File     access.File `json:"file"`
	ReadOnly bool        `json:"readOnly,omitempty"`
}

// RBDSpec is a bdev on an RBD image.
type RBDSpec struct {
	Cluster string `json:"cluster"` // name of the RBDCluster object
	// Of identifies the cluster for all users: its name or its monitors.
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

// MountSpec is a file system to mount at a mount point with the object's name.
// Exactly one of NFS, CephFS and Directory is set.
type MountSpec struct {
	NFS    *access.NFS    `json:"nfs,omitempty"`
	CephFS *access.CephFS `json:"cephfs,omitempty"`
	// Directory of a pool.
	Directory *access.File `json:"directory,omitempty"`
	ReadOnly  bool         `json:"readOnly,omitempty"`
}

// FsdevSpec is a file system device on a mount.
type FsdevSpec struct {
	Mount string `json:"mount"` // name of the Mount object
}

// Choice selects a namespace of a controller; zero fields match all. Without
// any field, the controller must have exactly one namespace.
type Choice struct {
	NSID  uint32 `json:"nsid,omitempty"`
	UUID  string `json:"uuid,omitempty"`
	NGUID string `json:"nguid,omitempty"`
}

// Device is the plan of a device.
type Device struct {
	// Name is the device_name; empty if it depends on the namespace:
	// <controller>n<nsid>.
	Name    string
	Objects []Object // in the order of creation; the last one is exposed to the host
	Choice  Choice
}

// Shown returns the object that is exposed to the host.
func (d Device) Shown() Object { return d.Objects[len(d.Objects)-1] }

// Exclusive identifies a resource that only one object can use, such as a file,
// or "".
func (o Object) Exclusive() string {
	switch {
	case o.AIO != nil:
		return "file " + o.AIO.File.Name + " of pool " + o.AIO.File.Pool
	case o.RBD != nil:
		return "image " + o.RBD.Pool + "/" + o.RBD.Namespace + "/" + o.RBD.Image + " of Ceph cluster " + o.RBD.Of
	}
	return ""
}
