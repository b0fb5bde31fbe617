package client

import (
	"context"
	"sync/atomic"

	"google.golang.org/grpc/stats"
)

// answered tells whether a call's status came from the driver. gRPC gives the
// same codes to connections that failed.
type answered struct{ atomic.Bool }

type answeredKey struct{}

// listening returns a context for one call, and what will be heard of it.
func listening(ctx context.Context) (context.Context, *answered) {
	a := &answered{}
	return context.WithValue(ctx, answeredKey{}, a), a
}

// listener hears the end that a driver gives to a call.
type listener struct{}

func (listener) HandleRPC(ctx context.Context, event stats.RPCStats) {
	if _, end := event.(*stats.InTrailer); !end {
		return
	}
	if a, ok := ctx.Value(answeredKey{}).(*answered); ok {
		a.Store(true)
	}
}

func (listener) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }

func (listener) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }

func (listener) HandleConn(context.Context, stats.ConnStats) {}
