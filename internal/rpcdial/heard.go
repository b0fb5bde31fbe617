package rpcdial

import (
	"context"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/stats"
)

// Heard tells whether the end of a call came from the server. gRPC gives the
// same codes to connections that failed.
type Heard struct{ ended atomic.Bool }

// FromServer reports whether the server ended the call.
func (h *Heard) FromServer() bool { return h.ended.Load() }

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
