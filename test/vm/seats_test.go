package vm

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/cleatproject/cleat/test/testkit"
)

func TestSeats(t *testing.T) {
	dir := t.TempDir()
	a := mustReserve(t, dir, 1)
	b := mustReserve(t, dir, 1)
	short, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := reserve(short, dir, 1); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a third guest on %d seats: %v", seatCount, err)
	}
	// Someone who wants both gets them when both are free, and is not passed.
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
		t.Error("a third seat of two reserved ones")
	}
	s.give(first)
	s.give(second)
	s.close()
	mustReserve(t, dir, 2).close()
}

func TestSeatsThatCannotBe(t *testing.T) {
	for _, n := range []int{0, -1, seatCount + 1} {
		if _, err := reserve(t.Context(), t.TempDir(), n); err == nil {
			t.Errorf("%d seats were given", n)
		}
	}
}

func mustReserve(t *testing.T, dir string, n int) *Seats {
	t.Helper()
	s := testkit.Value(reserve(t.Context(), dir, n))(t)
	t.Cleanup(s.close)
	return s
}
