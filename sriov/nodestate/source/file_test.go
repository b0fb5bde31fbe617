package source_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/cleatproject/cleat/internal/strictjson"
	"github.com/cleatproject/cleat/sriov/nodestate/source"
	"github.com/cleatproject/cleat/test/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func run(t *testing.T, s source.Source) <-chan source.Update {
	t.Helper()
	out := make(chan source.Update, 100)
	testkit.Go(t, func(ctx context.Context) error { return s.Run(ctx, func(u source.Update) { out <- u }) })
	return out
}

func silent(t *testing.T, out <-chan source.Update) {
	t.Helper()
	select {
	case u := <-out:
		t.Errorf("unexpected update: %+v", u)
	case <-time.After(700 * time.Millisecond):
	}
}

func generation(n int64) func(source.Update) bool {
	return func(u source.Update) bool { return u.Err == nil && !u.Gone && u.State.Generation == n }
}

func failed(u source.Update) bool { return u.Err != nil }

func gone(u source.Update) bool { return u.Gone }

func state(generation int, mtu int) string {
	return fmt.Sprintf(`apiVersion: sriovnetwork.openshift.io/v1
kind: SriovNetworkNodeState
metadata: {name: n1, generation: %d}
spec:
  interfaces:
  - {pciAddress: "0000:3b:00.0", numVfs: 4, mtu: %d}
`, generation, mtu)
}

func write(t *testing.T, path, text string) {
	t.Helper()
	testkit.Must(t, os.WriteFile(path+".tmp", []byte(text), 0o600), os.Rename(path+".tmp", path))
}

func TestFileSendsEachChangeOnce(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "state.yaml")
	out := run(t, source.NewFile(path, nil))
	if u := testkit.Receive(t, "an update", out); !u.Gone {
		t.Fatalf("without a file: %+v", u)
	}
	write(t, path, state(1, 1500))
	if u := testkit.Receive(t, "an update", out); !generation(1)(u) || u.State.Spec.Interfaces[0].MTU != 1500 {
		t.Fatalf("%+v", u)
	}
	write(t, path, state(1, 1500))
	testkit.Must(t, os.WriteFile(filepath.Join(filepath.Dir(path), "other"), nil, 0o600))
	silent(t, out)
	// In place, as some editors do.
	testkit.Must(t, os.WriteFile(path, []byte(state(2, 9000)), 0o600))
	testkit.ReceiveUntil(t, "generation 2", out, generation(2))
	write(t, path, state(2, 4000))
	if u := testkit.Receive(t, "an update", out); !generation(2)(u) || u.State.Spec.Interfaces[0].MTU != 4000 {
		t.Fatalf("%+v", u)
	}
	testkit.Must(t, os.Remove(path))
	if u := testkit.Receive(t, "an update", out); !u.Gone {
		t.Fatalf("%+v", u)
	}
	silent(t, out)
	write(t, path, state(2, 4000))
	if u := testkit.Receive(t, "an update", out); !generation(2)(u) {
		t.Fatalf("the same file again: %+v", u)
	}
}

func TestInvalidFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "state.yaml")
	write(t, path, state(1, 1500))
	out := run(t, source.NewFile(path, nil))
	testkit.ReceiveUntil(t, "generation 1", out, generation(1))
	write(t, path, "spec: [")
	u := testkit.Receive(t, "an update", out)
	if !failed(u) || !strings.Contains(u.Err.Error(), path) {
		t.Fatalf("%+v", u)
	}
	if _, ok := errors.AsType[*strictjson.Problem](u.Err); !ok {
		t.Errorf("the cause is lost: %v", u.Err)
	}
	write(t, path, "spec: [")
	silent(t, out)
	write(t, path, state(1, 1500)) // ends the error
	if u := testkit.Receive(t, "an update", out); !generation(1)(u) {
		t.Fatalf("%+v", u)
	}
	testkit.Must(t, os.Remove(path), syscall.Mkfifo(path, 0o600))
	if u := testkit.ReceiveUntil(t, "an error", out, failed); !strings.Contains(u.Err.Error(), "is not a regular file") {
		t.Errorf("%v", u.Err)
	}
}

// A part of a file can be valid. It is no desired state.
func TestFileBeingWritten(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "state.yaml")
	write(t, path, state(1, 1500))
	out := run(t, source.NewFile(path, nil))
	testkit.ReceiveUntil(t, "generation 1", out, generation(1))
	f := testkit.Value(os.Create(path))(t)
	defer func() { _ = f.Close() }()
	testkit.Value(f.WriteString(state(2, 1500)))(t)
	testkit.Must(t, os.WriteFile(filepath.Join(filepath.Dir(path), "other"), nil, 0o600)) // an event
	if u := testkit.Receive(t, "an update", out); !failed(u) || !strings.Contains(u.Err.Error(), path+": open for writing") {
		t.Fatalf("%+v", u)
	}
	testkit.Value(f.WriteString("  - {pciAddress: \"0000:3b:00.1\", numVfs: 4}\n"))(t)
	testkit.Must(t, f.Close())
	if u := testkit.Receive(t, "an update", out); !generation(2)(u) || len(u.State.Spec.Interfaces) != 2 {
		t.Fatalf("%+v", u)
	}
}

// Editors can remove a file for a moment.
func TestFileMissingBriefly(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.yaml")
	write(t, path, state(1, 1500))
	out := run(t, source.NewFile(path, nil))
	testkit.ReceiveUntil(t, "generation 1", out, generation(1))
	went := time.Now()
	testkit.Must(t, os.Rename(path, path+"~"))
	time.Sleep(100 * time.Millisecond) // seen as missing
	write(t, path, state(2, 1500))
	long := time.Since(went) >= time.Second // suspended
	u := testkit.Receive(t, "an update", out)
	if u.Gone && long {
		u = testkit.Receive(t, "an update", out)
	}
	if !generation(2)(u) {
		t.Fatalf("%+v", u)
	}
}

// ConfigMaps: NAME -> ..data/NAME, ..data -> ..VERSION, which is swapped.
func TestFileOfAConfigMap(t *testing.T) {
	dir := t.TempDir()
	version := func(name, text string) {
		t.Helper()
		testkit.Must(t, os.Mkdir(filepath.Join(dir, name), 0o755))
		testkit.Must(t, os.WriteFile(filepath.Join(dir, name, "state.yaml"), []byte(text), 0o600))
		testkit.Must(t, os.Symlink(name, filepath.Join(dir, "..data_tmp")))
		testkit.Must(t, os.Rename(filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data")))
	}
	version("..1", state(1, 1500))
	path := filepath.Join(dir, "state.yaml")
	testkit.Must(t, os.Symlink("..data/state.yaml", path))
	out := run(t, source.NewFile(path, nil))
	testkit.ReceiveUntil(t, "generation 1", out, generation(1))
	for n := int64(2); ; n++ {
		began := time.Now()
		version(fmt.Sprint("..", n), state(int(n), 1500))
		if u := testkit.Receive(t, "an update", out); !generation(n)(u) {
			t.Fatalf("%+v", u)
		}
		if took := time.Since(began); took < beforeRescan {
			return
		} else if n == 5 {
			t.Fatalf("seen after %s, want an event", took)
		}
	}
}

// A change seen before the next poll was reported by an event; under load the
// test is repeated.
const beforeRescan = 8 * time.Second

func TestFileInReplacedDirectory(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "etc")
	path := filepath.Join(dir, "state.yaml")
	out := run(t, source.NewFile(path, nil))
	testkit.ReceiveUntil(t, "nothing", out, gone)
	testkit.Must(t, os.Mkdir(dir, 0o755))
	write(t, path, state(1, 1500))
	testkit.ReceiveUntil(t, "generation 1", out, generation(1))
	testkit.Must(t, os.Rename(dir, dir+".old"))
	testkit.ReceiveUntil(t, "nothing again", out, gone)
}

func TestFileSecondReader(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.yaml")
	write(t, path, state(1, 1500))
	f := source.NewFile(path, nil)
	for range 2 {
		t.Run("", func(t *testing.T) { testkit.ReceiveUntil(t, "generation 1", run(t, f), generation(1)) })
	}
}

func TestWatchReportsChanges(t *testing.T) {
	dir := t.TempDir()
	var kicks atomic.Int32
	kicked := make(chan struct{}, 100)
	logger := testLogger(t)
	testkit.Go(t, func(ctx context.Context) error {
		return source.Watch(ctx, filepath.Join(dir, "config.json"), logger, func() { kicks.Add(1); kicked <- struct{}{} })
	})
	<-kicked
	for n := 2; ; n++ {
		began := time.Now()
		write(t, filepath.Join(dir, "config.json"), "{}")
		<-kicked
		if took := time.Since(began); took < beforeRescan {
			break
		} else if n == 5 {
			t.Fatalf("kicked %s after a change: no event was handled", took)
		}
	}
}
