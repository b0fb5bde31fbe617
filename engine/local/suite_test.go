package local

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/linux/freeze"
	"github.com/cleatproject/cleat/internal/linux/kernelcall"
	"github.com/cleatproject/cleat/internal/linux/loop"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/test/testkit/scratchfs"
	"github.com/cleatproject/cleat/volume"
	"github.com/cleatproject/cleat/volume/access"
	"github.com/cleatproject/cleat/volume/enginetest"
)

const mib = 1 << 20

// The test binary is its own freeze guard.
func TestMain(m *testing.M) {
	kernelcall.Main()
	if len(os.Args) == 2 && os.Args[1] == "freeze-guard" {
		if err := freeze.RunGuard(os.Stdin, os.Stdout); err != nil {
			os.Exit(1)
		}
		return
	}
	goleak.VerifyTestMain(m)
}

// Files can share blocks.
func onXFS(t testing.TB) string { return scratchfs.Mount(t, "xfs", "-m", "reflink=1") }

// Files cannot share blocks.
func onExt4(t testing.TB) string { return scratchfs.Mount(t, "ext4") }

// The pool promises more than it has. With this environment the guard's race
// detector does not wait a second at exit.
func config(pool string) Config {
	guard := freeze.NewGuard("/usr/bin/env", "GORACE=atexit_sleep_ms=0", fmt.Sprintf("/proc/%d/exe", os.Getpid()), "freeze-guard")
	return Config{Pool: pool, OverProvision: 100, Guard: guard}
}

func open(t testing.TB, c Config) *Engine {
	t.Helper()
	e, err := Open(t.Context(), c)
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	t.Cleanup(func() { closeEngine(t, e) })
	return e
}

// A repeat is harmless.
func closeEngine(t testing.TB, e *Engine) {
	t.Helper()
	if err := e.Close(testkit.Context(t)); err != nil {
		t.Errorf("Close: %v", err)
	}
}

func reopen(t testing.TB, e *Engine) *Engine {
	t.Helper()
	closeEngine(t, e)
	return open(t, config(e.pool.path))
}

func create(t testing.TB, e *Engine, req volume.CreateRequest) volume.Volume {
	t.Helper()
	if req.Content == "" {
		req.Content = volume.Raw
	}
	v, err := e.Create(t.Context(), req)
	if err != nil {
		t.Fatalf("Create(%+v): %v", req, err)
	}
	return v
}

func snapshot(t testing.TB, e *Engine, name string, source volume.ID) volume.Snapshot {
	t.Helper()
	s, err := e.CreateSnapshot(t.Context(), volume.SnapshotRequest{Name: name, Source: source})
	if err != nil {
		t.Fatalf("CreateSnapshot(%s): %v", name, err)
	}
	return s
}

func wantKind(t testing.TB, err error, what string, kind errs.Kind) {
	t.Helper()
	if err == nil || errs.KindOf(err) != kind {
		t.Errorf("%s: %v (%s), want %s", what, err, errs.KindOf(err), kind)
	} else {
		t.Logf("%s: %v", what, err)
	}
}

// refused is wantKind for a call that returns more than an error.
func refused(t testing.TB, what string, kind errs.Kind) func(any, error) {
	t.Helper()
	return func(_ any, err error) {
		t.Helper()
		wantKind(t, err, what, kind)
	}
}

func file(e *Engine, v volume.Volume) string {
	return filepath.Join(e.pool.path, v.Locator.(access.File).Name)
}

func attach(t testing.TB, e *Engine, v volume.Volume) (d loop.Device, release func()) {
	t.Helper()
	f := testkit.Value(os.OpenFile(file(e, v), os.O_RDWR, 0))(t)
	defer f.Close()
	d, device, err := loop.Attach(t.Context(), loop.Config{File: f})
	if err != nil {
		t.Fatalf("attach %s: %v", v.ID, err)
	}
	device.Close()
	done := false
	release = func() {
		if done {
			return
		}
		done = true
		if err := loop.Detach(context.Background(), d); err != nil {
			t.Errorf("detach %s: %v", d.Path, err)
		}
	}
	t.Cleanup(release)
	return d, release
}

func TestConformanceOnXFS(t *testing.T) { enginetest.Run(t, harness(onXFS)) }

func TestConformanceOnExt4(t *testing.T) { enginetest.Run(t, harness(onExt4)) }

// as the workload sees the volume
type backingFile struct{ *os.File }

func (f backingFile) Size() (int64, error) {
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}

func harness(pool func(testing.TB) string) enginetest.Harness {
	engineOf := func(b volume.Backend) *Engine { return b.Engine.(*Engine) }
	return enginetest.Harness{
		New: func(t *testing.T) volume.Backend { return open(t, config(pool(t))).Backend() },
		Open: func(t *testing.T, b volume.Backend, v volume.Volume) enginetest.Device {
			f := testkit.Value(os.OpenFile(file(engineOf(b), v), os.O_RDWR, 0))(t)
			return backingFile{f}
		},
		OpenSnapshot: func(t *testing.T, b volume.Backend, s volume.Snapshot) io.ReaderAt {
			return testkit.Open(os.Open(filepath.Join(engineOf(b).pool.path, snapshotFile(s.ID))))(t)
		},
		Hold: func(t *testing.T, b volume.Backend, v volume.Volume) func() {
			_, release := attach(t, engineOf(b), v)
			return release
		},
		Reopen: func(t *testing.T, b volume.Backend) volume.Backend {
			return reopen(t, engineOf(b)).Backend()
		},
		Size:    8 * mib, // a scratch pool has some 128 MiB for thick promises
		FSTypes: []string{"ext4"},
		Changes: []map[string]string{
			{"provisioning": "thick"}, {"provisioning": "thin", "trimInterval": "1h0m0s"}, {"readAheadKiB": "256"},
		},
	}
}

// Crash tests kill the process at these points. A durable or kernel state
// changes between any two points.
var crashPoints = []string{
	// Create, except for copies; cloned and formatted exclude each other.
	"create.begun", "create.cloned", "create.formatted", "create.filled", "create.recorded",
	"place.renamed", // of volumes and snapshots
	// Clones of mounted file systems.
	"clone.intent", "clone.frozen", "clone.cloned", "clone.thawed",
	// CreateSnapshot and CreateGroup with shared blocks.
	"snapshot.begun", "snapshot.filled", "snapshot.recorded",
	// Copies: Create from a source, CreateSnapshot and CreateGroup without
	// shared blocks.
	"copy.intent", "copy.pinned", "copy.recorded", "copy.synced", "copy.filled", "copy.finishing", "copy.unpinned",
	"delete.marked", "delete.removed", "delete.recorded",
	"delete-snapshot.marked", "delete-group.marked", "delete-snapshot.removed", "delete-snapshot.recorded", // the last two also DeleteGroup
	"expand.allocated", "expand.grown", "expand.recorded",
	"modify.intent", "modify.thickened", "modify.noted", "modify.applied",
	// Open.
	"image.allocated", "image.filled", "image.renamed", "image.attached", "image.mounted", "image.grown",
	"recover.thawed", "recover.incoming", "recover.volume", "recover.group", "recover.snapshot",
	"remove.mounted", "remove.file", "remove.directories", "remove.records", "remove.forgotten", "remove.identity", "remove.unmounted", "remove.image",
}

func TestCrashPoints(t *testing.T) {
	if diff := cmp.Diff(slices.Sorted(slices.Values(crashPoints)), testkit.CrashPoints(t)); diff != "" {
		t.Errorf("the list of crash points and the code differ:\n%s", diff)
	}
}
