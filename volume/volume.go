// Package volume defines the storage model (volume, snapshot, group, fence) and
// the interfaces of storage engines. Errors have the kinds of package errs.
package volume

import (
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/volume/access"
)

// Content is the kind of content of a volume.
type Content string

const (
	// Raw is a block volume; the workload owns its content.
	Raw Content = "raw"
	// Blank volumes read as zero and were never written. Only an engine sets
	// Blank, and only Blank volumes are formatted.
	Blank Content = "blank"
	// Filesystem is a volume with a file system that cleat created or copied
	// from the source.
	Filesystem Content = "filesystem"
)

// Volume is a volume as its engine reports it.
type Volume struct {
	ID      ID
	Name    string
	Size    int64 // bytes
	Content Content
	FSType  string
	Source  Source
	Locator access.Access
	// Context has keys of the volume context besides those of the locator, for
	// node plugins of other drivers. It never changes.
	Context map[string]string
	// Topology has the segments of the nodes that reach the volume, if its engine
	// has several places; empty: all nodes that reach the engine.
	Topology map[string]string
	// ReadOnly: the content cannot be changed, as it is that of a snapshot.
	ReadOnly bool
	// Ephemeral volumes exist for one publish and are not listed.
	Ephemeral bool
	// Attributes are the mutable parameters.
	Attributes map[string]string
	Created    time.Time
	// of the copy that fills the volume.
	Progress Progress
}

// AccessMode limits the nodes that use a volume, and the publishes on each. The
// values are part of stored records.
type AccessMode string

const (
	SingleNodeWriter       AccessMode = "writer"        // one publish
	SingleNodeReaderOnly   AccessMode = "reader-only"   // one publish
	SingleNodeSingleWriter AccessMode = "single-writer" // one publish
	SingleNodeMultiWriter  AccessMode = "multi-writer"  // any number

	// On any number of nodes, any number of publishes: block volumes of a
	// Backend with MultiNode, and all volumes of one with SharedFS.
	MultiNodeReaderOnly  AccessMode = "multi-node-reader-only"
	MultiNodeMultiWriter AccessMode = "multi-node-multi-writer"
)

// CSIName returns the name in the CSI specification.
func (m AccessMode) CSIName() string {
	name := strings.ToUpper(strings.ReplaceAll(string(m), "-", "_"))
	if m.IsMultiNode() {
		return name
	}
	return "SINGLE_NODE_" + name
}

// IsMultiNode reports whether several nodes can use the volume at once.
func (m AccessMode) IsMultiNode() bool { return strings.HasPrefix(string(m), "multi-node-") }

// Capability is a way to use a volume.
type Capability struct {
	Block bool
	// empty: any.
	FSType string
	// MountFlags can hold secrets: they are never logged, and only their digest
	// is stored.
	MountFlags []string
	// MountGroup can read and write the whole volume; nil: ownership is not
	// changed.
	MountGroup *int
	Mode       AccessMode
}

// ReadOnly reports whether the access mode forbids writing.
func (c Capability) ReadOnly() bool {
	return c.Mode == SingleNodeReaderOnly || c.Mode == MultiNodeReaderOnly
}

// Source is what a volume is copied from. At most one field is set.
type Source struct {
	Volume   ID
	Snapshot SnapshotID
}

// IsZero reports whether there is no source.
func (s Source) IsZero() bool { return s == Source{} }

// Progress is the progress of a copy, in bytes.
type Progress struct {
	Done, Total int64
	// Failed says why the copy has ended with less than its source's content.
	Failed string
}

// Running reports whether the copy goes on.
func (p Progress) Running() bool { return p.Done < p.Total && p.Failed == "" }

// SizeRange is a requested size in bytes; zero means no bound.
type SizeRange struct {
	Required, Limit int64
}

// String describes the range for a message, after "a size of".
func (r SizeRange) String() string {
	switch {
	case r == SizeRange{}:
		return "any size"
	case r.Limit == 0:
		return fmt.Sprintf("at least %d bytes", r.Required)
	case r.Required == 0:
		return fmt.Sprintf("at most %d bytes", r.Limit)
	case r.Required == r.Limit:
		return fmt.Sprintf("exactly %d bytes", r.Required)
	}
	return fmt.Sprintf("between %d and %d bytes", r.Required, r.Limit)
}

// Admits reports whether a size satisfies the range.
func (r SizeRange) Admits(size int64) bool {
	return size >= r.Required && (r.Limit == 0 || size <= r.Limit)
}

// Choose returns the smallest multiple of granule in the range and not below
// minimum; fallback replaces a missing required size. OutOfRange: no such size
// exists.
func (r SizeRange) Choose(fallback, minimum, granule int64) (int64, error) {
	size := r.Required
	if size == 0 {
		size = fallback
		if r.Limit != 0 {
			size = min(size, r.Limit-r.Limit%granule)
		}
	}
	size = max(size, minimum)
	if rest := size % granule; rest != 0 {
		if size > maxSize-granule {
			return 0, errs.Errorf(errs.OutOfRange, "size %d bytes is larger than any volume can be", size)
		}
		size += granule - rest
	}
	if r.Limit != 0 && size > r.Limit {
		return 0, errs.Errorf(errs.OutOfRange, "a size of %s is not possible: sizes are at least %d bytes and multiples of %d", r, minimum, granule)
	}
	return size, nil
}

const maxSize = 1<<63 - 1

// Client is the user of a volume, recorded when access is granted.
type Client struct {
	Node    string       `json:"node"`
	HostNQN string       `json:"hostNQN,omitempty"`
	Addrs   []netip.Addr `json:"addrs,omitempty"`
}

// Snapshot is a copy of a volume at one moment.
type Snapshot struct {
	ID      SnapshotID
	Name    string
	Source  ID
	Size    int64 // minimum size of a restored volume, in bytes
	Content Content
	FSType  string
	Created time.Time // when the content was frozen
	Ready   bool
	Group   GroupID // set for a member, deleted with the group
	// for backends that have to copy
	Progress Progress
}

// Group is a set of snapshots of one moment.
type Group struct {
	ID        GroupID
	Name      string
	Snapshots []Snapshot
	Created   time.Time
	Ready     bool
}

// Capacity is the space left for one kind of volume, in bytes.
type Capacity struct {
	Available int64
	Maximum   int64 // largest single volume
	Minimum   int64 // smallest single volume
}

// Range is a range of bytes.
type Range struct {
	Offset, Length int64
}

// End returns the offset after the last byte.
func (r Range) End() int64 { return r.Offset + r.Length }

func (r Range) String() string { return fmt.Sprintf("[%d,%d)", r.Offset, r.End()) }
