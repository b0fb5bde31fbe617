package client

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/cleatproject/cleat/errs"
)

// Error is what a driver answered.
type Error struct {
	Driver  string // its name, or empty before it told it
	Method  string // as CreateVolume
	Code    codes.Code
	Message string
}

func (e *Error) Error() string {
	who := "the driver"
	if e.Driver != "" {
		who = "driver " + e.Driver
	}
	return fmt.Sprintf("%s answered %s with %s: %s", who, e.Method, e.Code, e.Message)
}

// GRPCStatus lets status.Code read the error.
func (e *Error) GRPCStatus() *status.Status { return status.New(e.Code, e.Message) }

// Unwrap gives the kind of package volume, so that errors.Is(err,
// errs.NotFound) and errs.KindOf work for answers of any driver.
func (e *Error) Unwrap() error {
	if kind, ok := kinds()[e.Code]; ok {
		return kind
	}
	return errs.Internal
}

func kinds() map[codes.Code]errs.Kind {
	return map[codes.Code]errs.Kind{
		codes.InvalidArgument: errs.Invalid, codes.NotFound: errs.NotFound, codes.AlreadyExists: errs.Exists,
		codes.OutOfRange: errs.OutOfRange, codes.ResourceExhausted: errs.Exhausted, codes.FailedPrecondition: errs.Precondition,
		codes.Aborted: errs.Busy, codes.DeadlineExceeded: errs.Unavailable, codes.Canceled: errs.Unavailable, codes.Unimplemented: errs.Unsupported, codes.PermissionDenied: errs.Denied,
		codes.Unauthenticated: errs.Unauthenticated, codes.Unavailable: errs.Unavailable, codes.Internal: errs.Internal,
	}
}

// codeOf is the code of the driver's answer, Unknown when none answered.
func codeOf(err error) codes.Code {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Code
	}
	return codes.Unknown
}

// isFinal reports whether the driver has surely ended the work without doing
// it. Else it may still go on, and only a repeat tells.
func isFinal(err error) bool {
	e, ok := errors.AsType[*Error](err)
	if !ok {
		return false
	}
	switch e.Code {
	case codes.Canceled, codes.DeadlineExceeded, codes.Unavailable, codes.Aborted:
		return false
	}
	return true
}

// call runs one RPC until it is answered for good: a driver that restarts, is
// busy or slow is asked again with the very same request, until ctx ends.
func call[Q, A any](ctx context.Context, d *Driver, method string, rpc func(context.Context, Q, ...grpc.CallOption) (A, error), request Q) (A, error) {
	return callUntil(ctx, d, method, rpc, request, isFinal)
}

// callPage is call for lists, where ABORTED says that the token is not valid
// any more, and asking again would not help.
func callPage[Q, A any](ctx context.Context, d *Driver, method string, rpc func(context.Context, Q, ...grpc.CallOption) (A, error), request Q) (A, error) {
	return callUntil(ctx, d, method, rpc, request, func(err error) bool { return isFinal(err) || codeOf(err) == codes.Aborted })
}

func callUntil[Q, A any](ctx context.Context, d *Driver, method string, rpc func(context.Context, Q, ...grpc.CallOption) (A, error), request Q, final func(error) bool) (A, error) {
	var last error
	for pause, told := newPause(), false; ; {
		attempt, cancel := context.WithTimeout(ctx, d.config.Attempt)
		answer, err := rpc(attempt, request)
		cancel()
		if err == nil {
			return answer, nil
		}
		failure := d.failure(method, err)
		if ctx.Err() != nil && last != nil {
			failure = last // what the driver said tells more than that time ran out
		}
		last = failure
		if final(failure) {
			return answer, failure
		}
		if ctx.Err() == nil && !told && pause.step > time.Second {
			d.config.Notice(fmt.Sprintf("%v; trying again", failure))
			told = true
		}
		if !pause.wait(ctx) {
			return answer, fmt.Errorf("%w (gave up: %w)", failure, ctx.Err())
		}
	}
}

func (d *Driver) failure(method string, err error) error {
	s := status.Convert(err)
	return &Error{Driver: d.info.Name, Method: method, Code: s.Code(), Message: s.Message()}
}

// pause is the time between attempts: it doubles from 50 ms to 5 s, with
// jitter, so that many who wait do not come back at one moment.
type pause struct{ step time.Duration }

func newPause() *pause { return &pause{step: 50 * time.Millisecond} }

// next returns the pause to make now.
func (p *pause) next() time.Duration {
	d := p.step
	p.step = min(2*p.step, 5*time.Second)
	return d/2 + rand.N(d/2+1)
}

// wait makes a pause; false: ctx ended.
func (p *pause) wait(ctx context.Context) bool {
	timer := time.NewTimer(p.next())
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
