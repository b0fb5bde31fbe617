package csitest

import (
	"bytes"
	"context"
	"log/slog"
	"net"
	"sync"
	"testing"
	"time"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/rpcserve"
)

// Log is what a server wrote, at all levels.
type Log struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write implements io.Writer.
func (l *Log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

// String returns all that was written.
func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// Serve serves CSI services in the process as the program does, and returns a
// connection to them. Both end with the test.
func Serve(t testing.TB, log *Log, register func(grpc.ServiceRegistrar)) *grpc.ClientConn {
	t.Helper()
	server, err := rpcserve.New(rpcserve.Config{
		Logger: slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug})),
		Code:   errs.Code, Secrets: []protoreflect.ExtensionType{spec.E_CsiSecret},
	})
	must(t, err)
	register(server)
	listener := bufconn.Listen(1 << 20)
	served := make(chan error, 1)
	go func() { served <- server.Serve(context.Background(), listener) }()
	conn, err := grpc.NewClient("passthrough:///csitest", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }))
	must(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		must(t, conn.Close())
		must(t, server.Drain(ctx))
		must(t, <-served)
	})
	return conn
}
