package retry

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

var errBusy = errors.New("busy")

func TestForStopsWithoutAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := 0
		err := For(t.Context(), time.Second, func() (bool, error) {
			calls++
			if calls < 5 {
				return true, errBusy
			}
			return false, nil
		})
		if err != nil || calls != 5 {
			t.Errorf("err %v after %d calls, want none after 5", err, calls)
		}
	})
}

func TestForReturnsTheLastErrorAfterTheBound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start, calls := time.Now(), 0
		err := For(t.Context(), time.Second, func() (bool, error) { calls++; return true, errBusy })
		if !errors.Is(err, errBusy) {
			t.Errorf("err %v, want that of the call", err)
		}
		if took := time.Since(start); took > time.Second || took < 900*time.Millisecond {
			t.Errorf("gave up after %v, want just under a second", took)
		}
		if calls < 15 || calls > 60 {
			t.Errorf("%d calls in a second, want pauses that grow to 50 ms", calls)
		}
	})
}

// The process can have been suspended after a try.
func TestForTriesAgainAfterTheBound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := 0
		err := For(t.Context(), time.Second, func() (bool, error) {
			if calls++; calls > 1 {
				return false, nil
			}
			time.Sleep(time.Minute)
			return true, errBusy
		})
		if err != nil || calls != 2 {
			t.Errorf("err %v after %d calls, want none after 2", err, calls)
		}
	})
}

func TestForCallsOnceWithoutABound(t *testing.T) {
	calls := 0
	if err := For(t.Context(), 0, func() (bool, error) { calls++; return true, errBusy }); !errors.Is(err, errBusy) || calls != 1 {
		t.Errorf("err %v after %d calls, want that of the one call", err, calls)
	}
}

func TestForEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		err := For(ctx, time.Hour, func() (bool, error) { return true, errBusy })
		if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, errBusy) {
			t.Errorf("err %v, want both the end of the context and the cause", err)
		}
		calls := 0
		if err := For(ctx, time.Hour, func() (bool, error) { calls++; return false, nil }); !errors.Is(err, context.DeadlineExceeded) || calls != 0 {
			t.Errorf("err %v after %d calls with an ended context, want none made", err, calls)
		}
	})
}
