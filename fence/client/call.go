package client

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
	"time"
	"unicode/utf8"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/backoff"
	"github.com/cleatproject/cleat/internal/rpcdial"
)

// ErrNotServed: no driver answers, or connecting is not permitted; wraps the
// cause.
var ErrNotServed = errors.New("no fence service answers")

// Error is a driver's error.
type Error struct {
	Endpoint string
	Method   string
	Code     codes.Code
	Message  string
}

func (e *Error) Error() string {
	return fmt.Sprintf("%s answered %s with %s: %s", e.Endpoint, e.Method, e.Code, e.Message)
}

// GRPCStatus is for status.Code.
func (e *Error) GRPCStatus() *status.Status { return status.New(e.Code, e.Message) }

// Unwrap returns the errs kind.
func (e *Error) Unwrap() error {
	switch e.Code {
	case codes.InvalidArgument:
		return errs.Invalid
	case codes.NotFound:
		return errs.NotFound
	case codes.AlreadyExists:
		return errs.Exists
	case codes.OutOfRange:
		return errs.OutOfRange
	case codes.ResourceExhausted:
		return errs.Exhausted
	case codes.FailedPrecondition:
		return errs.Precondition
	case codes.Aborted:
		return errs.Busy
	case codes.Unimplemented:
		return errs.Unsupported
	case codes.PermissionDenied:
		return errs.Denied
	case codes.Unauthenticated:
		return errs.Unauthenticated
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled:
		return errs.Unavailable
	}
	return errs.Internal
}

// call retries an unreachable driver for Target.Patience: all RPCs are
// idempotent.
func call[Q, A any](ctx context.Context, c *Client, method string, rpc func(context.Context, Q, ...grpc.CallOption) (A, error), request Q, secrets map[string]string) (A, error) {
	deadline := time.Now().Add(c.target.Patience)
	for {
		attempt, outcome := rpcdial.Listen(ctx)
		answer, err := rpc(attempt, request)
		if outcome.FromServer() {
			c.last.set(nil)
		}
		if err == nil {
			return answer, nil
		}
		s := status.Convert(err)
		if ended := outcome.Ended(ctx, s.Code()); ended != nil {
			return answer, c.timeoutError(method, ended)
		}
		if s.Code() != codes.Unavailable || outcome.FromServer() {
			return answer, &Error{Endpoint: c.target.Endpoint, Method: method, Code: s.Code(), Message: redact(s.Message(), secrets)}
		}
		if !time.Now().Before(deadline) || backoff.Sleep(ctx, 50*time.Millisecond+rand.N(100*time.Millisecond)) != nil {
			return answer, c.unreachable(redact(s.Message(), secrets))
		}
	}
}

func (c *Client) timeoutError(method string, ended error) error {
	if reason := c.reason(); reason != nil {
		return errs.Errorf(errs.Unavailable, "%w on %s: %w (%w)", ErrNotServed, c.target.Endpoint, reason, ended)
	}
	return errs.Errorf(errs.Unavailable, "%s has not answered %s in time: %w", c.target.Endpoint, method, ended)
}

// unreachable gets gRPC's message.
func (c *Client) unreachable(message string) error {
	reason := c.reason()
	if reason == nil {
		reason = errors.New(message)
	}
	return errs.Errorf(errs.Unavailable, "%w on %s: %w", ErrNotServed, c.target.Endpoint, reason)
}

// reason also says how to fix it; nil if unknown.
func (c *Client) reason() error {
	err := c.last.get()
	if err == nil {
		return nil
	}
	if alert, ok := errors.AsType[*net.OpError](err); ok && alert.Op == "remote error" {
		return fmt.Errorf("the server rejected the client certificate %s, or has no valid certificate itself; see its log (%w)", c.target.TLS.Cert, err)
	}
	if _, ok := errors.AsType[x509.UnknownAuthorityError](err); ok {
		return fmt.Errorf("the server's certificate is not signed by a CA in %s (%w)", c.target.TLS.CA, err)
	}
	if _, ok := errors.AsType[x509.HostnameError](err); ok {
		return fmt.Errorf("the server's certificate is for another name (%w)", err)
	}
	return err
}

// redact also limits the length.
func redact(message string, secrets map[string]string) string {
	const shortest, most = 4, 4096 // a one-letter secret would garble words
	for _, secret := range secrets {
		if len(secret) >= shortest {
			message = strings.ReplaceAll(message, secret, "***")
		}
	}
	if len(message) > most {
		short := message[:most]
		for !utf8.ValidString(short) && len(short) > most-utf8.UTFMax {
			short = short[:len(short)-1]
		}
		message = short + "…"
	}
	return message
}
