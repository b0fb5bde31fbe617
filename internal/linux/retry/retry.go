// Package retry repeats a short call that the kernel refuses for a moment
// only, such as one that loses a race for a free loop device.
package retry

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"
)

const (
	firstPause = time.Millisecond
	mostPause  = 50 * time.Millisecond
)

// For calls try until it asks for no more, or was called once more after the
// bound has passed, or the context has ended, and returns the error of the last
// try. Between two tries it waits, a millisecond at first and up to 50 later,
// with some jitter so that rivals do not meet again. Try is called at least once,
// whatever the bound, unless the context has ended before. When the context ends
// in a pause, the error says so and wraps both causes.
func For(ctx context.Context, bound time.Duration, try func() (again bool, err error)) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	deadline := time.Now().Add(bound)
	for pause := firstPause; ; pause = min(2*pause, mostPause) {
		late := !time.Now().Before(deadline)
		again, err := try()
		if !again || late {
			return err
		}
		// However long a try took: the last one begins when the bound has passed.
		wait := min(pause/2+rand.N(pause), max(0, time.Until(deadline)))
		if ctxErr := sleep(ctx, wait); ctxErr != nil {
			return fmt.Errorf("%w; then %w", err, ctxErr)
		}
	}
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
