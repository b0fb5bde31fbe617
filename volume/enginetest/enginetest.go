// Package enginetest holds the conformance suite that every storage engine
// runs, and a reference engine in memory that is the model for it. An engine's
// own test calls Run with a Harness.
package enginetest

import (
	"context"
	"io"
	"testing"
	"time"

	"github.com/cleatproject/cleat/volume"
)

// Device is a volume opened for reading and writing, as its workload sees it.
type Device interface {
	io.ReaderAt
	io.WriterAt
	io.Closer
	// Size returns the bytes that the device has now.
	Size() (int64, error)
	// Sync makes what was written part of every snapshot cut afterwards.
	Sync() error
}

// Harness tells the suite how to reach one engine.
type Harness struct {
	// New makes a backend on storage of its own, which t.Cleanup removes. It
	// is called once for each part of the suite, so it should be quick.
	New func(t *testing.T) volume.Backend
	// Open opens the bytes of a volume.
	Open func(t *testing.T, b volume.Backend, v volume.Volume) Device
	// OpenSnapshot reads a snapshot as it lies in the storage; nil when the
	// engine has no such view. Snapshots are checked by restoring them, too.
	OpenSnapshot func(t *testing.T, b volume.Backend, s volume.Snapshot) io.ReaderAt
	// Hold marks a volume as used, as attaching it does; nil when nothing but
	// a real attach can do so.
	Hold func(t *testing.T, b volume.Backend, v volume.Volume) (release func())
	// Reopen closes the backend and opens another one on the same storage;
	// nil for an engine that keeps nothing.
	Reopen func(t *testing.T, b volume.Backend) volume.Backend
	// Size of the volumes that the suite makes, in bytes: a multiple of 1 MiB
	// and of what the engine counts in, 16 MiB when zero. The suite needs
	// room for about 40 thin ones.
	Size int64
	// Parameters go into every create.
	Parameters map[string]string
	// FSTypes are the file systems to create, the first one also where only
	// some file system is needed. Empty: raw volumes only.
	FSTypes []string
	// Changes are pairs of parameters that Modify takes and that differ from
	// Parameters, for an engine with a Modifier.
	Changes []map[string]string
	// Budget bounds the property test, 3 s when zero.
	Budget time.Duration
}

// Run holds an engine to its contract, as volume/engine.go words it. Abilities
// that the backend does not offer are named in the log; nothing is skipped.
func Run(t *testing.T, h Harness) {
	if h.Size == 0 {
		h.Size = 16 << 20
	}
	if h.Budget == 0 {
		h.Budget = 3 * time.Second
	}
	for _, part := range parts() {
		t.Run(part.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			part.run(&trial{T: t, Harness: h, ctx: ctx, Backend: h.New(t)})
		})
	}
}

type part struct {
	name string
	run  func(*trial)
}

func parts() []part {
	return []part{
		{"Abilities", testAbilities},
		{"Create", testCreate},
		{"CreateBadRequest", testCreateBadRequest},
		{"Names", testNames},
		{"Filesystems", testFilesystems},
		{"Delete", testDelete},
		{"ForeignIDs", testForeignIDs},
		{"List", testList},
		{"ListWhileDeleting", testListWhileDeleting},
		{"Expand", testExpand},
		{"Capacity", testCapacity},
		{"Cancelled", testCancelled},
		{"Concurrency", testConcurrency},
		{"Snapshots", testSnapshots},
		{"SnapshotList", testSnapshotList},
		{"Restore", testRestore},
		{"Clone", testClone},
		{"Groups", testGroups},
		{"Deltas", testDeltas},
		{"Modify", testModify},
		{"Health", testHealth},
		{"Reopen", testReopen},
		{"Model", testModel},
	}
}
