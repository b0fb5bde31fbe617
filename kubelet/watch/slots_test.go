package watch

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/cleatproject/cleat/test/testkit"
)

// First attempts go before retries that wait for longer, each in its order.
// Attempts that end while they wait take no slot.
func TestFirstAttemptsGoBeforeRetries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := slots{free: 1}
		testkit.Must(t, s.acquire(t.Context(), true))
		served := make(chan string, 10)
		ending, end := context.WithCancel(t.Context())
		wait := func(ctx context.Context, name string, isRetry bool) {
			go func() {
				if s.acquire(ctx, isRetry) == nil {
					served <- name
				}
			}()
			synctest.Wait()
		}
		wait(t.Context(), "retry 1", true)
		wait(ending, "retry that ends", true)
		wait(t.Context(), "retry 2", true)
		wait(ending, "first that ends", false)
		wait(t.Context(), "first 1", false)
		wait(t.Context(), "first 2", false)
		end()
		synctest.Wait()
		var order []string
		for range 4 {
			s.release()
			order = append(order, <-served)
		}
		if want := []string{"first 1", "first 2", "retry 1", "retry 2"}; !slices.Equal(order, want) {
			t.Errorf("order %q, want %q", order, want)
		}
		s.release()
		if s.free != 1 {
			t.Errorf("%d slots are free in the end", s.free)
		}
	})
}
