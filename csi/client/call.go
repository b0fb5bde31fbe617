package client

import (
	"context"
	"errors"
	"fmt"
	"path"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/backoff"
)

// Error is an error that the driver returned.
type Error struct {
	Driver  string // empty before GetPluginInfo
	Method  string // as CreateVolume
	Code    codes.Code
	Message string
}

func (e *Error) Error() string {
	who := "the driver"
	if e.Driver != "" {
		who = "driver " + e.Driver
	}
	switch e.Code {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled: // also made by gRPC, without an answer
		return fmt.Sprintf("call %s of %s failed with %s: %s", e.Method, who, e.Code, e.Message)
	}
	return fmt.Sprintf("%s answered %s with %s: %s", who, e.Method, e.Code, e.Message)
}

// Unwrap returns the kind, for errors.Is(err, errs.NotFound) and errs.KindOf.
func (e *Error) Unwrap() error {
	kind, ok := map[codes.Code]errs.Kind{
		codes.InvalidArgument: errs.Invalid, codes.NotFound: errs.NotFound, codes.AlreadyExists: errs.Exists, codes.OutOfRange: errs.OutOfRange,
		codes.ResourceExhausted: errs.Exhausted, codes.FailedPrecondition: errs.Precondition, codes.Aborted: errs.Busy,
		codes.Unavailable: errs.Unavailable, codes.DeadlineExceeded: errs.Unavailable, codes.Canceled: errs.Unavailable,
		codes.Unimplemented: errs.Unsupported, codes.PermissionDenied: errs.Denied, codes.Unauthenticated: errs.Unauthenticated,
	}[e.Code]
	if !ok {
		return errs.Internal
	}
	return kind
}

// codeOf is the code of the driver's answer, Unknown when the error is not one.
func codeOf(err error) codes.Code {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Code
	}
	return codes.Unknown
}

// isFinal reports whether the driver has refused the work. After other errors
// it might still be working, and only a repeat of the call shows the result.
func isFinal(err error) bool {
	switch e, answered := errors.AsType[*Error](err); {
	case !answered, e.Code == codes.Canceled, e.Code == codes.DeadlineExceeded, e.Code == codes.Unavailable, e.Code == codes.Aborted:
		return false
	}
	return true
}

// attemptTimeout bounds one attempt of a call. The driver continues the work,
// and the next attempt joins it.
const attemptTimeout = 2 * time.Minute

// retry intercepts unary calls: it repeats with exponential backoff while the
// driver is busy, slow or away, until ctx ends.
func (d *Driver) retry(ctx context.Context, method string, request, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, options ...grpc.CallOption) error {
	_, isPage := request.(interface{ GetStartingToken() string })
	var last error
	for pause, noticed := newBackoff(), false; ; {
		attempt, cancel := context.WithTimeout(ctx, attemptTimeout)
		err := invoke(attempt, method, request, reply, conn, options...)
		cancel()
		if err == nil {
			return nil
		}
		failure := d.failure(path.Base(method), err)
		if ctx.Err() != nil && last != nil {
			failure = last // more useful than the end of ctx
		}
		last = failure
		// For a list ABORTED means an invalid token.
		if isFinal(failure) || isPage && codeOf(failure) == codes.Aborted {
			return failure
		}
		if ctx.Err() == nil && !noticed && pause.Pause() > time.Second {
			d.config.Notice(fmt.Sprintf("%v; trying again", failure))
			noticed = true
		}
		if pause.Wait(ctx) != nil {
			return fmt.Errorf("%w (gave up: %w)", failure, ctx.Err())
		}
	}
}

func (d *Driver) failure(method string, err error) error {
	s := status.Convert(err)
	return &Error{Driver: d.info.Name, Method: method, Code: s.Code(), Message: s.Message()}
}

// pages starts again once after ABORTED, an expired token; a repeated token is
// an error, not an endless loop.
func pages[E any](page func(token string) ([]E, string, error)) ([]E, error) {
	var all []E
	seen, restarted := map[string]bool{}, false
	for token := ""; ; {
		entries, next, err := page(token)
		if codeOf(err) == codes.Aborted && token != "" && !restarted {
			all, seen, token, restarted = nil, map[string]bool{}, "", true
			continue
		}
		if err != nil {
			return nil, err
		}
		all = append(all, entries...)
		if next == "" {
			return all, nil
		}
		if seen[next] {
			return nil, errs.Errorf(errs.Internal, "the driver's list does not end: token %q came twice", next)
		}
		seen[next] = true
		token = next
	}
}

// pageSize is the requested size; a driver can return less.
const pageSize = 500

func newBackoff() *backoff.Backoff {
	return &backoff.Backoff{First: 50 * time.Millisecond, Most: 5 * time.Second, Jitter: true}
}
