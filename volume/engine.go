package volume

import (
	"context"
	"iter"
)

// Engine manages volumes. All methods are safe for concurrent use, also on the
// same object.
//
// Mutating methods are idempotent. A repeat of a call that a crash interrupted
// continues or restarts the work, and acknowledged results are durable. A
// method returns soon after its context is cancelled; unless its documentation
// says otherwise, the work is rolled back or left for a repeat.
type Engine interface {
	// Create creates a volume, or returns the volume that an equal request
	// created. Errors: Exists (another request used the name), NotFound (the
	// source does not exist), OutOfRange or Exhausted (size), Invalid
	// (parameter).
	Create(ctx context.Context, req CreateRequest) (Volume, error)
	// Delete deletes a volume and does nothing if the volume does not exist.
	// Its snapshots stay usable. Precondition: the volume is in use.
	Delete(ctx context.Context, id ID) error
	// Get returns a volume. NotFound: it does not exist.
	Get(ctx context.Context, id ID) (Volume, error)
	// List returns up to limit volumes (0: all) with ids greater than after, in
	// ascending order of ids.
	List(ctx context.Context, after ID, limit int) ([]Volume, error)
	// Expand grows a volume to at least size.Required and does nothing if the
	// volume is already large enough. OutOfRange: the volume is larger than
	// size.Limit, or the size is not available.
	Expand(ctx context.Context, id ID, size SizeRange) (Volume, error)
	// Capacity returns the space left for volumes with these parameters.
	Capacity(ctx context.Context, query CapacityQuery) (Capacity, error)
}

// CreateRequest describes the volume to create.
type CreateRequest struct {
	Name    string
	Size    SizeRange
	Content Content // Raw or Filesystem
	FSType  string  // for Filesystem; empty: the engine chooses
	Source  Source
	// Parameters are specific to the engine. An unknown key is Invalid.
	Parameters map[string]string
	Ephemeral  bool
}

// CapacityQuery limits a capacity request to one kind of volume.
type CapacityQuery struct {
	Content    Content // empty: any
	FSType     string
	Parameters map[string]string
}

// Snapshots is the optional ability to create snapshots, and volumes from them
// (CreateRequest.Source).
type Snapshots interface {
	// CreateSnapshot creates a snapshot, or returns the snapshot that an equal
	// request created. Exists: a snapshot of another source has the name.
	CreateSnapshot(ctx context.Context, req SnapshotRequest) (Snapshot, error)
	// DeleteSnapshot deletes a snapshot and does nothing if it does not exist.
	// Invalid: the snapshot belongs to a group and is deleted with the group.
	DeleteSnapshot(ctx context.Context, id SnapshotID) error
	// GetSnapshot returns a snapshot. NotFound: it does not exist.
	GetSnapshot(ctx context.Context, id SnapshotID) (Snapshot, error)
	// ListSnapshots returns the selected snapshots in ascending order of ids.
	ListSnapshots(ctx context.Context, query SnapshotQuery) ([]Snapshot, error)
}

// SnapshotRequest describes the snapshot to create.
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

// Groups is the optional ability to create snapshots of several volumes at one
// moment.
type Groups interface {
	// CreateGroup creates snapshots of all sources at one moment, or returns
	// the group that an equal request (same name, same set of sources) created.
	// Precondition: the sources cannot be snapshotted consistently in their
	// current use.
	CreateGroup(ctx context.Context, req GroupRequest) (Group, error)
	// DeleteGroup deletes a group with its snapshots and does nothing if it
	// does not exist.
	DeleteGroup(ctx context.Context, id GroupID) error
	// GetGroup returns a group. NotFound: it does not exist.
	GetGroup(ctx context.Context, id GroupID) (Group, error)
}

// GroupRequest describes the group of snapshots to create.
type GroupRequest struct {
	Name       string
	Sources    []ID
	Parameters map[string]string
}

// Deltas is the optional ability to list blocks that hold data without reading
// them.
type Deltas interface {
	// Allocated returns the ranges of a snapshot that can hold data.
	Allocated(ctx context.Context, id SnapshotID, from int64) (BlockMap, error)
	// Delta returns the ranges that differ from base to target, two snapshots
	// of one volume. Precondition: the backend has no delta for this pair; the
	// caller must copy everything.
	Delta(ctx context.Context, base, target SnapshotID, from int64) (BlockMap, error)
}

// BlockMap is a list of ranges in ascending order that neither touch nor
// overlap. The first range ends after the requested offset. An error ends the
// sequence: the ranges before it are incomplete.
type BlockMap struct {
	Size   int64 // of the volume, in bytes
	Ranges iter.Seq2[Range, error]
}

// Modifier changes parameters of a volume, also while it is in use. Omitted
// keys keep their values. Invalid: nothing was changed.
type Modifier interface {
	Modify(ctx context.Context, id ID, parameters map[string]string) (Volume, error)
}

// Health reports adverse conditions that the backend knows.
type Health interface {
	// VolumeHealth returns the conditions of one volume. NotFound: it does not
	// exist.
	VolumeHealth(ctx context.Context, id ID) ([]Condition, error)
	// StorageHealth returns the conditions of the storage that all volumes
	// share.
	StorageHealth(ctx context.Context) ([]Condition, error)
}

// Backend is an engine with its optional abilities; nil means not supported.
// The constructor of the engine sets the fields once, so that announced
// capabilities never depend on type assertions, which a wrapper would hide.
type Backend struct {
	Engine    Engine
	Snapshots Snapshots
	Groups    Groups
	Deltas    Deltas
	Modifier  Modifier
	Health    Health
	// Fencer fences clients of an engine that serves them remotely. It is nil
	// when all clients are on this machine.
	Fencer Fencer
	// Pool is the UUID of the pool that ids of this backend end in (NewID);
	// empty: ids name no pool.
	Pool string
	// Clones is set when CreateRequest.Source.Volume is supported.
	Clones bool
	// Parameters are the valid keys of CreateRequest.Parameters, for messages
	// and help. Mutable are the keys that Modify accepts.
	Parameters, Mutable []string
}
