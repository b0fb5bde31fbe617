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
	if _, err := reserveSlots(short, dir, 1); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("acquired a third guest slot of %d: %v", slotCount, err)
	}
	// A waiter for two slots is not overtaken by waiters for one.
	both := make(chan *Slots, 1)
	go func() {
		s, err := reserveSlots(t.Context(), dir, 2)
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
	s.release(first)
	s.release(second)
	s.close()
	mustReserve(t, dir, 2).close()
}

func TestInvalidSlotCountIsRejected(t *testing.T) {
	for _, n := range []int{0, -1, slotCount + 1} {
		if _, err := reserveSlots(t.Context(), t.TempDir(), n); err == nil {
			t.Errorf("reserved %d slots, want an error", n)
		}
	}
}

func mustReserve(t *testing.T, dir string, n int) *Slots {
	t.Helper()
	s := testkit.Value(reserveSlots(t.Context(), dir, n))(t)
	t.Cleanup(s.close)
	return s
}
