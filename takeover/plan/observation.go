package plan

import (
	"net/netip"
	"time"
)

// Observation is what Next decides from. It is complete or it is not made: a
// read of the API server that fails has no Observation. Rules for its maker:
//
//  1. All is read uncached, and Remediation last. A controller reads and writes
//     one remediation at a time.
//  2. Writes to Remediation and to Node carry the resourceVersion that was
//     observed.
//
// So all else is newer than the status, unless a later leader wrote that: then
// its Term says so.
type Observation struct {
	Now         time.Time // when all of it was read
	Lease       Lease
	Config      Config
	Remediation Remediation
	Others      []Other // all other remediations
	Node        *Node   // nil if no Node object exists
	DPUs        []Machine
	Volumes     []Volume
	Clients     []Client
	Protected   []Protected
	Pods        []Pod
	ReadBacks   []ReadBack // of each backend of the intent, if the status has one
	// Sources of volumes and clients that should be known and did not answer, with
	// the reason, such as "backend rook: connection refused".
	Unavailable []string
}

// Lease is the lease of the controller's leader.
type Lease struct {
	Held bool  // and renewed in time
	Term int64 // leaseTransitions: grows with each leader
}

// Config is the configuration of the controller.
type Config struct {
	Coverage      []Rule
	Backends      []Backend
	MaxConcurrent int // takeovers in progress; at least 1
}

// Rule says what fences the volumes of a driver. Backend and Local are both
// empty for a driver that nothing fences.
type Rule struct {
	Driver  string
	Cluster string // cluster or server; empty for all of the driver without a rule of their own
	Backend string
	Local   bool // volumes are on the node's own disks: no other node can write to them
}

// Backend enforces fences.
type Backend struct {
	Name string
	// NodeAddresses: clients of this backend use the addresses of the Node object,
	// so that it needs no record of them.
	NodeAddresses bool
}

// Remediation is the StorageFenceRemediation.
type Remediation struct {
	Name, UID string
	Created   time.Time
	Node      string // name
	Finalizer bool   // ours is present
	Deleting  bool
	Paused    bool
	TimedOut  bool // NodeHealthCheck's annotation nhc-timed-out
	Off       *Off
	Status    Status
}

// Off is an administrator's confirmation that machines are off or were rebooted.
type Off struct {
	Record   string // digest of the record that the administrator was shown
	Machines []string
}

// Other is another remediation.
type Other struct {
	Name, UID string
	Created   time.Time
	Node      string
	Status    Status
}

// Node is the Node object.
type Node struct {
	UID           string
	Machine       Machine // name of the node; ids of its status.nodeInfo
	Ready         bool    // condition Ready is True
	Excluded      bool    // by the configuration or a label
	Unschedulable bool
	Claim         Claim
	OutOfService  *string // value of the taint node.kubernetes.io/out-of-service:NoExecute
}

// Claim is the controller's annotation on a Node. Each leader writes its own
// before it relies on the Node object, so that the late writes of an earlier
// leader fail on the resourceVersion. A kubelet could change it: the rest of it
// only decides about the cordon.
type Claim struct {
	Remediation string `json:"remediation"` // UID; empty without a claim
	Term        int64  `json:"term"`        // of the leader that wrote it
	Cordoned    bool   `json:"cordoned"`    // the controller cordoned the node, not an administrator
	Left        bool   `json:"left"`        // the remediation has ended; the annotation stays
}

// Protected is a block that no fence is allowed to touch.
type Protected struct {
	Block netip.Prefix
	Owner string // such as "node worker-2", "API server"
}

// Pod is a pod of the node that its kubelet did not create itself.
type Pod struct {
	Namespace, Name, UID  string
	ToleratesOutOfService bool
}

// ReadBack is what a backend reports of the fences of this remediation. Fences
// of other owners do not count.
type ReadBack struct {
	Backend  string
	Intent   string       // digest of the intent that the controller knew when the read began
	Held     []netip.Addr // proved to be in force
	Recorded []netip.Addr // fenced, or being fenced or lifted; all of Held
	Lifted   bool         // proved that no fence is left; Recorded is what can be forgotten
	Evidence []string     // what was read, such as ports, processes, method
	At       time.Time    // when the read began
	Err      string       // why the answer is missing or incomplete
	Missing  string       // why the fences are not held or not lifted yet
	// What an administrator has to do before a fence holds, or before it is lifted,
	// where fences of others are in the way.
	FenceBlocked, UnfenceBlocked string
}
