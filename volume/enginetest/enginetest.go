// Package enginetest contains the conformance suite for storage engines, and
// Reference, an in-memory engine that defines the expected results. The test of
// an engine calls Run with a Harness.
package enginetest

import (
	"context"
	"io"
	"testing"
	"time"

	"github.com/cleatproject/cleat/volume"
)

// Device is a volume that is open for reading and writing, as its workload sees
// it.
type Device interface {
	io.ReaderAt
	io.WriterAt
	io.Closer
	// Size returns the current size of the device, in bytes.
	Size() (int64, error)
	// Sync makes earlier writes part of every later snapshot.
	Sync() error
}

// Harness gives the suite access to one engine.
type Harness struct {
	// New returns a backend with empty storage of its own and removes both in
	// t.Cleanup. The suite calls it for each of its parts, so it should be
	// fast.
	New func(t *testing.T) volume.Backend
	// Open opens a volume for reading and writing.
	Open func(t *testing.T, b volume.Backend, v volume.Volume) Device
	// OpenSnapshot opens a snapshot for reading; nil if the engine cannot. The
	// suite also restores snapshots to check their content.
	OpenSnapshot func(t *testing.T, b volume.Backend, s volume.Snapshot) io.ReaderAt
	// Hold marks a volume as in use, as an attach does; nil if only an attach
	// can.
	Hold func(t *testing.T, b volume.Backend, v volume.Volume) (release func())
	// Reopen closes the backend and opens another one on the same storage; nil
	// for an engine without durable storage.
	Reopen func(t *testing.T, b volume.Backend) volume.Backend
	// Size is the size of the suite's volumes in bytes: a multiple of 1 MiB and
	// of the engine's allocation unit, 16 MiB if zero. The suite needs space
	// for about 40 thin volumes.
	Size int64
	// Parameters are passed to every Create.
	Parameters map[string]string
	// FSTypes are the supported file systems. The suite uses the first one
	// where any will do. Empty: raw volumes only.
	FSTypes []string
	// Changes are at least two parameter sets for Modify. They differ from each
	// other and from Parameters. Required if the backend has a Modifier.
	Changes []map[string]string
	// Budget is the duration of the property test, 3 s if zero.
	Budget time.Duration
}

// Run tests an engine against the contract in package volume. It logs
// unsupported abilities and skips their tests.
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
