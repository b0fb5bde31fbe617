package podresources

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"syscall"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/cleatproject/cleat/internal/rpcdial"
	"github.com/cleatproject/cleat/internal/unixsock"
)

// call is one of the service's.
type call func(context.Context, ...grpc.CallOption) error

// ask makes a call, within the client's patience.
func (c *Client) ask(ctx context.Context, what string, do call) error {
	if c.err != nil {
		return fmt.Errorf("ask the kubelet on %s %s: %w", c.socket, what, c.err)
	}
	bounded, cancel := context.WithTimeout(ctx, c.patience)
	defer cancel()
	err := c.twice(bounded, do)
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		err = context.Cause(ctx)
	case bounded.Err() != nil, status.Code(err) == codes.DeadlineExceeded: // the server may see the end first
		err = fmt.Errorf("there is no answer in time: %w: %w", context.DeadlineExceeded, err)
	}
	return fmt.Errorf("ask the kubelet on %s %s: %w", c.socket, what, err)
}

// twice makes a call, and makes it again when only the connection failed and
// somebody listens: the connection is of the kubelet before a restart, or gRPC
// pauses after it found nobody.
func (c *Client) twice(ctx context.Context, do call) error {
	broken, err := once(ctx, do)
	if !broken || ctx.Err() != nil {
		return err
	}
	probe, reason := unixsock.Dial(ctx, c.socket)
	switch {
	case errors.Is(reason, fs.ErrNotExist), errors.Is(reason, syscall.ENOTDIR), errors.Is(reason, syscall.ECONNREFUSED):
		return fmt.Errorf("%w: %w", ErrNobody, reason)
	case reason != nil:
		return reason
	}
	_ = probe.Close() // nothing was said on it
	c.conn.ResetConnectBackoff()
	_, err = once(ctx, do, grpc.WaitForReady(true))
	return err
}

// once makes a call; broken is an error that is the connection's, not the
// kubelet's.
func once(ctx context.Context, do call, o ...grpc.CallOption) (broken bool, err error) {
	ctx, heard := rpcdial.Listen(ctx)
	if err = do(ctx, o...); err == nil {
		return false, nil
	}
	s := status.Convert(err)
	switch {
	case !heard.FromServer():
		return s.Code() == codes.Unavailable, err
	case s.Code() == codes.Unimplemented, s.Code() == codes.FailedPrecondition,
		// Kubelets with the feature gate off answer "PodResources API GetAllocatableResources disabled".
		s.Code() == codes.Unknown && strings.HasSuffix(s.Message(), " disabled"):
		return false, fmt.Errorf("%w: %w", ErrUnsupported, err)
	}
	return false, err
}
