package storetest

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Handle is a store.Object.
type Handle interface {
	ReadState(ctx context.Context) (generation uint64, entries map[string][]byte, err error)
	WriteState(ctx context.Context, expect uint64, set map[string][]byte, remove []string) error
}

// Run tests a kind of store.Object. create returns a function that opens an
// object which does not exist yet, as several processes do. changed is
// store.ErrChanged.
func Run(t *testing.T, changed error, create func(t *testing.T) (open func() Handle)) {
	for name, test := range map[string]func(*suite){
		"Create": (*suite).testCreate, "Changes": (*suite).testChanges, "Values": (*suite).testValues,
		"Stale": (*suite).testStale, "Canceled": (*suite).testCanceled, "Concurrent": (*suite).testConcurrent,
	} {
		t.Run(name, func(t *testing.T) { test(&suite{t, changed, create(t)}) })
	}
}

type suite struct {
	*testing.T
	changed error
	open    func() Handle
}

type entries map[string]string

func (s *suite) write(o Handle, expect uint64, set entries, remove ...string) {
	s.Helper()
	if err := o.WriteState(s.Context(), expect, set.bytes(), remove); err != nil {
		s.Fatal(err)
	}
}

func (e entries) bytes() map[string][]byte {
	b := map[string][]byte{}
	for name, value := range e {
		b[name] = []byte(value)
	}
	return b
}

// read checks the entries and returns the generation.
func (s *suite) read(o Handle, want entries) uint64 {
	s.Helper()
	generation, found, err := o.ReadState(s.Context())
	if err != nil {
		s.Fatal(err)
	}
	got := entries{}
	for name, value := range found {
		got[name] = string(value)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		s.Fatalf("entries (-want +got):\n%s", diff)
	}
	return generation
}

func (s *suite) refused(o Handle, expect uint64) {
	s.Helper()
	if err := o.WriteState(s.Context(), expect, entries{"a/refused": "1"}.bytes(), nil); !errors.Is(err, s.changed) {
		s.Errorf("write of generation %d: %v, want %v", expect, err, s.changed)
	}
}

func (s *suite) testCreate() {
	a, b := s.open(), s.open()
	if generation := s.read(a, entries{}); generation != 0 {
		s.Errorf("generation %d of an object that does not exist", generation)
	}
	s.refused(a, 7)
	s.write(a, 0, entries{"a/x": "1"})
	s.refused(b, 0)
	s.refused(a, 0)
	if generation := s.read(b, entries{"a/x": "1"}); generation == 0 {
		s.Error("generation 0 of an object that exists")
	}
}

func (s *suite) testChanges() {
	a, b := s.open(), s.open()
	s.write(a, 0, entries{"a/x": "1", "a/y": "2"})
	s.write(a, s.read(b, entries{"a/x": "1", "a/y": "2"}), entries{"a/x": "3", "b/z": "4"}, "a/y", "a/none")
	want := entries{"a/x": "3", "b/z": "4"}
	generation, found, err := a.ReadState(s.Context())
	if err != nil {
		s.Fatal(err)
	}
	// The caller can change what it got.
	found["a/x"][0], found["a/new"] = 'x', nil
	s.read(a, want)
	s.write(a, generation, nil, "a/x", "b/z")
	if s.read(b, entries{}) == 0 {
		s.Error("an object without entries does not exist")
	}
}

// testValues has more entries than a page of an omap.
func (s *suite) testValues() {
	want := entries{"a%20b/c%00d": `{"v":1,"r":"<&>"}`, "a/null": "null", "a/ü": `"ü\u2028\"\\"`, "a/n": "1.50"}
	for i := range 1500 {
		want[fmt.Sprint("n/", i)] = strconv.Itoa(i)
	}
	s.write(s.open(), 0, want)
	s.read(s.open(), want)
}

func (s *suite) testStale() {
	a, b := s.open(), s.open()
	s.write(a, 0, entries{"a/x": "1"})
	first := s.read(a, entries{"a/x": "1"})
	second := s.read(b, entries{"a/x": "1"})
	if first != second {
		s.Errorf("generations %d and %d of one state", first, second)
	}
	s.write(b, second, entries{"a/x": "2"})
	s.refused(a, first)
	s.refused(a, first)
	third := s.read(a, entries{"a/x": "2"})
	if third == first {
		s.Errorf("generation %d after a write", third)
	}
	s.write(a, third, entries{"a/x": "3"})
	s.refused(b, second)
	s.read(b, entries{"a/x": "3"})
}

func (s *suite) testCanceled() {
	a := s.open()
	s.write(a, 0, entries{"a/x": "1"})
	generation := s.read(a, entries{"a/x": "1"})
	ctx, cancel := context.WithCancel(s.Context())
	cancel()
	if _, _, err := a.ReadState(ctx); !errors.Is(err, context.Canceled) {
		s.Errorf("canceled read: %v", err)
	}
	if err := a.WriteState(ctx, generation, entries{"a/x": "2"}.bytes(), nil); !errors.Is(err, context.Canceled) {
		s.Errorf("canceled write: %v", err)
	}
	s.read(a, entries{"a/x": "1"})
}

// testConcurrent counts in several processes: each write that succeeded counts
// once.
func (s *suite) testConcurrent() {
	const processes, each = 4, 10
	var all sync.WaitGroup
	for range processes {
		o := s.open()
		all.Go(func() {
			for range each {
				if err := s.increment(o); err != nil {
					s.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
	s.read(s.open(), entries{"a/count": strconv.Itoa(processes * each)})
}

func (s *suite) increment(o Handle) error {
	for {
		generation, found, err := o.ReadState(s.Context())
		if err != nil {
			return err
		}
		count := 0
		if value, exists := found["a/count"]; exists {
			if count, err = strconv.Atoi(string(value)); err != nil {
				return err
			}
		}
		err = o.WriteState(s.Context(), generation, entries{"a/count": strconv.Itoa(count + 1)}.bytes(), nil)
		if !errors.Is(err, s.changed) {
			return err
		}
	}
}
