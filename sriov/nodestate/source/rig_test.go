package source_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/cleatproject/cleat/sriov/nodestate/source"
)

const patience = time.Minute

// run runs a source until the test ends, and gives what it sends.
func run(t *testing.T, s source.Source) <-chan source.Update {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	out := make(chan source.Update)
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := s.Run(ctx, out); !errors.Is(err, context.Canceled) {
			t.Errorf("Run ended with %v", err)
		}
	})
	t.Cleanup(func() { stop(); wg.Wait() })
	return out
}

func next(t *testing.T, out <-chan source.Update) source.Update {
	t.Helper()
	select {
	case u := <-out:
		return u
	case <-time.After(patience):
		t.Fatal("nothing was sent")
		panic("unreachable")
	}
}

// until takes updates until one is as wanted.
func until(t *testing.T, out <-chan source.Update, what string, wanted func(source.Update) bool) source.Update {
	t.Helper()
	limit := time.After(patience)
	for {
		select {
		case u := <-out:
			if wanted(u) {
				return u
			}
			t.Logf("before %s: %+v", what, u)
		case <-limit:
			t.Fatalf("there was never %s", what)
		}
	}
}

func silent(t *testing.T, out <-chan source.Update) {
	t.Helper()
	select {
	case u := <-out:
		t.Errorf("sent without need: %+v", u)
	case <-time.After(700 * time.Millisecond):
	}
}

func generation(n int64) func(source.Update) bool {
	return func(u source.Update) bool { return u.Err == nil && !u.Gone && u.State.Generation == n }
}

func failed(u source.Update) bool { return u.Err != nil }

func gone(u source.Update) bool { return u.Gone }
