package instance

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/cleatproject/cleat/test/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestOrder(t *testing.T) {
	var s Set[string]
	s = s.With("/old", "a", "old")
	s = s.With("/new", "b", "new")
	before := s
	s = s.With("/old", "a", "old again") // a repetition does not make it newer
	testkit.Diff(t, "s.Endpoints()", []string{"new", "old again"}, s.Endpoints())
	s = s.With("/old", "c", "restarted")
	testkit.Diff(t, "s.Endpoints()", []string{"restarted", "new"}, s.Endpoints())
	s, value, found := s.Without("/old", "c") // socket a still announces it, at its position
	if diff := cmp.Diff([]string{"new", "old again"}, s.Endpoints()); diff != "" || !found || value != "restarted" {
		t.Error(diff, found, value)
	}
	if s, _, found = s.Without("/old", "c"); found || len(s) != 2 {
		t.Errorf("a repeat took an instance away: %v", s)
	}
	if s, _, found = s.Without("/new", "a"); found || len(s) != 2 {
		t.Errorf("a socket took away what another had registered: %v", s)
	}
	if s, _, found = s.Without("/old", "a"); !found || len(s) != 1 {
		t.Errorf("the instance outlived its last socket: %v", s)
	}
	testkit.Diff(t, "an earlier set has changed", []string{"new", "old"}, before.Endpoints())
}

// step is one call of With or Without.
type step struct {
	registration
	comes bool
	value int
}

type registration struct{ endpoint, socket string }

// slow derives the endpoints from the whole history, newest first. The age of a
// registration is its last With while it was not in the set.
func slow(history []step) []int {
	since, value := map[registration]int{}, map[registration]int{}
	for now, s := range history {
		if !s.comes {
			delete(since, s.registration)
			continue
		}
		if _, there := since[s.registration]; !there {
			since[s.registration] = now
		}
		value[s.registration] = s.value
	}
	values := []int{}
	for len(since) > 0 {
		var newest registration
		at := -1
		for r, age := range since {
			if age > at {
				newest, at = r, age
			}
		}
		values = append(values, value[newest])
		for r := range since {
			if r.endpoint == newest.endpoint {
				delete(since, r)
			}
		}
	}
	return values
}

func TestSetMatchesModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var s Set[int]
		var history []step
		for value := range rapid.IntRange(1, 40).Draw(t, "steps") {
			next := step{registration{
				rapid.SampledFrom([]string{"/1", "/2", "/3"}).Draw(t, "endpoint"),
				rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "socket"),
			}, rapid.Bool().Draw(t, "comes"), value}
			history = append(history, next)
			old, before := s, s.Endpoints()
			kept, had := s.Get(next.endpoint, next.socket)
			if next.comes {
				s = s.With(next.endpoint, next.socket, value)
			} else {
				after, last, found := s.Without(next.endpoint, next.socket)
				if found != had || last != kept {
					t.Fatalf("took %d, %v of what held %d, %v", last, found, kept, had)
				}
				s = after
			}
			if got, found := s.Get(next.endpoint, next.socket); found != next.comes || found && got != value {
				t.Fatalf("holds %d, %v after %+v", got, found, next)
			}
			if diff := cmp.Diff(slow(history), s.Endpoints()); diff != "" {
				t.Fatal(diff)
			}
			if diff := cmp.Diff(before, old.Endpoints()); diff != "" {
				t.Fatalf("the set before has changed: %s", diff)
			}
		}
	})
}
