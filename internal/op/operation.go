package op

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/cleatproject/cleat/errs"
)

// operation: fields after done are written before done is closed, and read
// after.
type operation struct {
	keys        []string
	fingerprint string
	what        string
	undoes      bool
	yields      bool
	cancelled   bool // by another request; under Operations.mu
	joined      int  // under Operations.mu
	since       time.Time
	cancel      context.CancelCauseFunc

	done   chan struct{}
	result any
	err    error
}

// start requires that the keys of w are free.
func (o *Operations) start(w *waiter) {
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(w.ctx))
	op := &operation{
		keys: w.Keys, fingerprint: w.Fingerprint, what: w.what(), undoes: w.undoes(), yields: w.Yields,
		joined: 1, since: time.Now(), cancel: cancel, done: make(chan struct{}),
	}
	for _, key := range op.keys {
		o.held[key] = op
	}
	o.running.Add(1)
	unhook := context.AfterFunc(o.base, func() { cancel(context.Cause(o.base)) })
	go func() {
		defer o.running.Done()
		defer unhook()
		o.call(ctx, op, w.fn)
	}()
	w.op = op
	close(w.turn)
}

// call converts a panic or runtime.Goexit to an error, so that the keys are
// released and callers get a result.
func (o *Operations) call(ctx context.Context, op *operation, fn func(context.Context) (any, error)) {
	op.err = &PanicError{Value: "the operation called runtime.Goexit"}
	defer func() {
		if v := recover(); v != nil {
			op.err = &PanicError{Value: v, Stack: debug.Stack()}
		}
		if p, ok := errors.AsType[*PanicError](op.err); ok && o.onPanic != nil {
			o.onPanic(ctx, p)
		}
		o.finish(ctx, op)
	}()
	op.result, op.err = fn(ctx)
}

func (o *Operations) finish(ctx context.Context, op *operation) {
	op.err = explain(ctx, op, op.err)
	op.cancel(nil)
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, key := range op.keys {
		delete(o.held, key)
	}
	close(op.done)
	o.dispatch()
}

func (o *Operations) leave(op *operation) {
	o.mu.Lock()
	defer o.mu.Unlock()
	op.joined--
}

// explain replaces the error of a canceled operation by the cause. An error
// with its own kind is a definite result and kept.
func explain(ctx context.Context, op *operation, err error) error {
	cause := context.Cause(ctx)
	if _, panicked := errors.AsType[*PanicError](err); err == nil || cause == nil || panicked || errs.KindOf(err) != errs.Internal {
		return err
	}
	if errors.Is(cause, ErrUndone) || errors.Is(cause, ErrYielded) {
		return errs.Errorf(errs.Busy, "%s of %s was %w (%v)", op.what, objects(op.keys), cause, err)
	}
	return errs.Errorf(errs.Unavailable, "%s of %s was interrupted, repeat the call to continue: %w (%v)", op.what, objects(op.keys), cause, err)
}

// PanicError is the result of a panic. Its message contains neither stack nor
// value, which can contain secrets.
type PanicError struct {
	Value any
	Stack []byte
}

func (e *PanicError) Error() string { return "internal error: the operation panicked, see the log" }

// String returns the details for the log.
func (e *PanicError) String() string { return fmt.Sprintf("panic: %v\n%s", e.Value, e.Stack) }
