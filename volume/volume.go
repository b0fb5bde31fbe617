// Package volume is the vocabulary of storage: what a volume, a snapshot and a
// group are, what an engine must offer, what it may offer, and the errors that
// all of them speak. It holds no behaviour beyond that of its own words.
package volume

import (
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/volume/access"
)

// Content says what the bytes of a volume are.
type Content string

const (
	// Raw is a block volume: its bytes belong to the workload.
	Raw Content = "raw"
	// Blank promises that every byte reads as zero and that nobody ever wrote;
	// only an engine may say so, and only a Blank volume may be formatted.
	Blank Content = "blank"
	// Filesystem is a volume that carries a file system made by cleat, or one
	// that came with the source it was copied from.
	Filesystem Content = "filesystem"
)

// Volume is one volume as its engine knows it.
type Volume struct {
	ID      ID
	Name    string
	Size    int64 // bytes
	Content Content
	FSType  string // ext4, xfs, btrfs; empty unless Content is Filesystem
	Source  Source
	Locator access.Access
	// Ephemeral volumes live and die with one publish; they are not listed to
	// an orchestrator.
	Ephemeral bool
	// Attributes are the values of the parameters that Modify may change, as
	// they are now.
	Attributes map[string]string
	Created    time.Time
	// Progress of the copy that fills the volume; Done when nothing runs.
	Progress Progress
}

// AccessMode says how often a volume can be published on its node at a time,
// and whether it can be written. The values are part of stored records.
type AccessMode string

// The access modes of a volume that is used on one node at a time.
const (
	SingleNodeWriter       AccessMode = "writer"        // one publish
	SingleNodeReaderOnly   AccessMode = "reader-only"   // one publish, never written
	SingleNodeSingleWriter AccessMode = "single-writer" // one publish
	SingleNodeMultiWriter  AccessMode = "multi-writer"  // any number of publishes
)

// CSIName returns the name of the mode in the CSI specification.
func (m AccessMode) CSIName() string {
	return "SINGLE_NODE_" + strings.ToUpper(strings.ReplaceAll(string(m), "-", "_"))
}

// Capability is a way to use a volume.
type Capability struct {
	Block bool
	// FSType is the file system that the volume must have; empty: any.
	FSType string
	// MountFlags can hold secrets: they never appear in messages or logs, and
	// only their digest is stored.
	MountFlags []string
	// MountGroup is the group that can read and write the whole volume; nil:
	// ownership is not changed.
	MountGroup *int
	Mode       AccessMode
}

// ReadOnly reports whether the access mode forbids writing.
func (c Capability) ReadOnly() bool { return c.Mode == SingleNodeReaderOnly }

// Source is what a volume was, or is to be, copied from. At most one field is
// set; the zero Source is an empty volume.
type Source struct {
	Volume   ID
	Snapshot SnapshotID
}

// IsZero reports whether there is no source.
func (s Source) IsZero() bool { return s == Source{} }

// Progress tells how far long work has come, in bytes.
type Progress struct {
	Done, Total int64
}

// Running reports whether there is work left.
func (p Progress) Running() bool { return p.Done < p.Total }

// SizeRange is a wish for a size in bytes; zero is "no wish" for either end.
type SizeRange struct {
	Required, Limit int64
}

// String is the range as a person reads it, ready to stand after "a size of".
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

// Choose returns the smallest size that satisfies the range, is at least
// minimum and is a multiple of granule; without a required size it starts from
// fallback. It fails with OutOfRange when there is none.
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
		return 0, errs.Errorf(errs.OutOfRange, "a size of %s is not possible: a volume here has at least %d bytes and a multiple of %d", r, minimum, granule)
	}
	return size, nil
}

const maxSize = 1<<63 - 1

// Client is who uses a volume; it is recorded when access is granted, never
// guessed later.
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
	Size    int64 // bytes a volume restored from it has at least
	Content Content
	FSType  string
	Created time.Time // the moment of the cut
	Ready   bool      // a volume may be made from it
	Group   GroupID   // set when it was cut with others and lives with them
	// Progress of the copy behind the cut, where the backend has to copy.
	Progress Progress
}

// Group is a set of snapshots cut at one moment.
type Group struct {
	ID        GroupID
	Name      string
	Snapshots []Snapshot
	Created   time.Time
	Ready     bool
}

// Capacity is what is left for new volumes of one kind, in bytes.
type Capacity struct {
	Available int64
	Maximum   int64 // largest single volume
	Minimum   int64 // smallest single volume
}

// Range is a run of bytes of a volume or snapshot.
type Range struct {
	Offset, Length int64
}

// End is the first byte behind the range.
func (r Range) End() int64 { return r.Offset + r.Length }

func (r Range) String() string { return fmt.Sprintf("[%d,%d)", r.Offset, r.End()) }

// Severity says how bad a condition is; the words are those of CSI 1.13.
type Severity string

const (
	Degraded     Severity = "DEGRADED"
	Inaccessible Severity = "INACCESSIBLE"
	DataLoss     Severity = "DATA_LOSS"
)

// Condition is one thing that is wrong with a volume, or, from StorageHealth,
// with the storage behind all of them. Reason is CamelCase and unique together
// with Severity.
type Condition struct {
	Severity Severity `json:"severity"`
	Reason   string   `json:"reason"`
	Message  string   `json:"message"`
}
