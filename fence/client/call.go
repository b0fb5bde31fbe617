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
	"github.com/cleatproject/cleat/internal/rpcdial"
)

// ErrNobody: no driver answers on the endpoint, or it may not be asked. The
// causes are wrapped beside it.
var ErrNobody = errors.New("no fence service answers")

// Error is what a driver answered.
type Error struct {
	Endpoint string
	Method   string // as FenceClusterNetwork
	Code     codes.Code
	Message  string
}

func (e *Error) Error() string {
	return fmt.Sprintf("%s answered %s with %s: %s", e.Endpoint, e.Method, e.Code, e.Message)
}

// GRPCStatus lets status.Code read the error.
func (e *Error) GRPCStatus() *status.Status { return status.New(e.Code, e.Message) }

// Unwrap gives the kind of package volume.
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

// call runs one RPC. While nobody answers it is tried again for a moment: all
// calls of the contract may be repeated.
func call[Q, A any](ctx context.Context, c *Client, method string, rpc func(context.Context, Q, ...grpc.CallOption) (A, error), request Q, secrets map[string]string) (A, error) {
	patient := time.Now().Add(c.target.Patience)
	for {
		attempt, heard := rpcdial.Listen(ctx)
		answer, err := rpc(attempt, request)
		if heard.FromServer() {
			c.last.set(nil)
		}
		if err == nil {
			return answer, nil
		}
		s := status.Convert(err)
		if ended := heard.Ended(ctx, s.Code()); ended != nil {
			return answer, c.late(method, ended)
		}
		if s.Code() != codes.Unavailable || heard.FromServer() {
			return answer, &Error{Endpoint: c.target.Endpoint, Method: method, Code: s.Code(), Message: shown(s.Message(), secrets)}
		}
		if !time.Now().Before(patient) || !pause(ctx) {
			return answer, c.nobody(shown(s.Message(), secrets))
		}
	}
}

// pause waits a little before the next try; false: ctx ended. The jitter keeps
// many who wait from coming back at one moment.
func pause(ctx context.Context) bool {
	timer := time.NewTimer(50*time.Millisecond + rand.N(100*time.Millisecond))
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// late is the error of a call that was not answered before that.
func (c *Client) late(method string, ended error) error {
	if reason := c.reason(); reason != nil {
		return errs.Errorf(errs.Unavailable, "%w on %s: %w (%w)", ErrNobody, c.target.Endpoint, reason, ended)
	}
	return errs.Errorf(errs.Unavailable, "%s has not answered %s in time: %w", c.target.Endpoint, method, ended)
}

// nobody is the error of a call without a connection; told is what gRPC says.
func (c *Client) nobody(told string) error {
	reason := c.reason()
	if reason == nil {
		reason = errors.New(told)
	}
	return errs.Errorf(errs.Unavailable, "%w on %s: %w", ErrNobody, c.target.Endpoint, reason)
}

// reason is why there is no connection, with what to do about it.
func (c *Client) reason() error {
	err := c.last.get()
	if err == nil {
		return nil
	}
	if alert, ok := errors.AsType[*net.OpError](err); ok && alert.Op == "remote error" {
		return fmt.Errorf("the server refuses this side's certificate %s, or has none in order itself; its log says why (%w)", c.target.TLS.Cert, err)
	}
	if _, ok := errors.AsType[x509.UnknownAuthorityError](err); ok {
		return fmt.Errorf("the server's certificate was not signed by an authority in %s (%w)", c.target.TLS.CA, err)
	}
	if _, ok := errors.AsType[x509.HostnameError](err); ok {
		return fmt.Errorf("the server's certificate is for another name (%w)", err)
	}
	return err
}

// shown bounds what a driver says, and takes out of it the secrets that it was
// sent.
func shown(message string, secrets map[string]string) string {
	const shortest, most = 4, 4096 // a secret of a letter would take words apart
	for _, secret := range secrets {
		if len(secret) >= shortest {
			message = strings.ReplaceAll(message, secret, "***")
		}
	}
	if len(message) > most {
		cut := message[:most]
		for !utf8.ValidString(cut) && len(cut) > most-utf8.UTFMax {
			cut = cut[:len(cut)-1]
		}
		message = cut + "…"
	}
	return message
}
