package plan

import (
	"net/netip"
	"time"
)

// Observation is what Next decides from. It is complete or it is not made: a
// read of the API server that fails has no Observation. Rules for its maker:
//
//  1. Remediation is read first and again at the end, the second time uncached.
//     If its resourceVersion differs, the observation is discarded.
//  2. All else is read between these two, uncached. So Node, volumes and
//     read-backs are newer than the status, and were read before it changed.
//  3. Writes to Remediation and Node carry the resourceVersion that was
//     observed.
type Observation struct {
	Now         time.Time
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
	// DriversWord: the backend is another vendor's driver, whose answer cannot be
	// read back.
	DriversWord bool
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

// Off is a person's confirmation that machines are off or were rebooted.
type Off struct {
	Record   string // digest of the record that the person was shown
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

// Claim is the controller's annotation on a Node. A kubelet could change it, so
// that it only decides about cordon and order of writes.
type Claim struct {
	Remediation string `json:"remediation"` // UID; empty without a claim
	Term        int64  `json:"term"`        // of the leader that wrote it
	Cordoned    bool   `json:"cordoned"`    // the controller cordoned the node, not a person
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
	Intent   string       // digest of the intent that was in the status when the read began
	Held     []netip.Addr // proved to be in force
	Recorded []netip.Addr // fenced, or being fenced or lifted; all of Held
	Evidence []string     // what was read, such as ports, processes, method
	At       time.Time    // when the read began
	Err      string       // why the answer is missing or incomplete
}
