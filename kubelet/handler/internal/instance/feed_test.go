package instance

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/cleatproject/cleat/test/testkit"
)

func next(t *testing.T, s *Subscription[string]) string {
	t.Helper()
	return testkit.Value(s.Next(t.Context()))(t)
}

func TestKeysAreQueuedOnce(t *testing.T) {
	var f Feed[string]
	f.Touch("no subscriber")
	s := f.Subscribe("there", "already")
	defer s.Close()
	f.Touch("already")
	f.Touch("later")
	f.Touch("later")
	for _, want := range []string{"there", "already", "later"} {
		if got := next(t, s); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	f.Touch("later") // taken before, so it is queued again
	if got := next(t, s); got != "later" {
		t.Errorf("got %q", got)
	}
}

func TestNextEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var f Feed[string]
		s := f.Subscribe()
		ctx, cancel := context.WithCancel(t.Context())
		cancelled := make(chan error, 1)
		go func() { _, err := s.Next(ctx); cancelled <- err }()
		synctest.Wait()
		cancel()
		if err := <-cancelled; !errors.Is(err, context.Canceled) {
			t.Errorf("cancelled: %v", err)
		}
		closed := make(chan error, 2)
		for range 2 {
			go func() { _, err := s.Next(t.Context()); closed <- err }()
		}
		synctest.Wait()
		s.Close()
		s.Close()
		for range 2 {
			if err := <-closed; !errors.Is(err, ErrClosed) {
				t.Errorf("closed: %v", err)
			}
		}
		f.Touch("after the end")
		if len(f.subscriptions) != 0 || len(s.queue) != 0 {
			t.Error("a closed subscription is still fed")
		}
	})
}

// For any interleaving of reads and writes, a reader gets the last value of
// every key, and its queue has at most one entry per key.
func TestLastChangeArrives(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var f Feed[int]
		s := f.Subscribe()
		defer s.Close()
		now, seen := map[int]int{}, map[int]int{}
		read := func() {
			key := testkit.Value(s.Next(context.Background()))(t)
			seen[key] = now[key]
		}
		for value := range rapid.IntRange(1, 60).Draw(t, "steps") {
			if len(s.queue) > 0 && rapid.Bool().Draw(t, "read") {
				read()
				continue
			}
			key := rapid.IntRange(0, 3).Draw(t, "key")
			now[key] = value
			f.Touch(key)
			if len(s.queue) > 4 {
				t.Fatalf("the queue holds %d of 4 keys", len(s.queue))
			}
		}
		for len(s.queue) > 0 {
			read()
		}
		if diff := cmp.Diff(now, seen); diff != "" {
			t.Fatal(diff)
		}
	})
}

func TestConcurrentUse(t *testing.T) {
	var f Feed[int]
	var writers, readers sync.WaitGroup
	const keys = 20
	for range 3 {
		s := f.Subscribe()
		readers.Go(func() {
			defer s.Close()
			for seen := map[int]bool{}; len(seen) < keys; {
				key, err := s.Next(t.Context())
				if err != nil {
					t.Error(err)
					return
				}
				seen[key] = true
			}
		})
	}
	for range 4 {
		writers.Go(func() {
			for key := range keys {
				f.Touch(key)
			}
		})
	}
	writers.Wait()
	readers.Wait()
	if len(f.subscriptions) != 0 {
		t.Errorf("%d subscriptions are left", len(f.subscriptions))
	}
}
