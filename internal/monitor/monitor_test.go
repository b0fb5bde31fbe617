package monitor_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/cleatproject/cleat/internal/monitor"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// counter counts its ticks, which are due every second until there are three.
type counter struct {
	*monitor.Monitor
	due   time.Time
	ticks []time.Duration
	value int
}

func newCounter() *counter {
	c, began := &counter{}, time.Now()
	c.Monitor = monitor.New(func() time.Time { return c.due }, func(now time.Time) {
		c.ticks, c.due = append(c.ticks, now.Sub(began)), now.Add(time.Second)
		if len(c.ticks) == 3 {
			c.due = time.Time{}
		}
	})
	return c
}

func (c *counter) ticked() (ticks []time.Duration) {
	_ = c.Await(context.Background(), func() bool { ticks = slices.Clone(c.ticks); return true })
	return ticks
}

func (c *counter) set(n int) { c.Do(func(time.Time) { c.value = n }) }

func TestAwait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCounter()
		results := make(chan error, 8)
		await := func(ctx context.Context, n int) {
			go func() { results <- c.Await(ctx, func() bool { return c.value >= n }) }()
			synctest.Wait()
		}
		want := func(want error) {
			t.Helper()
			synctest.Wait()
			select {
			case err := <-results:
				if !errors.Is(err, want) {
					t.Errorf("got %v, want %v", err, want)
				}
			default:
				t.Errorf("still waits, want %v", want)
			}
		}
		await(t.Context(), 2)
		c.set(1)
		synctest.Wait()
		if len(results) > 0 {
			t.Fatal("does not wait")
		}
		c.set(2)
		want(nil)
		cause := errors.New("the cause")
		ctx, cancel := context.WithCancelCause(t.Context())
		await(ctx, 3)
		cancel(cause)
		want(cause)
		await(t.Context(), 3)
		c.Close()
		want(monitor.ErrClosed)
		await(t.Context(), 2)
		want(nil) // it holds
		if c.set(9); c.value != 2 {
			t.Error("changed after Close")
		}
		c.Close()
	})
}

func TestDeadlines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCounter()
		time.Sleep(time.Hour) // no deadline
		c.Do(func(now time.Time) { c.due = now.Add(time.Minute) })
		time.Sleep(time.Second)
		c.Do(func(now time.Time) { c.due = now.Add(time.Second) })
		time.Sleep(time.Hour)
		first := time.Hour + 2*time.Second
		if want := []time.Duration{first, first + time.Second, first + 2*time.Second}; !slices.Equal(c.ticked(), want) {
			t.Errorf("ticks at %s, want %s", c.ticked(), want)
		}
		c.Do(func(now time.Time) { c.due = now.Add(time.Second) })
		c.Close()
		time.Sleep(time.Hour)
		if n := len(c.ticked()); n != 3 {
			t.Errorf("%d ticks after Close", n)
		}
	})
}
