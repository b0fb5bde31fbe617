package rpcdial

import (
	"context"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/stats"
)

// CallEnd records whether a call was ended by the server: gRPC reports the same
// codes for failed connections.
type CallEnd struct{ ended atomic.Bool }

// FromServer reports whether the server ended the call.
func (h *CallEnd) FromServer() bool { return h.ended.Load() }

// Ended returns the context error that ended the caller's wait for a call with
// this code, or nil if the response or the connection failure did. Responses
// that reflect the caller's own cancellation or deadline do not count.
func (h *CallEnd) Ended(ctx context.Context, code codes.Code) error {
	answered := h.FromServer()
	if answered && code != codes.Canceled && code != codes.DeadlineExceeded {
		return nil
	}
	if err := ctx.Err(); err != nil || code != codes.DeadlineExceeded {
		return err
	}
	// gRPC can detect the deadline slightly before the context.
	if at, bounded := ctx.Deadline(); answered && (!bounded || time.Now().Before(at)) {
		return nil
	}
	return context.DeadlineExceeded
}

type callEndKey struct{}

// Listen returns a context for one call on a connection with Listening, and its
// CallEnd.
func Listen(ctx context.Context) (context.Context, *CallEnd) {
	h := &CallEnd{}
	return context.WithValue(ctx, callEndKey{}, h), h
}

// Listening is the dial option that CallEnd requires.
func Listening() grpc.DialOption { return grpc.WithStatsHandler(listener{}) }

// listener detects trailers from the server.
type listener struct{}

func (listener) HandleRPC(ctx context.Context, event stats.RPCStats) {
	if _, end := event.(*stats.InTrailer); !end {
		return
	}
	if h, ok := ctx.Value(callEndKey{}).(*CallEnd); ok {
		h.ended.Store(true)
	}
}

func (listener) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }

func (listener) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }

func (listener) HandleConn(context.Context, stats.ConnStats) {}
