package testkit

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
)

// Serve serves gRPC services on a UNIX socket until stop is called or the test
// ends; stop removes the socket. The socket appears only once it accepts
// connections.
func Serve(t testing.TB, path string, register func(grpc.ServiceRegistrar), options ...grpc.ServerOption) (stop func()) {
	t.Helper()
	server := grpc.NewServer(options...)
	register(server)
	l := Listen(t, path)
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	stop = sync.OnceFunc(func() {
		t.Helper()
		_ = os.Remove(path)
		server.Stop()
		if err := <-served; err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return stop
}

// Listen listens on a UNIX socket until the test ends. The socket appears only
// once it accepts connections, and is left when the listener is closed, as
// after SIGKILL.
func Listen(t testing.TB, path string) *net.UnixListener {
	t.Helper()
	hidden := filepath.Join(filepath.Dir(path), "."+filepath.Base(path))
	l := Value(net.ListenUnix("unix", &net.UnixAddr{Name: hidden, Net: "unix"}))(t)
	l.SetUnlinkOnClose(false)
	t.Cleanup(func() { _ = l.Close() })
	Must(t, os.Rename(hidden, path))
	return l
}

// Dial returns a gRPC client of a UNIX socket that is closed when the test ends.
func Dial(t testing.TB, socket string, options ...grpc.DialOption) *grpc.ClientConn {
	t.Helper()
	return Open(Connect(socket, options...))(t)
}

// Connect is Dial for callers that close the client themselves. The client
// connects with the first call, and reconnects after at most 50 ms.
func Connect(socket string, options ...grpc.DialOption) (*grpc.ClientConn, error) {
	soon := grpc.ConnectParams{
		Backoff:           backoff.Config{BaseDelay: 5 * time.Millisecond, Multiplier: 1.2, MaxDelay: 50 * time.Millisecond},
		MinConnectTimeout: Timeout,
	}
	ours := []grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithConnectParams(soon)}
	return grpc.NewClient("unix://"+socket, append(ours, options...)...)
}
