// Package op orders operations on named objects, one at a time per object and
// many at once over all. The same request twice is one operation whose result
// both callers get; a request that undoes another cancels it and waits for its
// end; background work yields to everybody; any other request waits a little and is then refused. It knows nothing
// of what the operations do.
package op

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/cleatproject/cleat/errs"
)

var (
	// ErrUndone is the cause of the context of an operation that a request which
	// undoes it cancelled; its callers get it wrapped, with kind errs.Busy.
	ErrUndone = errors.New("cancelled by a request that undoes it")
	// ErrYielded is the cause of the context of a yielding operation that ends
	// for another request; its callers get it wrapped, with kind errs.Busy.
	ErrYielded = errors.New("cancelled for a request on the same object")
	// ErrClosed is the cause when Close cancelled the operation, or when the
	// Operations take no more; callers get it with kind errs.Unavailable.
	ErrClosed = errors.New("the server is shutting down")
)

// Request says on which objects an operation works.
type Request struct {
	// Keys name the objects; the operation runs when it has all of them.
	Keys []string
	// Fingerprint is equal for equal requests: the call and everything in it
	// that matters. Requests of equal keys and fingerprint are joined; an
	// empty fingerprint joins nothing.
	Fingerprint string
	// Cancels are those of Keys whose operations the request undoes: they are
	// cancelled, and it goes before those that only wait. It waits for other
	// operations, and for another one that undoes.
	Cancels []string
	// Yields: every other request on these objects cancels the operation and
	// goes before it. For background work.
	Yields bool
	// What is the call in a word, for the message to those it keeps out.
	What string
}

// Running describes an operation under way.
type Running struct {
	Keys   []string  `json:"keys"`
	What   string    `json:"what"`
	Since  time.Time `json:"since"`
	Joined int       `json:"joined"` // callers that wait for its result now
}

// Operations run operations. Make them with New.
type Operations struct {
	wait    time.Duration
	base    context.Context
	cancel  context.CancelCauseFunc
	onPanic func(context.Context, *PanicError)

	mu      sync.Mutex
	closed  bool
	held    map[string]*operation // by key
	queue   []*waiter             // in the order of their turn
	running sync.WaitGroup        // Add only under mu and before closed
}

// Option changes how Operations behave.
type Option func(*Operations)

// OnPanic reports panics of operations, also of those that nobody waits for
// any more. It is called on the operation's goroutine with its context.
func OnPanic(report func(ctx context.Context, e *PanicError)) Option {
	return func(o *Operations) { o.onPanic = report }
}

// New makes Operations. They are cancelled when base ends. A request that does
// not get its objects within wait is refused.
func New(base context.Context, wait time.Duration, options ...Option) *Operations {
	o := &Operations{wait: wait, held: map[string]*operation{}}
	o.base, o.cancel = context.WithCancelCause(base)
	for _, option := range options {
		option(o)
	}
	return o
}

// Close takes no more requests, cancels the running ones and waits for their
// end, at most until ctx ends.
func (o *Operations) Close(ctx context.Context) error {
	o.mu.Lock()
	o.closed = true
	waiters := o.queue
	o.queue = nil
	o.mu.Unlock()
	o.cancel(ErrClosed)
	for _, w := range waiters {
		close(w.turn) // without an operation: closed
	}
	ended := make(chan struct{})
	go func() {
		o.running.Wait()
		close(ended)
	}()
	select {
	case <-ended:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("operations still run after the bound: %s: %w", o.listed(), ctx.Err())
	}
}

// Running lists the operations under way, the oldest first.
func (o *Operations) Running() []Running {
	o.mu.Lock()
	defer o.mu.Unlock()
	var all []Running
	for key, op := range o.held {
		if key == op.keys[0] { // once per operation
			all = append(all, Running{Keys: slices.Clone(op.keys), What: op.what, Since: op.since, Joined: op.joined})
		}
	}
	slices.SortFunc(all, func(a, b Running) int {
		if c := a.Since.Compare(b.Since); c != 0 {
			return c
		}
		return slices.Compare(a.Keys, b.Keys)
	})
	return all
}

func (o *Operations) listed() string {
	var names []string
	for _, r := range o.Running() {
		names = append(names, fmt.Sprintf("%s on %v", r.What, r.Keys))
	}
	return fmt.Sprint(names)
}

// Do runs fn as the operation that r describes, or joins the one that runs.
// fn runs on a goroutine of its own; its context has the values of ctx but not
// its end, and is cancelled by a request that undoes it (cause ErrUndone), for
// another request if it yields (ErrYielded), by Close (ErrClosed) and by the end of the base context. fn must return soon
// then, after rolling back what the next operation must not see. When ctx ends
// Do returns its error, and the work goes on for the next who asks for the
// same. Callers that are joined share one result: they must not change it.
//
// Errors: errs.Busy when the objects are not free in time, and when
// another request cancelled the operation; errs.Unavailable when closed;
// *PanicError; what fn returns.
func Do[T any](ctx context.Context, o *Operations, r Request, fn func(ctx context.Context) (T, error)) (T, error) {
	var none T
	if err := ctx.Err(); err != nil {
		return none, err
	}
	op, err := o.enter(ctx, r, func(ctx context.Context) (any, error) { return fn(ctx) })
	if err != nil {
		return none, err
	}
	defer o.leave(op)
	select {
	case <-op.done:
	case <-ctx.Done():
		return none, fmt.Errorf("%s is still in progress; repeat the call to get its result: %w", op.what, ctx.Err())
	}
	if op.err != nil {
		return none, op.err
	}
	result, ok := op.result.(T)
	if !ok && op.result != nil {
		return none, errs.Errorf(errs.Internal, "two requests with the fingerprint %q want results of different types, %T and %T", r.Fingerprint, op.result, none)
	}
	return result, nil
}
