// Package rpcdial connects gRPC clients to local servers: it dials like package
// unixsock, reconnects quickly, and never goes idle.
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

// Dialer opens a connection.
type Dialer func(context.Context) (net.Conn, error)

// Unix connects on the first call to a socket's absolute path, and reconnects
// after failures. A call fails immediately while no process listens. options
// take precedence.
func Unix(path string, options ...grpc.DialOption) (*grpc.ClientConn, error) {
	return Over(onSocket(path), options...)
}

// Connect is like Unix, but connects immediately, for errors of unixsock.Dial
// instead of gRPC's.
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
		_ = first.Close() // the error of invalid options is returned
		return nil, err
	}
	conn.Connect()
	defer close(waiting)
	select {
	case waiting <- first: // owned and closed by gRPC from here on
		return conn, nil
	case <-ctx.Done():
		return nil, errors.Join(ctx.Err(), conn.Close(), first.Close())
	}
}

// Over is like Unix, with the caller's dialer.
func Over(dial Dialer, options ...grpc.DialOption) (*grpc.ClientConn, error) {
	ours := []grpc.DialOption{
		grpc.WithAuthority("localhost"), // gRPC servers in other languages refuse a path
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
