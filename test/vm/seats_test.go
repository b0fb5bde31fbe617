package vm

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/cleatproject/cleat/test/testkit"
)

func TestSlotsLimitConcurrentGuests(t *testing.T) {
	dir := t.TempDir()
	a := mustReserve(t, dir, 1)
	b := mustReserve(t, dir, 1)
	short, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := reserve(short, dir, 1); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("acquired a third guest slot of %d: %v", seatCount, err)
	}
	// A waiter for two slots is not overtaken by waiters for one.
	both := make(chan *Seats, 1)
	go func() {
		s, err := reserve(t.Context(), dir, 2)
		if err != nil {
			t.Error(err)
		}
		both <- s
	}()
	a.close()
	b.close()
	s := <-both
	first := testkit.Value(s.take())(t)
	second := testkit.Value(s.take())(t)
	if _, err := s.take(); err == nil {
		t.Error("took a third slot of two reserved ones")
	}
	s.give(first)
	s.give(second)
	s.close()
	mustReserve(t, dir, 2).close()
}

func TestInvalidSlotCountIsRejected(t *testing.T) {
	for _, n := range []int{0, -1, seatCount + 1} {
		if _, err := reserve(t.Context(), t.TempDir(), n); err == nil {
			t.Errorf("reserved %d slots, want an error", n)
		}
	}
}

func mustReserve(t *testing.T, dir string, n int) *Seats {
	t.Helper()
	s := testkit.Value(reserve(t.Context(), dir, n))(t)
	t.Cleanup(s.close)
	return s
}
