package store

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/cleatproject/cleat/test/testkit"
)

const (
	// writerStore asks the test binary to write records until it is killed.
	writerStore = "CLEAT_TEST_STORE"
	testRole    = "test"
)

func TestMain(m *testing.M) {
	if path := os.Getenv(writerStore); path != "" {
		if err := writeForEver(path); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	goleak.VerifyTestMain(m)
}

type thing struct {
	Name string
	Size int64
}

var things = Bucket[thing]{Name: "things"}

func options() Options { return Options{Role: testRole, Version: 1} }

func openAt(t *testing.T, path string, o Options) *Store {
	t.Helper()
	return testkit.Open(Open(t.Context(), path, o))(t)
}

func put(ctx context.Context, s Database, key string, value thing) error {
	return s.Update(ctx, func(tx *Tx) error { return things.Put(tx, key, value) })
}

func get(t *testing.T, s Database, key string) (value thing, ok bool) {
	t.Helper()
	testkit.Must(t, s.View(t.Context(), func(tx *Tx) (err error) {
		value, ok, err = things.Get(tx, key)
		return err
	}))
	return value, ok
}

func TestRecordsStay(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.db")
	o := options()
	o.Preallocate = 1 << 20
	s := openAt(t, path, o)
	if _, ok := get(t, s, "k"); ok {
		t.Error("a record in an empty store")
	}
	want := thing{"größe", 1<<62 + 1}
	testkit.Must(t, put(t.Context(), s, "k", want), s.Close())
	testkit.WantError(t, "after Close", put(t.Context(), s, "k", want), nil, path)
	s = openAt(t, path, o)
	if got, ok := get(t, s, "k"); !ok || got != want {
		t.Errorf("got %+v, %v", got, ok)
	}
	remove := func(tx *Tx) error { return things.Delete(tx, "k") }
	testkit.Must(t, s.Update(t.Context(), remove), s.Update(t.Context(), remove))
	if _, ok := get(t, s, "k"); ok {
		t.Error("still there after Delete")
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	if entries, _ := os.ReadDir(filepath.Dir(path)); len(entries) != 1 {
		t.Errorf("beside the store: %v", entries)
	}
}

func TestRoleAndVersion(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.db")
	_ = openAt(t, path, Options{Role: "node", Version: 2}).Close()
	for name, c := range map[string]struct {
		o    Options
		want error
		text string
	}{
		"other role":    {Options{Role: "engine", Version: 2}, ErrRole, `"node"`},
		"newer file":    {Options{Role: "node", Version: 1}, ErrVersion, "newer cleat"},
		"older file":    {Options{Role: "node", Version: 3}, ErrVersion, "version 2"},
		"for reading":   {Options{Role: "node", Version: 3, ReadOnly: true, Upgrade: func(*Tx, int) error { return nil }}, ErrVersion, "version 2"},
		"failed change": {Options{Role: "node", Version: 3, Upgrade: func(*Tx, int) error { return os.ErrInvalid }}, os.ErrInvalid, "from version 2 to 3"},
	} {
		if _, err := Open(t.Context(), path, c.o); !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.text) || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: got %v", name, err)
		}
	}
	upgraded := 0
	newer := Options{Role: "node", Version: 3, Upgrade: func(tx *Tx, from int) error {
		upgraded++
		return things.Put(tx, "from", thing{Size: int64(from)})
	}}
	_ = openAt(t, path, newer).Close()
	s := openAt(t, path, newer)
	if got, _ := get(t, s, "from"); got.Size != 2 || upgraded != 1 {
		t.Errorf("upgraded %d times, from %d", upgraded, got.Size)
	}
}

func TestSecondOpenIsRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.db")
	s := openAt(t, path, options())
	for _, o := range []Options{options(), {Role: testRole, Version: 1, ReadOnly: true}} {
		start := time.Now()
		if _, err := Open(t.Context(), path, o); !errors.Is(err, ErrHeld) || !strings.Contains(err.Error(), strconv.Itoa(os.Getpid())) {
			t.Errorf("got %v", err)
		}
		if took := time.Since(start); took > time.Minute {
			t.Errorf("took %s", took)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	testkit.WantError(t, "Open", testkit.Err(Open(ctx, path, options())), ErrHeld)
	_ = s.Close()
	openAt(t, path, options())
}

func TestReadOnly(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.db")
	reading := Options{Role: testRole, Version: 1, ReadOnly: true}
	testkit.WantError(t, "absent", testkit.Err(Open(t.Context(), path, reading)), os.ErrNotExist)
	s := openAt(t, path, options())
	testkit.Must(t, put(t.Context(), s, "k", thing{Size: 7}))
	_ = s.Close()
	one, two := openAt(t, path, reading), openAt(t, path, reading)
	for _, s := range []*Store{one, two} {
		if got, _ := get(t, s, "k"); got.Size != 7 {
			t.Errorf("got %+v", got)
		}
	}
	testkit.WantError(t, "wrote to a store that is open for reading", put(t.Context(), one, "k", thing{}), nil)
}

func TestManyCreators(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.db")
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			s, err := Open(t.Context(), path, options())
			if errors.Is(err, ErrHeld) {
				return
			}
			if err != nil {
				t.Error(err)
				return
			}
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
}

func TestUpdateHonoursItsContext(t *testing.T) {
	s := openAt(t, filepath.Join(t.TempDir(), "a.db"), options())
	inside, leave := make(chan struct{}), make(chan struct{})
	done := make(chan error, 1)
	go func() {
		done <- s.Update(t.Context(), func(*Tx) error { close(inside); <-leave; return nil })
	}()
	<-inside
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	testkit.WantError(t, "put", put(ctx, s, "k", thing{}), context.DeadlineExceeded)
	if err := s.View(ctx, func(*Tx) error { return nil }); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	close(leave)
	testkit.Must(t, <-done)
}

// A store in use is never replaced, and an interrupted move is completed. Kills
// between the steps are in test/dpu.
func TestMove(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	from, to := filepath.Join(dir, "a"), filepath.Join(dir, "b")
	o := Options{Role: "test", Version: 1, Preallocate: 1 << 20}
	create := func(path string) {
		t.Helper()
		s, err := Open(t.Context(), path, o)
		if err == nil {
			err = s.Close()
		}
		testkit.Must(t, err)
	}
	move := func(want bool) {
		t.Helper()
		if moved, err := Move(t.Context(), from, to, o); moved != want || err != nil {
			t.Errorf("moved %v, %v, want %v", moved, err, want)
		}
	}
	left := func(path string, want bool) {
		t.Helper()
		if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) == want {
			t.Errorf("%s: %v, want it there: %v", path, err, want)
		}
	}
	move(false)
	create(from)
	move(true)
	left(from, false)
	create(to)
	move(false)
	left(to, true)

	// Interrupted after the copy: both are the same.
	data := testkit.Value(os.ReadFile(to))(t)
	testkit.Must(t, os.WriteFile(from, data, 0o600))
	move(true)
	left(from, false)

	// Both are in use.
	testkit.Must(t, os.WriteFile(from, append(data, make([]byte, 4096)...), 0o600))
	move(false)
	left(from, true)

	// It is open, or of another role.
	testkit.Must(t, os.Remove(to))
	s := testkit.Value(Open(t.Context(), from, o))(t)
	testkit.WantError(t, "Move", testkit.Err(Move(t.Context(), from, to, o)), ErrHeld)
	testkit.Must(t, s.Close())
	testkit.WantError(t, "Move", testkit.Err(Move(t.Context(), from, to, Options{Role: "another", Version: 1})), ErrRole)
	left(to, false)
}
