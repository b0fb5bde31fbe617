package backoff

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

func TestBackoff(t *testing.T) {
	for _, jitter := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			b := Backoff{First: time.Second, Most: 3 * time.Second, Jitter: jitter}
			var pauses []time.Duration
			for i := range 4 {
				if i == 3 {
					b.Reset()
				}
				before := time.Now()
				if err := b.Wait(t.Context()); err != nil {
					t.Error(err)
				}
				pauses = append(pauses, time.Since(before))
			}
			want := []time.Duration{time.Second, 2 * time.Second, 3 * time.Second, time.Second}
			if !jitter && !slices.Equal(pauses, want) {
				t.Errorf("pauses %v, want %v", pauses, want)
			}
			for i, pause := range pauses {
				if pause < want[i]/2 || pause > want[i] {
					t.Errorf("pause %d is %v, want up to %v", i, pause, want[i])
				}
			}
		})
	}
}

// The cause is that of the context, also if the pause has just ended.
func TestSleepEnds(t *testing.T) {
	ended := errors.New("ended")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(ended)
	for _, d := range []time.Duration{0, time.Hour} {
		if err := Sleep(ctx, d); !errors.Is(err, ended) {
			t.Errorf("Sleep(%v) in an ended context: %v", d, err)
		}
	}
}
