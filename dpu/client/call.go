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

// ErrNobody: no plugin answers on the socket, or it may not be asked. The causes
// are wrapped beside it, as fs.ErrNotExist.
var ErrNobody = errors.New("no plugin answers")

// Error is what became of a call that failed. status.FromError reads it.
type Error struct {
	Socket  string
	Method  string // as CreateDevice; empty when a connection was to be made
	Code    codes.Code
	Message string // the plugin's; empty when it did not answer
	cause   error  // why it did not answer; nil when it did
}

func (e *Error) Error() string {
	switch {
	case e.cause == nil:
		return fmt.Sprintf("%s answered %s with %s: %s", e.Socket, e.Method, e.Code, e.Message)
	case errors.Is(e.cause, ErrNobody):
		return e.cause.Error()
	}
	return fmt.Sprintf("%s has not answered %s in time: %v", e.Socket, e.Method, e.cause)
}

// GRPCStatus lets status.Code and its like read the error.
func (e *Error) GRPCStatus() *status.Status {
	if e.cause == nil {
		return status.New(e.Code, e.Message)
	}
	return status.New(e.Code, e.Error())
}

// Unwrap gives what kept the plugin from answering, if anything did.
func (e *Error) Unwrap() error { return e.cause }

// Answered reports whether the code is the plugin's own word.
func (e *Error) Answered() bool { return e.cause == nil }

// call runs one RPC.
func call[Q, A any](ctx context.Context, c *Client, method string, rpc func(context.Context, Q, ...grpc.CallOption) (A, error), request Q) (A, error) {
	attempt, heard := rpcdial.Listen(ctx)
	answer, err := rpc(attempt, request)
	if err == nil {
		return answer, nil
	}
	s := status.Convert(err)
	failed := &Error{Socket: c.socket, Method: method, Code: s.Code(), cause: heard.Ended(ctx, s.Code())}
	switch {
	case failed.cause != nil:
	case heard.FromServer():
		failed.Message = errs.Clip(s.Message(), 4096)
	case s.Code() == codes.Unavailable:
		return answer, c.lost(ctx, method, s.Message())
	default: // of this side, as an answer that is too large
		failed.Message = errs.Clip(s.Message(), 4096)
	}
	return answer, failed
}

// lost is the error of a call whose connection could not be made, or broke. The
// kernel says why more plainly than gRPC does.
func (c *Client) lost(ctx context.Context, method, told string) error {
	again, err := unixsock.Dial(ctx, c.socket)
	if err == nil {
		_ = again.Close() // it was made to be looked at
		err = errors.New("the connection broke: " + errs.Clip(told, 4096))
	}
	return nobody(ctx, c.socket, method, err)
}

// nobody is the error of a connection that cannot be made.
func nobody(ctx context.Context, socket, method string, why error) error {
	code := codes.Unavailable
	if ended := ctx.Err(); ended != nil {
		code = status.FromContextError(ended).Code()
	}
	if dial, ok := errors.AsType[*net.OpError](why); ok {
		why = dial.Err // the rest of it repeats the path
	}
	return &Error{Socket: socket, Method: method, Code: code, cause: fmt.Errorf("%w on %s: %w", ErrNobody, socket, why)}
}
