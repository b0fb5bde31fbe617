// Package op serializes operations per object. Identical requests join one
// operation. A request that undoes another cancels it and waits for its end;
// background work yields; any other request waits for a limited time and is
// then refused.
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
	// ErrUndone is the cause of a context canceled by a request that undoes the
	// operation; callers get it wrapped, with kind errs.Busy.
	ErrUndone = errors.New("canceled by a request that undoes it")
	// ErrYielded is the cause of a yielding operation's context, canceled for
	// another request; callers get it wrapped, with kind errs.Busy.
	ErrYielded = errors.New("canceled for a request on the same object")
	// ErrClosed is the cause after Close, also for new requests; callers get it
	// with kind errs.Unavailable.
	ErrClosed = errors.New("the server is shutting down")
)

// Request describes an operation and its objects.
type Request struct {
	// Keys of the objects; the operation holds all of them.
	Keys []string
	// Fingerprint is the call with all relevant parameters. Requests with equal
	// keys and fingerprint are joined; those with an empty one never.
	Fingerprint string
	// Cancels are keys whose operations the request undoes: they are canceled,
	// and the request precedes ordinary waiters. It waits for other operations,
	// and for another one that undoes.
	Cancels []string
	// Yields marks background work: any other request cancels and precedes it.
	Yields bool
	// What is the call's name in errors of requests that it blocks.
	What string
}

// Running describes an operation in progress.
type Running struct {
	Keys   []string  `json:"keys"`
	What   string    `json:"what"`
	Since  time.Time `json:"since"`
	Joined int       `json:"joined"` // waiting callers
}

// Operations runs operations. Create it with New.
type Operations struct {
	wait    time.Duration
	base    context.Context
	cancel  context.CancelCauseFunc
	onPanic func(context.Context, *PanicError)

	mu      sync.Mutex
	closed  bool
	held    map[string]*operation // by key
	queue   []*waiter             // in priority order
	running sync.WaitGroup        // Add only under mu, before closed
}

type Option func(*Operations)

// OnPanic reports panics of operations, also without a waiting caller, on their
// goroutine with their context.
func OnPanic(report func(ctx context.Context, e *PanicError)) Option {
	return func(o *Operations) { o.onPanic = report }
}

// New returns Operations, canceled when base ends. A request that waits longer
// than wait is refused.
func New(base context.Context, wait time.Duration, options ...Option) *Operations {
	o := &Operations{wait: wait, held: map[string]*operation{}}
	o.base, o.cancel = context.WithCancelCause(base)
	for _, option := range options {
		option(o)
	}
	return o
}

// Close refuses new requests, and cancels and awaits running operations until
// ctx ends.
func (o *Operations) Close(ctx context.Context) error {
	o.mu.Lock()
	o.closed = true
	waiters := o.queue
	o.queue = nil
	o.mu.Unlock()
	o.cancel(ErrClosed)
	for _, w := range waiters {
		close(w.turn) // no operation: closed
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
		return fmt.Errorf("operations still in progress: %s: %w", o.listed(), ctx.Err())
	}
}

// Running lists the operations in progress, oldest first.
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

// Do runs fn on its own goroutine as the operation r, or joins an identical
// one. The context of fn has the values of ctx but not its end, and is canceled
// by a request that undoes it (cause ErrUndone), for another request if it
// yields (ErrYielded), by Close (ErrClosed) and with the base context. fn must
// then return soon, after rolling back changes that the next operation must not
// see. When ctx ends Do returns its error, and the operation continues for the
// next identical request. Joined callers must not change the shared result.
//
// Errors: errs.Busy if the objects are not free in time, or another request
// canceled the operation; errs.Unavailable after Close; *PanicError; the error
// of fn.
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
		return none, fmt.Errorf("%s is still in progress, repeat the call to get its result: %w", op.what, ctx.Err())
	}
	if op.err != nil {
		return none, op.err
	}
	result, ok := op.result.(T)
	if !ok && op.result != nil {
		return none, errs.Errorf(errs.Internal, "requests with the fingerprint %q have different result types %T and %T", r.Fingerprint, op.result, none)
	}
	return result, nil
}
