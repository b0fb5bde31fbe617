package volume

import (
	"context"
	"iter"
)

// Engine keeps volumes. Every method may be called by many goroutines at once,
// also for one object. Every mutating call may be repeated, and may be cut
// half-way by a crash: a repeat continues or starts again, and what was
// acknowledged stays. A cancelled context makes the call return soon; unless
// the method says otherwise what was begun is then rolled back or left for the
// repeat.
type Engine interface {
	// Create makes a volume, or returns the one that the same request made
	// before. Exists: the name is taken by a different volume. NotFound: no
	// such source. OutOfRange, Exhausted: the size. Invalid: a parameter.
	Create(ctx context.Context, req CreateRequest) (Volume, error)
	// Delete removes a volume; one that is not there is no error.
	// Precondition: it is in use. Snapshots of it stay usable.
	Delete(ctx context.Context, id ID) error
	// Get returns one volume, or NotFound.
	Get(ctx context.Context, id ID) (Volume, error)
	// List returns up to limit volumes (0: all) whose ids sort behind after,
	// in the order of their ids.
	List(ctx context.Context, after ID, limit int) ([]Volume, error)
	// Expand grows a volume to at least size.Required; a volume that is large
	// enough stays as it is. OutOfRange: larger than size.Limit already, or
	// not to be had.
	Expand(ctx context.Context, id ID, size SizeRange) (Volume, error)
	// Capacity tells what is left for volumes made with these parameters.
	Capacity(ctx context.Context, query CapacityQuery) (Capacity, error)
}

// CreateRequest asks for a volume.
type CreateRequest struct {
	Name    string
	Size    SizeRange
	Content Content // Raw or Filesystem
	FSType  string  // for Filesystem; empty is the engine's choice
	Source  Source
	// Parameters are the engine's own; an unknown one is Invalid.
	Parameters map[string]string
	Ephemeral  bool
}

// CapacityQuery narrows a question for capacity to a kind of volume.
type CapacityQuery struct {
	Content    Content // empty: any
	FSType     string
	Parameters map[string]string
}

// Snapshots is the ability to cut snapshots and to make volumes from them
// (CreateRequest.Source).
type Snapshots interface {
	// CreateSnapshot cuts a snapshot, or returns the one that the same
	// request cut before. Exists: the name is taken by one of another source.
	CreateSnapshot(ctx context.Context, req SnapshotRequest) (Snapshot, error)
	// DeleteSnapshot removes a snapshot; one that is not there is no error.
	// Invalid: it is a member of a group and lives with it.
	DeleteSnapshot(ctx context.Context, id SnapshotID) error
	// GetSnapshot returns one snapshot, or NotFound.
	GetSnapshot(ctx context.Context, id SnapshotID) (Snapshot, error)
	// ListSnapshots returns snapshots in the order of their ids.
	ListSnapshots(ctx context.Context, query SnapshotQuery) ([]Snapshot, error)
}

// SnapshotRequest asks for a snapshot.
type SnapshotRequest struct {
	Name       string
	Source     ID
	Parameters map[string]string
}

// SnapshotQuery selects snapshots: those whose ids sort behind After, of one
// source where Source is set, at most Limit (0: all).
type SnapshotQuery struct {
	Source ID
	After  SnapshotID
	Limit  int
}

// Groups is the ability to cut several volumes at one moment.
type Groups interface {
	// CreateGroup cuts all sources at one moment, or returns the group that
	// the same request (name, set of sources) cut before. Precondition: the
	// sources cannot be cut consistently as they are used now.
	CreateGroup(ctx context.Context, req GroupRequest) (Group, error)
	// DeleteGroup removes a group with its snapshots; absent is no error.
	DeleteGroup(ctx context.Context, id GroupID) error
	// GetGroup returns one group, or NotFound.
	GetGroup(ctx context.Context, id GroupID) (Group, error)
}

// GroupRequest asks for a group of snapshots.
type GroupRequest struct {
	Name       string
	Sources    []ID
	Parameters map[string]string
}

// Deltas tells which blocks hold data without reading them.
type Deltas interface {
	// Allocated tells which ranges of a snapshot may hold data.
	Allocated(ctx context.Context, id SnapshotID, from int64) (BlockMap, error)
	// Delta tells which ranges differ from base to target, two snapshots of
	// one volume. Precondition: this backend cannot tell for this pair; the
	// caller must copy everything.
	Delta(ctx context.Context, base, target SnapshotID, from int64) (BlockMap, error)
}

// BlockMap is a list of ranges in ascending order that neither touch nor
// overlap, the first one ending behind the offset that was asked for. An error
// in the sequence ends it: what came before is then not the whole answer.
type BlockMap struct {
	Size   int64 // of the volume, in bytes
	Ranges iter.Seq2[Range, error]
}

// Modifier changes parameters of a volume in use; keys left out stay as they
// are. Invalid means that nothing was changed.
type Modifier interface {
	Modify(ctx context.Context, id ID, parameters map[string]string) (Volume, error)
}

// Health tells what is wrong, as the backend sees it.
type Health interface {
	// VolumeHealth returns the adverse conditions of one volume, or NotFound.
	VolumeHealth(ctx context.Context, id ID) ([]Condition, error)
	// StorageHealth returns those of the storage behind all volumes.
	StorageHealth(ctx context.Context) ([]Condition, error)
}

// Backend is an engine with those of its abilities that it has here and now:
// nil is "not offered". The engine's constructor decides once, so that what is
// announced never depends on a type assertion that a wrapper hides.
type Backend struct {
	Engine    Engine
	Snapshots Snapshots
	Groups    Groups
	Deltas    Deltas
	Modifier  Modifier
	Health    Health
	// Fencer cuts clients off where the engine itself serves them; nil also
	// where there is nothing remote to cut, as with files of this machine.
	Fencer Fencer
	// Pool is the UUID of the pool that ids of this backend end in (NewID);
	// empty where they name none.
	Pool string
	// Clones is set when CreateRequest.Source.Volume is served.
	Clones bool
	// Parameters are the keys that CreateRequest.Parameters may hold, for
	// messages and help; Mutable are those that Modify takes.
	Parameters, Mutable []string
}
