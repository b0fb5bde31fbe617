package host

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"
)

type bounds struct {
	numVFs  time.Duration // creating or removing many functions takes minutes
	step    time.Duration // others
	read    time.Duration
	effect  time.Duration // until a write takes effect
	created time.Duration // until sriov_numvfs takes effect
	// grace is how long after its context's end a call counts as hung in the
	// kernel.
	grace time.Duration
}

var defaultBounds = bounds{
	numVFs: 4 * time.Minute, step: time.Minute, read: 30 * time.Second,
	effect: 10 * time.Second, created: 2 * time.Minute, grace: time.Second,
}

// Hung: a call does not return from the kernel. Further steps on the same
// functions are refused until it does.
type Hung struct {
	What  string // the step
	Call  string // such as write "4" to /sys/.../sriov_numvfs
	For   time.Duration
	Cause error // why it was abandoned; nil: abandoned earlier
}

func (e *Hung) Error() string {
	text := fmt.Sprintf("%s: the kernel has not returned from this call for %s: %s: "+
		"the driver hangs (its stack is in /proc/PID/task/*/stack, its messages are in the kernel's log); further steps are refused until it returns", e.What, e.For.Round(time.Millisecond), e.Call)
	if e.Cause != nil {
		text += ": " + e.Cause.Error()
	}
	return text
}

func (e *Hung) Unwrap() error { return e.Cause }

type call struct {
	what    string
	started time.Time
	done    chan struct{}
	err     error // once done is closed

	current   atomic.Pointer[string] // kernel request, for errors
	abandoned atomic.Bool
}

func (c *call) setCurrent(format string, args ...any) {
	now := fmt.Sprintf(format, args...)
	c.current.Store(&now)
}

func (c *call) hung(cause error) *Hung {
	return &Hung{What: c.what, Call: *c.current.Load(), For: time.Since(c.started), Cause: cause}
}

// start waits for the key's running call, unless that is abandoned.
func (h *Host) start(ctx context.Context, key, what string) (*call, error) {
	for {
		h.mu.Lock()
		other, busy := h.running[key]
		if err := ctx.Err(); err != nil && !busy {
			h.mu.Unlock()
			return nil, fmt.Errorf("%s: not started: %w", what, err)
		}
		if !busy {
			c := &call{what: what, started: time.Now(), done: make(chan struct{})}
			c.setCurrent("none yet")
			h.running[key] = c
			h.mu.Unlock()
			return c, nil
		}
		h.mu.Unlock()
		if other.abandoned.Load() {
			return nil, fmt.Errorf("%s: not started: %w", what, other.hung(nil))
		}
		select {
		case <-other.done:
		case <-ctx.Done():
			return nil, fmt.Errorf("%s: not started: %w: %q is still running", what, ctx.Err(), other.what)
		}
	}
}

// run executes do as the only call of its key. If do does not return the error
// is a *Hung.
func (h *Host) run(ctx context.Context, key, what string, bound time.Duration, do func(context.Context, *call) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, bound, fmt.Errorf("%w after %s", context.DeadlineExceeded, bound))
	defer cancel()
	c, err := h.start(ctx, key, what)
	if err != nil {
		return err
	}
	go func() {
		err := do(ctx, c)
		h.mu.Lock()
		delete(h.running, key)
		h.mu.Unlock()
		c.err = err
		close(c.done)
	}()
	select {
	case <-c.done:
		return c.err
	case <-ctx.Done():
	}
	grace := time.NewTimer(h.bounds.grace)
	defer grace.Stop()
	select {
	case <-c.done:
		return c.err
	case <-grace.C:
		c.abandoned.Store(true)
		return c.hung(context.Cause(ctx))
	}
}

// Close waits for running calls; the error names the remaining ones. No calls
// must follow.
func (h *Host) Close(ctx context.Context) error {
	h.mu.Lock()
	var running []*call
	for _, c := range h.running {
		running = append(running, c)
	}
	h.mu.Unlock()
	slices.SortFunc(running, func(a, b *call) int { return strings.Compare(a.what, b.what) })
	var remain []error
	for _, c := range running {
		select {
		case <-c.done:
			continue
		default:
		}
		select {
		case <-c.done:
		case <-ctx.Done():
			remain = append(remain, c.hung(ctx.Err()))
		}
	}
	return errors.Join(remain...)
}
