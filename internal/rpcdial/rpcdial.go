// Package rpcdial connects gRPC clients to servers of this machine, in the one
// way that all clients here want: by dialling as package unixsock does, soon
// again after a connection broke, and never idle. It knows no contract.
package rpcdial

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/cleatproject/cleat/internal/unixsock"
)

// Dialer makes a connection.
type Dialer func(context.Context) (net.Conn, error)

// Unix returns a connection to the server of a socket, by its absolute path. It
// is made with the first call, and again after it broke. A call on it fails at
// once while nobody listens. Options given here win.
func Unix(path string, options ...grpc.DialOption) (*grpc.ClientConn, error) {
	return Over(onSocket(path), options...)
}

// Connect is Unix for those who want to know now whether somebody listens:
// gRPC would tell of a connection that cannot be made in words of its own.
// Errors: those of unixsock.Dial.
func Connect(ctx context.Context, path string, options ...grpc.DialOption) (*grpc.ClientConn, error) {
	first, err := unixsock.Dial(ctx, path)
	if err != nil {
		return nil, err
	}
	waiting := make(chan net.Conn)
	conn, err := Over(func(ctx context.Context) (net.Conn, error) {
		select {
		case c, ok := <-waiting:
			if ok {
				return c, nil
			}
			return unixsock.Dial(ctx, path)
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}, options...)
	if err != nil {
		_ = first.Close() // the options are wrong; this error does not matter
		return nil, err
	}
	conn.Connect()
	defer close(waiting)
	select {
	case waiting <- first: // gRPC owns it now, so that Close closes it
		return conn, nil
	case <-ctx.Done():
		return nil, errors.Join(ctx.Err(), conn.Close(), first.Close())
	}
}

// Over is Unix with a dialler of the caller's.
func Over(dial Dialer, options ...grpc.DialOption) (*grpc.ClientConn, error) {
	ours := []grpc.DialOption{
		grpc.WithAuthority("localhost"), // servers in other languages refuse a path there
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return dial(ctx) }),
		grpc.WithNoProxy(),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second},
			MinConnectTimeout: 5 * time.Second,
		}),
		grpc.WithIdleTimeout(0),
	}
	conn, err := grpc.NewClient("passthrough:///server", append(ours, options...)...)
	if err != nil {
		return nil, fmt.Errorf("prepare a connection: %w", err)
	}
	return conn, nil
}

func onSocket(path string) Dialer {
	return func(ctx context.Context) (net.Conn, error) { return unixsock.Dial(ctx, path) }
}
