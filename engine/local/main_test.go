package local

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/linux/freeze"
	"github.com/cleatproject/cleat/internal/linux/loop"
	"github.com/cleatproject/cleat/internal/linux/scratchfs"
	"github.com/cleatproject/cleat/volume"
	"github.com/cleatproject/cleat/volume/access"
)

const mib = 1 << 20

// TestMain makes the test binary its own freeze guard, as the product is.
func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == "freeze-guard" {
		if err := freeze.RunGuard(os.Stdin, os.Stdout); err != nil {
			os.Exit(1)
		}
		return
	}
	goleak.VerifyTestMain(m)
}

// onXFS makes a pool directory whose files can share blocks.
func onXFS(t testing.TB) string { return scratchfs.Mount(t, "xfs", "-m", "reflink=1") }

// onExt4 makes one whose files cannot.
func onExt4(t testing.TB) string { return scratchfs.Mount(t, "ext4") }

// config is that of a pool of a few hundred MiB that promises far more. Its guard
// gets no environment; with this one the race detector does not wait a second at
// its end.
func config(pool string) Config {
	guard := freeze.NewGuard("/usr/bin/env", "GORACE=atexit_sleep_ms=0", fmt.Sprintf("/proc/%d/exe", os.Getpid()), "freeze-guard")
	return Config{Pool: pool, OverProvision: 100, Guard: guard}
}

// open opens an engine that t closes.
func open(t testing.TB, c Config) *Engine {
	t.Helper()
	e, err := Open(t.Context(), c)
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	t.Cleanup(func() { closeEngine(t, e) })
	return e
}

// closeEngine closes an engine; once more is harmless.
func closeEngine(t testing.TB, e *Engine) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := e.Close(ctx); err != nil {
		t.Errorf("Close: %v", err)
	}
}

// reopen closes an engine and opens another one on its pool.
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

// file is the backing file of a volume.
func file(e *Engine, v volume.Volume) string {
	return filepath.Join(e.pool.path, v.Locator.(access.File).Name)
}

// attach binds a volume to a device until release, or the end of the test.
func attach(t testing.TB, e *Engine, v volume.Volume) (d loop.Device, release func()) {
	t.Helper()
	f, err := os.OpenFile(file(e, v), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
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
