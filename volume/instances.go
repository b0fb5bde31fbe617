package volume

import (
	"context"
	"net/netip"
	"time"
)

// Instance is one use of a volume by a client of a cluster, such as a mapped
// device. It can be fenced by its nonce, also when the cluster lists it no
// more: a node that lost its network disappears there after 30 s, but its
// device can write again as soon as the node's address is unfenced.
type Instance struct {
	Volume ID         `json:"volume"`
	Addr   netip.Addr `json:"addr"`
	Nonce  uint32     `json:"nonce"`
	Client uint64     `json:"client"` // the cluster's number of the instance
	Seen   time.Time  `json:"seen"`   // last recorded, to the hour
}

// Instances records the client instances that an engine's storage lists.
type Instances interface {
	Grants
	// Watched returns the volumes whose client instances are to be listed, those of
	// some nodes or of all.
	Watched(ctx context.Context, nodes ...string) (map[ID]bool, error)
	// RecordInstances records instances durably, with the current time. It removes
	// those that were not seen for a day, if their volume has no grant and they are
	// not fenced. It writes only changes. Invalid: an invalid address or volume ID.
	RecordInstances(ctx context.Context, seen []Instance) error
	// RecordLook records durably what a look says about the granted volumes, after
	// RecordInstances. It returns those of which an instance was possibly missed,
	// with this look for the first time. With the zero Begun nothing counts as listed
	// now: a process that starts calls it so, before it revokes a grant.
	RecordLook(ctx context.Context, look Look) (missed []MissedUse, err error)
}

// Look is an attempt to list the client instances of volumes.
type Look struct {
	Begun time.Time
	All   bool // Volumes are all that Watched returned
	// Volumes has whether the instances of a volume were listed.
	Volumes map[ID]bool
	// Blocked reports whether the cluster blocks all addresses of a client: it
	// lists no instance of it, and no new one can come.
	Blocked func(Client) bool
	// Expiry is how long the cluster lists an instance that it does not reach.
	Expiry time.Duration
	// Boots are the reports of all nodes, read before Begun; nil: not read.
	Boots map[string]Boot
}

// MissedUse is a use of a volume of which an instance was possibly not listed.
type MissedUse struct {
	Volume ID
	Node   string
	Since  time.Time // the last look, or the grant if that is later
}

// Boot is the last report of a node about the run of its kernel. A node reports
// a boot before it attaches a volume in it.
type Boot struct {
	ID string `json:"id"` // the kernel's boot id
	// Machine identifies the machine and the time since which no other one has
	// reported for the node. Empty: not known.
	Machine string `json:"machine"`
	// Late: volumes were attached in this boot before it was reported.
	Late bool `json:"late,omitempty"`
}
