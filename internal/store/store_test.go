package store

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
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
	s, err := Open(t.Context(), path, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func put(ctx context.Context, s *Store, key string, value thing) error {
	return s.Update(ctx, func(tx *Tx) error { return things.Put(tx, key, value) })
}

func get(t *testing.T, s *Store, key string) (value thing, ok bool) {
	t.Helper()
	err := s.View(t.Context(), func(tx *Tx) (err error) {
		value, ok, err = things.Get(tx, key)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
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
	if err := put(t.Context(), s, "k", want); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := put(t.Context(), s, "k", want); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("after Close: %v", err)
	}
	s = openAt(t, path, o)
	if got, ok := get(t, s, "k"); !ok || got != want {
		t.Errorf("got %+v, %v", got, ok)
	}
	remove := func(tx *Tx) error { return things.Delete(tx, "k") }
	if err := errors.Join(s.Update(t.Context(), remove), s.Update(t.Context(), remove)); err != nil {
		t.Error(err)
	}
	if _, ok := get(t, s, "k"); ok {
		t.Error("still there after Delete")
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	if entries, _ := os.ReadDir(filepath.Dir(path)); len(entries) != 1 {
		t.Errorf("beside the store: %v", entries)
	}
}

func TestFailedUpdateChangesNothing(t *testing.T) {
	s := openAt(t, filepath.Join(t.TempDir(), "a.db"), options())
	refused := errors.New("refused")
	err := s.Update(t.Context(), func(tx *Tx) error {
		return errors.Join(things.Put(tx, "k", thing{}), refused)
	})
	if !errors.Is(err, refused) {
		t.Errorf("got %v", err)
	}
	if _, ok := get(t, s, "k"); ok {
		t.Error("the record is there")
	}
	if err := s.Update(t.Context(), func(tx *Tx) error { return things.Put(tx, "", thing{}) }); err == nil || !strings.Contains(err.Error(), "things") {
		t.Errorf("empty key: %v", err)
	}
}

func keysOf(t *testing.T, seq func(func(Entry[thing], error) bool)) []string {
	t.Helper()
	var keys []string
	for e, err := range seq {
		if err != nil {
			t.Error(err)
		}
		keys = append(keys, e.Key)
	}
	return keys
}

func TestRangeAndPrefix(t *testing.T) {
	s := openAt(t, filepath.Join(t.TempDir(), "a.db"), options())
	err := s.Update(t.Context(), func(tx *Tx) error {
		for _, k := range []string{"b/2", "a", "b", "b/1", "c"} {
			if err := things.Put(tx, k, thing{Name: k}); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	check := func(tx *Tx) error {
		for name, c := range map[string]struct {
			got  []string
			want string
		}{
			"all":           {keysOf(t, things.Range(tx, "")), "[a b b/1 b/2 c]"},
			"after":         {keysOf(t, things.Range(tx, "b")), "[b/1 b/2 c]"},
			"after a gap":   {keysOf(t, things.Range(tx, "b/11")), "[b/2 c]"},
			"after the end": {keysOf(t, things.Range(tx, "c")), "[]"},
			"prefix":        {keysOf(t, things.Prefix(tx, "b/")), "[b/1 b/2]"},
			"no prefix":     {keysOf(t, things.Prefix(tx, "x")), "[]"},
			"no bucket":     {keysOf(t, Bucket[thing]{Name: "other"}.Range(tx, "")), "[]"},
		} {
			if got := fmt.Sprint(c.got); got != c.want {
				t.Errorf("%s: got %s, want %s", name, got, c.want)
			}
		}
		for range things.Range(tx, "") {
			break
		}
		return nil
	}
	if err := errors.Join(s.View(t.Context(), check), s.Update(t.Context(), check)); err != nil {
		t.Error(err)
	}
}

// Deleting and adding while ranging must neither skip nor repeat a record,
// whether it was there before or is of the same update.
func TestRangeWhileChanging(t *testing.T) {
	s := openAt(t, filepath.Join(t.TempDir(), "a.db"), options())
	const n = 2000
	fill := func(tx *Tx) (err error) {
		for i := range n {
			err = errors.Join(err, things.Put(tx, fmt.Sprintf("%06d", i), thing{Name: strings.Repeat("x", 50)}))
		}
		return err
	}
	empty := func(tx *Tx) error {
		seen := 0
		for e, err := range things.Range(tx, "") {
			if err != nil {
				return err
			}
			if i, _ := strconv.Atoi(e.Key); i != seen {
				return fmt.Errorf("record %d comes as number %d", i, seen)
			}
			seen++
			if err := errors.Join(things.Delete(tx, e.Key), things.Put(tx, "!"+e.Key, e.Value)); err != nil {
				return err
			}
		}
		if seen != n {
			return fmt.Errorf("saw %d records", seen)
		}
		for e := range things.Range(tx, "") {
			if err := things.Delete(tx, e.Key); err != nil {
				return err
			}
		}
		return nil
	}
	if err := errors.Join(s.Update(t.Context(), fill), s.Update(t.Context(), empty)); err != nil {
		t.Errorf("records of before: %v", err)
	}
	if err := s.Update(t.Context(), func(tx *Tx) error { return errors.Join(fill(tx), empty(tx)) }); err != nil {
		t.Errorf("records of the same update: %v", err)
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
	if _, err := Open(ctx, path, options()); !errors.Is(err, ErrHeld) {
		t.Errorf("got %v", err)
	}
	_ = s.Close()
	openAt(t, path, options())
}

func TestReadOnly(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.db")
	reading := Options{Role: testRole, Version: 1, ReadOnly: true}
	if _, err := Open(t.Context(), path, reading); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("absent: %v", err)
	}
	s := openAt(t, path, options())
	if err := put(t.Context(), s, "k", thing{Size: 7}); err != nil {
		t.Fatal(err)
	}
	_ = s.Close()
	one, two := openAt(t, path, reading), openAt(t, path, reading)
	for _, s := range []*Store{one, two} {
		if got, _ := get(t, s, "k"); got.Size != 7 {
			t.Errorf("got %+v", got)
		}
	}
	if err := put(t.Context(), one, "k", thing{}); err == nil {
		t.Error("wrote to a store that is open for reading")
	}
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
	if err := put(ctx, s, "k", thing{}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	if err := s.View(ctx, func(*Tx) error { return nil }); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	close(leave)
	if err := <-done; err != nil {
		t.Error(err)
	}
}
