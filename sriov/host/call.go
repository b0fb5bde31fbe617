package host

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
)

// bounds are how long things may take.
type bounds struct {
	numVFs time.Duration // drivers take minutes for many functions
	step   time.Duration // any other step
	read   time.Duration
	settle time.Duration // until what a write began is seen
	made   time.Duration // likewise, the virtual functions of sriov_numvfs
	// grace is for a call that sees that its context ended; one that takes
	// longer hangs in the kernel.
	grace time.Duration
}

var usual = bounds{
	numVFs: 4 * time.Minute, step: time.Minute, read: 30 * time.Second,
	settle: 10 * time.Second, made: 2 * time.Minute, grace: time.Second,
}

// Hung says that the kernel does not come back from a call, and that nothing
// more is done there before it has.
type Hung struct {
	What  string // the step that made the call
	Call  string // write 4 to /sys/.../sriov_numvfs
	For   time.Duration
	Cause error // why it is not waited for; nil: it was left behind before
}

func (e *Hung) Error() string {
	text := fmt.Sprintf("%s: the kernel has not come back from this for %s: %s: "+
		"the driver hangs (its stack is in /proc/PID/task/*/stack, its complaints are in the kernel's log); nothing more is done there before it does", e.What, e.For.Round(time.Millisecond), e.Call)
	if e.Cause != nil {
		text += ": " + e.Cause.Error()
	}
	return text
}

func (e *Hung) Unwrap() error { return e.Cause }

// calls are what is under way, one for each key.
type calls struct {
	mu      sync.Mutex
	running map[string]*call
}

type call struct {
	what  string
	begun time.Time
	done  chan struct{} // closed when it has come back
	err   error         // then

	mu   sync.Mutex
	now  string // what it asks of the kernel
	left bool   // nobody waits for it
}

// at notes what is asked of the kernel next.
func (c *call) at(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = fmt.Sprintf(format, args...)
}

func (c *call) hung(cause error) *Hung {
	c.mu.Lock()
	defer c.mu.Unlock()
	return &Hung{What: c.what, Call: c.now, For: time.Since(c.begun), Cause: cause}
}

func (c *call) isLeft() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.left
}

// begin waits for the key's turn; it does not wait behind one that hangs.
func (cs *calls) begin(ctx context.Context, key, what string) (*call, error) {
	for {
		cs.mu.Lock()
		before, busy := cs.running[key]
		if err := ctx.Err(); err != nil && !busy {
			cs.mu.Unlock()
			return nil, fmt.Errorf("%s: not begun: %w", what, err)
		}
		if !busy {
			c := &call{what: what, begun: time.Now(), done: make(chan struct{}), now: "nothing yet"}
			cs.running[key] = c
			cs.mu.Unlock()
			return c, nil
		}
		cs.mu.Unlock()
		if before.isLeft() {
			return nil, fmt.Errorf("%s: not begun: %w", what, before.hung(nil))
		}
		select {
		case <-before.done:
		case <-ctx.Done():
			return nil, fmt.Errorf("%s: not begun: %w: %q is under way there", what, ctx.Err(), before.what)
		}
	}
}

// run has do make calls to the kernel, with a bound, as the only one of its key.
// It returns what do returned, or a *Hung when do did not come back.
func (h *Host) run(ctx context.Context, key, what string, bound time.Duration, do func(context.Context, *call) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, bound, fmt.Errorf("%w after %s", context.DeadlineExceeded, bound))
	defer cancel()
	c, err := h.calls.begin(ctx, key, what)
	if err != nil {
		return err
	}
	go func() {
		err := do(ctx, c)
		h.calls.mu.Lock()
		delete(h.calls.running, key)
		h.calls.mu.Unlock()
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
		c.mu.Lock()
		c.left = true
		c.mu.Unlock()
		return c.hung(context.Cause(ctx))
	}
}

// Close waits for the calls to the kernel that are under way, until the context
// ends; its error names those that are left. Begin nothing afterwards.
func (h *Host) Close(ctx context.Context) error {
	h.calls.mu.Lock()
	var under []*call
	for _, c := range h.calls.running {
		under = append(under, c)
	}
	h.calls.mu.Unlock()
	slices.SortFunc(under, func(a, b *call) int { return strings.Compare(a.what, b.what) })
	var left []error
	for _, c := range under {
		select {
		case <-c.done:
			continue
		default:
		}
		select {
		case <-c.done:
		case <-ctx.Done():
			left = append(left, c.hung(ctx.Err()))
		}
	}
	return errors.Join(left...)
}
