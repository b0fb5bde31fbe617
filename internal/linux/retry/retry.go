// Package retry repeats short calls that the kernel refuses temporarily.
package retry

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/cleatproject/cleat/internal/backoff"
)

const (
	firstPause = time.Millisecond
	maxPause   = 50 * time.Millisecond
)

// For calls try until it returns again=false, the bound has passed or the
// context ends, with pauses of 1 to 50 milliseconds. try runs at least once,
// and once after the bound unless the context has ended. If the context ends
// during a pause, the error wraps both causes.
func For(ctx context.Context, bound time.Duration, try func() (again bool, err error)) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	deadline := time.Now().Add(bound)
	for pause := firstPause; ; pause = min(2*pause, maxPause) {
		late := !time.Now().Before(deadline)
		again, err := try()
		if !again || late {
			return err
		}
		wait := min(pause/2+rand.N(pause), max(0, time.Until(deadline)))
		if backoff.Sleep(ctx, wait) != nil {
			return fmt.Errorf("%w; then %w", err, ctx.Err())
		}
	}
}
