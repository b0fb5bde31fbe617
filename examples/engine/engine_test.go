package main

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/cleatproject/cleat/driver"
	"github.com/cleatproject/cleat/volume"
	"github.com/cleatproject/cleat/volume/enginetest"
)

// storage is a share with the state of its controller.
type storage struct{ Dir string }

func (s storage) open(ctx context.Context) (*engine, func() error, error) {
	share := filepath.Join(s.Dir, "share")
	if err := os.MkdirAll(share, 0o700); err != nil {
		return nil, nil, err
	}
	state, closeState, err := driver.OpenFile(ctx, filepath.Join(s.Dir, "controller.db"))
	if err != nil {
		return nil, nil, err
	}
	e, err := open(ctx, share, state)
	if err != nil {
		return nil, nil, errors.Join(err, closeState())
	}
	return e, closeState, nil
}

type device struct{ *os.File }

func (d device) Size() (int64, error) {
	st, err := d.Stat()
	return st.Size(), err
}

// The engine keeps the contract of package volume.
func TestConformance(t *testing.T) {
	at, closers := map[volume.Engine]storage{}, map[volume.Engine]func() error{}
	start := func(t *testing.T, s storage) volume.Backend {
		e, closeState, err := s.open(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		at[e], closers[e] = s, closeState
		return backend(e)
	}
	stop := func(t *testing.T, e volume.Engine) {
		if err := closers[e](); err != nil {
			t.Error(err)
		}
	}
	enginetest.Run(t, enginetest.Harness{
		New: func(t *testing.T) volume.Backend {
			b := start(t, storage{t.TempDir()})
			t.Cleanup(func() { stop(t, b.Engine) })
			return b
		},
		Open: func(t *testing.T, b volume.Backend, v volume.Volume) enginetest.Device {
			f, err := os.OpenFile(b.Engine.(*engine).path(v.ID), os.O_RDWR, 0)
			if err != nil {
				t.Fatal(err)
			}
			return device{f}
		},
		Reopen: func(t *testing.T, b volume.Backend) volume.Backend {
			stop(t, b.Engine)
			again := start(t, at[b.Engine])
			closers[b.Engine] = closers[again.Engine] // what New cleans up
			return again
		},
		Size: 4 << 20, FSTypes: []string{"ext4", "xfs", "btrfs"},
	})
}

// task is what a child process does until it has done a step.
type task struct {
	Dir, Step string
	Call      enginetest.Call
}

const childEnvironment = "ACME_TEST_CHILD"

func TestMain(m *testing.M) {
	text := os.Getenv(childEnvironment)
	if text == "" {
		os.Exit(m.Run())
	}
	var k task
	err := json.Unmarshal([]byte(text), &k)
	if err == nil {
		err = k.run(context.Background())
	}
	println("the step was not reached:", err)
	os.Exit(1)
}

func (k task) run(ctx context.Context) error {
	e, _, err := storage{k.Dir}.open(ctx)
	if err != nil {
		return err
	}
	e.step = func(name string) {
		if name == k.Step {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		}
	}
	return k.Call.Do(ctx, backend(e))
}

// A process that is killed after any step of a call leaves nothing behind: the next one
// repeats the call, and then has exactly the volumes that it should have.
func TestKilledAtEachStep(t *testing.T) {
	create := enginetest.Call{Create: &volume.CreateRequest{Name: "new", Content: volume.Raw, Size: volume.SizeRange{Required: 1 << 20}}}
	for step, c := range map[string]struct {
		call  func(old volume.ID) enginetest.Call
		files int // after the repeated call
		size  int64
	}{
		"create.recorded": {func(volume.ID) enginetest.Call { return create }, 2, 1 << 20},
		"create.filled":   {func(volume.ID) enginetest.Call { return create }, 2, 1 << 20},
		"delete.recorded": {func(old volume.ID) enginetest.Call { return enginetest.Call{Delete: old} }, 0, 0},
		"remove.file":     {func(old volume.ID) enginetest.Call { return enginetest.Call{Delete: old} }, 0, 0},
		"expand.filled":   {func(old volume.ID) enginetest.Call { return enginetest.Call{Expand: old, Size: 4 << 20} }, 1, 4 << 20},
	} {
		t.Run(step, func(t *testing.T) {
			s := storage{t.TempDir()}
			must := func(err error) {
				t.Helper()
				if err != nil {
					t.Fatal(err)
				}
			}
			e, closeState, err := s.open(t.Context())
			must(err)
			old, err := e.Create(t.Context(), volume.CreateRequest{Name: "old", Content: volume.Raw, Size: volume.SizeRange{Required: 1 << 20}})
			must(errors.Join(err, closeState()))

			k := task{Dir: s.Dir, Step: step, Call: c.call(old.ID)}
			text, err := json.Marshal(k)
			must(err)
			child := exec.CommandContext(t.Context(), os.Args[0])
			child.Env = append(os.Environ(), childEnvironment+"="+string(text))
			if out, err := child.CombinedOutput(); err == nil || err.Error() != "signal: killed" {
				t.Fatalf("the child: %v: %s", err, out)
			}

			e, closeState, err = s.open(t.Context())
			must(err)
			defer func() { must(closeState()) }()
			must(k.Call.Do(t.Context(), backend(e)))
			list, err := e.List(t.Context(), "", 0)
			must(err)
			files, err := os.ReadDir(e.share)
			must(err)
			if len(list) != c.files || len(files) != c.files {
				t.Errorf("%d volumes, %d files, want %d", len(list), len(files), c.files)
			}
			for _, v := range list {
				st, err := os.Stat(e.path(v.ID))
				must(err)
				if st.Size() != v.Size || v.Size != c.size {
					t.Errorf("volume %s has %d bytes, its file %d, want %d", v.Name, v.Size, st.Size(), c.size)
				}
			}
		})
	}
}
