// Package enginetest contains the conformance suite for storage engines (Run),
// and Reference, an in-memory engine that defines the expected results.
package enginetest

import (
	"cmp"
	"context"
	"io"
	"testing"
	"time"

	"github.com/cleatproject/cleat/volume"
)

// Device is an open volume, as its workload sees it.
type Device interface {
	io.ReaderAt
	io.WriterAt
	io.Closer
	// Size returns the current size in bytes.
	Size() (int64, error)
	// Sync makes earlier writes part of every later snapshot.
	Sync() error
}

// Harness gives the suite access to one engine.
type Harness struct {
	// New returns a backend with its own empty storage and removes both in
	// t.Cleanup. It is called often.
	New  func(t *testing.T) volume.Backend
	Open func(t *testing.T, b volume.Backend, v volume.Volume) Device
	// OpenSnapshot is nil if the engine cannot read snapshots.
	OpenSnapshot func(t *testing.T, b volume.Backend, s volume.Snapshot) io.ReaderAt
	// Hold marks a volume as in use, as an attach does; nil if impossible.
	Hold func(t *testing.T, b volume.Backend, v volume.Volume) (release func())
	// Reopen restarts the backend on the same storage; nil without durable
	// storage.
	Reopen func(t *testing.T, b volume.Backend) volume.Backend
	// Size of volumes in bytes (0: 16 MiB): a multiple of 1 MiB and of the
	// engine's allocation unit. The suite needs space for about 40 thin
	// volumes.
	Size int64
	// Parameters are passed to every Create.
	Parameters map[string]string
	// Content of all volumes that are not for a test of file systems; empty: Raw.
	// Engines with SharedFS have only Filesystem.
	Content volume.Content
	// FSTypes are the supported file systems, the preferred one first. Empty:
	// raw volumes only.
	FSTypes []string
	// Changes are two or more parameter sets for Modify that differ from each
	// other and from Parameters. Required with a Modifier.
	Changes []map[string]string
	// Budget is the duration of the property test, 3 s if zero.
	Budget time.Duration
}

// Run tests an engine against the contract in package volume, and skips
// unsupported abilities.
func Run(t *testing.T, h Harness) {
	if h.Size == 0 {
		h.Size = 16 << 20
	}
	h.Content = cmp.Or(h.Content, volume.Raw)
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
		{"OldData", testOldData},
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
