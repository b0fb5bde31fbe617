package rpcdial

import (
	"context"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/stats"
)

// Heard tells whether the end of a call came from the server. gRPC gives the
// same codes to connections that failed.
type Heard struct{ ended atomic.Bool }

// FromServer reports whether the server ended the call.
func (h *Heard) FromServer() bool { return h.ended.Load() }

// Ended is why the caller waited no longer for a call that failed with the code;
// nil: what the server says counts, or what befell the connection. A server that
// stops because its caller did says nothing of its own.
func (h *Heard) Ended(ctx context.Context, code codes.Code) error {
	answered := h.FromServer()
	if answered && code != codes.Canceled && code != codes.DeadlineExceeded {
		return nil
	}
	if err := ctx.Err(); err != nil || code != codes.DeadlineExceeded {
		return err
	}
	// gRPC on either side may see a deadline pass a moment before the context does.
	if at, bounded := ctx.Deadline(); answered && (!bounded || time.Now().Before(at)) {
		return nil
	}
	return context.DeadlineExceeded
}

type heardKey struct{}

// Listen returns a context for one call on a connection with Listening, and
// what will be heard of it.
func Listen(ctx context.Context) (context.Context, *Heard) {
	h := &Heard{}
	return context.WithValue(ctx, heardKey{}, h), h
}

// Listening makes a connection listen for Heard.
func Listening() grpc.DialOption { return grpc.WithStatsHandler(listener{}) }

// listener hears the end that a server gives to a call.
type listener struct{}

func (listener) HandleRPC(ctx context.Context, event stats.RPCStats) {
	if _, end := event.(*stats.InTrailer); !end {
		return
	}
	if h, ok := ctx.Value(heardKey{}).(*Heard); ok {
		h.ended.Store(true)
	}
}

func (listener) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }

func (listener) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }

func (listener) HandleConn(context.Context, stats.ConnStats) {}
