package client

import (
	"context"
	"errors"
	"fmt"
	"net"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/rpcdial"
	"github.com/cleatproject/cleat/internal/unixsock"
)

// ErrNotServed: no plugin answers on the socket, or access is denied. It wraps the
// cause, for example fs.ErrNotExist.
var ErrNotServed = errors.New("no plugin answers")

// Error is a failed call. It works with status.FromError.
type Error struct {
	Socket  string
	Method  string // such as CreateDevice; empty for a failed connection
	Code    codes.Code
	Message string // from the plugin
	cause   error  // nil if the plugin answered
}

func (e *Error) Error() string {
	switch {
	case e.cause == nil:
		return fmt.Sprintf("%s answered %s with %s: %s", e.Socket, e.Method, e.Code, e.Message)
	case errors.Is(e.cause, ErrNotServed):
		return e.cause.Error()
	}
	return fmt.Sprintf("%s has not answered %s in time: %v", e.Socket, e.Method, e.cause)
}

// GRPCStatus makes the error usable with status.Code and status.FromError.
func (e *Error) GRPCStatus() *status.Status {
	if e.cause == nil {
		return status.New(e.Code, e.Message)
	}
	return status.New(e.Code, e.Error())
}

// Unwrap returns the reason why the plugin did not answer, or nil.
func (e *Error) Unwrap() error { return e.cause }

// Answered reports whether the plugin returned the code.
func (e *Error) Answered() bool { return e.cause == nil }

func call[Q, A any](ctx context.Context, c *Client, method string, rpc func(context.Context, Q, ...grpc.CallOption) (A, error), request Q) (A, error) {
	attempt, received := rpcdial.Listen(ctx)
	answer, err := rpc(attempt, request)
	if err == nil {
		return answer, nil
	}
	s := status.Convert(err)
	failed := &Error{Socket: c.socket, Method: method, Code: s.Code(), cause: received.Ended(ctx, s.Code())}
	switch {
	case failed.cause != nil:
	case received.FromServer():
		failed.Message = errs.Clip(s.Message(), 4096)
	case s.Code() == codes.Unavailable:
		return answer, c.lost(ctx, method, s.Message())
	default: // set by the client, for example for a response that is too large
		failed.Message = errs.Clip(s.Message(), 4096)
	}
	return answer, failed
}

// lost dials again for an error of the kernel, which is clearer than gRPC's.
func (c *Client) lost(ctx context.Context, method, message string) error {
	again, err := unixsock.Dial(ctx, c.socket)
	if err == nil {
		_ = again.Close()
		err = errors.New("connection lost: " + errs.Clip(message, 4096))
	}
	return unreachable(ctx, c.socket, method, err)
}

func unreachable(ctx context.Context, socket, method string, why error) error {
	code := codes.Unavailable
	if ended := ctx.Err(); ended != nil {
		code = status.FromContextError(ended).Code()
	}
	if dial, ok := errors.AsType[*net.OpError](why); ok {
		why = dial.Err // without the path, which is in the message
	}
	return &Error{Socket: socket, Method: method, Code: code, cause: fmt.Errorf("%w on %s: %w", ErrNotServed, socket, why)}
}
