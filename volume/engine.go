package volume

import (
	"context"
	"iter"
)

// Engine manages volumes. All methods are safe for concurrent use, also on the
// same object.
//
// Mutating methods are idempotent and durable; a repeat after a crash continues
// or restarts the work. A method returns soon after its context is cancelled;
// unless documented otherwise, the work is rolled back or left for a repeat.
type Engine interface {
	// Create creates a volume, or returns that of an equal request. Errors:
	// Exists (the name is used by another request), NotFound (source),
	// OutOfRange or Exhausted (size), Invalid (parameter).
	Create(ctx context.Context, req CreateRequest) (Volume, error)
	// Delete deletes a volume. It is a no-op if the volume does not exist.
	// Snapshots stay usable. Precondition: the volume is in use.
	Delete(ctx context.Context, id ID) error
	// Get returns a volume. NotFound: it does not exist.
	Get(ctx context.Context, id ID) (Volume, error)
	// List returns up to limit volumes (0: all) with ids greater than after,
	// ascending.
	List(ctx context.Context, after ID, limit int) ([]Volume, error)
	// Expand grows a volume to at least size.Required. OutOfRange: the volume
	// is larger than size.Limit, or the size is not available.
	Expand(ctx context.Context, id ID, size SizeRange) (Volume, error)
	// Capacity returns the space left for volumes with these parameters.
	Capacity(ctx context.Context, query CapacityQuery) (Capacity, error)
}

// CreateRequest describes a new volume.
type CreateRequest struct {
	Name    string
	Size    SizeRange
	Content Content // Raw or Filesystem
	FSType  string  // empty: the engine chooses
	Source  Source
	// Parameters are the engine's; an unknown key is Invalid.
	Parameters map[string]string
	Ephemeral  bool
	// ReadOnly: no capability of the request writes. The engine can then return
	// the content of the source itself instead of a copy.
	ReadOnly bool
	// Topology has segments of nodes, the preferred ones first. One of them must
	// reach the volume; empty: any node. Only engines with several places get it.
	Topology []map[string]string
}

// CapacityQuery selects one kind of volume.
type CapacityQuery struct {
	Content    Content // empty: any
	FSType     string
	Parameters map[string]string
	// Topology has the segments of a node that must reach the volume; empty:
	// any. Only engines with several places get it.
	Topology map[string]string
}

// Snapshots is the ability to create snapshots, and volumes from them
// (CreateRequest.Source).
type Snapshots interface {
	// CreateSnapshot creates a snapshot, or returns that of an equal request.
	// Exists: a snapshot of another source has the name.
	CreateSnapshot(ctx context.Context, req SnapshotRequest) (Snapshot, error)
	// DeleteSnapshot deletes a snapshot. It is a no-op if the snapshot does not
	// exist. Invalid: a group's member is deleted with the group.
	DeleteSnapshot(ctx context.Context, id SnapshotID) error
	// GetSnapshot returns a snapshot. NotFound: it does not exist.
	GetSnapshot(ctx context.Context, id SnapshotID) (Snapshot, error)
	// ListSnapshots returns the selected snapshots in ascending order of ids.
	ListSnapshots(ctx context.Context, query SnapshotQuery) ([]Snapshot, error)
}

// SnapshotRequest describes a new snapshot.
type SnapshotRequest struct {
	Name       string
	Source     ID
	Parameters map[string]string
}

// SnapshotQuery selects snapshots with ids greater than After, of one source if
// Source is set, at most Limit (0: all).
type SnapshotQuery struct {
	Source ID
	After  SnapshotID
	Limit  int
}

// Groups is the ability to create snapshots of several volumes at one moment.
type Groups interface {
	// CreateGroup creates snapshots of all sources, or returns the group of an
	// equal request (name and set of sources). Precondition: the sources cannot
	// be snapshotted consistently in their current use.
	CreateGroup(ctx context.Context, req GroupRequest) (Group, error)
	// DeleteGroup deletes a group with its snapshots. It is a no-op if the
	// group does not exist.
	DeleteGroup(ctx context.Context, id GroupID) error
	// GetGroup returns a group. NotFound: it does not exist.
	GetGroup(ctx context.Context, id GroupID) (Group, error)
}

// GroupRequest describes a new group.
type GroupRequest struct {
	Name       string
	Sources    []ID
	Parameters map[string]string
}

// Deltas is the ability to list blocks that hold data without reading them.
type Deltas interface {
	// Allocated returns the ranges that can hold data.
	Allocated(ctx context.Context, id SnapshotID, from int64) (BlockMap, error)
	// Delta returns the ranges that differ from base to target, two snapshots
	// of one volume. Precondition: not available for this pair; the caller must
	// copy everything.
	Delta(ctx context.Context, base, target SnapshotID, from int64) (BlockMap, error)
}

// BlockMap lists ascending ranges that neither touch nor overlap; the first
// ends after the requested offset. An error ends the sequence.
type BlockMap struct {
	Size   int64 // of the volume, in bytes
	Ranges iter.Seq2[Range, error]
}

// Modifier changes parameters, also of a volume in use. Omitted keys keep their
// values. Invalid: nothing was changed.
type Modifier interface {
	Modify(ctx context.Context, id ID, parameters map[string]string) (Volume, error)
}

// Health reports adverse conditions.
type Health interface {
	// VolumeHealth returns the conditions of one volume. NotFound: it does not
	// exist.
	VolumeHealth(ctx context.Context, id ID) ([]Condition, error)
	// StorageHealth returns the conditions of the storage that all volumes
	// share.
	StorageHealth(ctx context.Context) ([]Condition, error)
}

// Granter admits clients to volumes at the storage itself.
type Granter interface {
	// Enforce makes the clients that the storage admits to a volume those that
	// have a recorded grant and are not fenced. When it returns nil, these can
	// connect, and nothing that others send is accepted. It is idempotent; a
	// missing volume is no error.
	Enforce(ctx context.Context, id ID) error
	// Revoke is Enforce when a node (empty: every node) loses its grant. It also
	// shuts out a host that the storage admits without a grant, as after the
	// adoption of a volume, if it is that of the node. After an error the host
	// can still be admitted.
	Revoke(ctx context.Context, id ID, node string) error
}

// Backend is an engine with its optional abilities; nil means not supported.
// Fields replace type assertions, which a wrapper would hide.
type Backend struct {
	Engine    Engine
	Snapshots Snapshots
	Groups    Groups
	Deltas    Deltas
	Modifier  Modifier
	Health    Health
	// Granter is nil if the storage does not distinguish clients.
	Granter Granter
	// Fencer is nil when all clients are on this machine.
	Fencer Fencer
	// Pool is the pool's UUID in ids (NewID); empty: ids name no pool.
	Pool string
	// Clones allows CreateRequest.Source.Volume.
	Clones bool
	// MultiNode: volumes are reachable from every node, and block volumes can
	// be used on several at once. Otherwise they are on this machine.
	MultiNode bool
	// SharedFS is the type of the file system, such as "ceph", if volumes are
	// directories in one that several nodes mount at once: they have no block
	// device, and Content Filesystem. Empty: volumes are block devices. Requires
	// MultiNode.
	SharedFS string
	// FormatOnNode: Create leaves a volume with Content Filesystem blank, and a
	// node creates the file system when it stages it.
	FormatOnNode bool
	// Parameters are the valid keys, Mutable those that Modify accepts.
	Parameters, Mutable []string
}
