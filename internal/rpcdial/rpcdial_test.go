package rpcdial

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	health "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/cleatproject/cleat/test/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// service returns the caller's authority, or its own error.
type service struct {
	health.UnimplementedHealthServer
	err       error
	authority chan string
}

func (s *service) Check(ctx context.Context, _ *health.HealthCheckRequest) (*health.HealthCheckResponse, error) {
	if md, ok := metadata.FromIncomingContext(ctx); ok && len(md.Get(":authority")) == 1 {
		select {
		case s.authority <- md.Get(":authority")[0]:
		default:
		}
	}
	return &health.HealthCheckResponse{}, s.err
}

func serve(t *testing.T, path string, s *service) (stop func()) {
	t.Helper()
	return testkit.Serve(t, path, func(r grpc.ServiceRegistrar) { health.RegisterHealthServer(r, s) })
}

// again repeats a call, which can still reach the stopped server.
func again(ctx context.Context, t *testing.T, client health.HealthClient) {
	t.Helper()
	for {
		_, err := client.Check(ctx, &health.HealthCheckRequest{}, grpc.WaitForReady(true))
		if err == nil {
			return
		}
		if status.Code(err) != codes.Unavailable {
			t.Fatalf("it does not come back: %v", err)
		}
	}
}

// No server at first; then one, another, and none again.
func TestUnixComesBack(t *testing.T) {
	ctx, path := testkit.Context(t), filepath.Join(t.TempDir(), "s.sock")
	client := health.NewHealthClient(testkit.Open(Unix(path))(t))
	if _, err := client.Check(ctx, &health.HealthCheckRequest{}); status.Code(err) != codes.Unavailable {
		t.Errorf("without a server: %v", err)
	}
	for range 2 {
		s := &service{authority: make(chan string, 1)}
		stop := serve(t, path, s)
		again(ctx, t, client)
		if got := <-s.authority; got != "localhost" {
			t.Errorf("the authority is %q", got)
		}
		stop()
	}
	for { // until gRPC has noticed the end of the server
		_, err := client.Check(ctx, &health.HealthCheckRequest{})
		if status.Code(err) == codes.Unavailable {
			return
		}
		if err == nil || ctx.Err() != nil {
			t.Fatalf("after the server: %v", err)
		}
	}
}

func TestConnect(t *testing.T) {
	ctx, path := testkit.Context(t), filepath.Join(t.TempDir(), "s.sock")
	testkit.WantError(t, "nothing is there", testkit.Err(Connect(ctx, path)), fs.ErrNotExist)
	l := testkit.Value(net.ListenUnix("unix", &net.UnixAddr{Name: path}))(t)
	l.SetUnlinkOnClose(false)
	testkit.Must(t, l.Close())
	testkit.WantError(t, "no listener", testkit.Err(Connect(ctx, path)), syscall.ECONNREFUSED)
	path += "2"
	stop := serve(t, path, &service{})
	testkit.WantError(t, "options that do not go are taken", testkit.Err(Connect(ctx, path, grpc.WithTransportCredentials(nil))), nil)
	client := health.NewHealthClient(testkit.Open(Connect(ctx, path))(t))
	testkit.Value(client.Check(ctx, &health.HealthCheckRequest{}))(t)
	stop()
	serve(t, path, &service{})
	again(ctx, t, client)
}

// Connections closed before their first use do not leak; some are closed before
// gRPC's own goroutine has run.
func TestConnectAndClose(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s.sock")
	l := testkit.Listen(t, path)
	testkit.Must(t, l.SetDeadline(time.Now().Add(testkit.Timeout)))
	ctx := testkit.Context(t)
	const connections = 500
	var clients sync.WaitGroup
	// A client waits at most 5 s for the server to accept, and all 500 at once can
	// take longer.
	slots := make(chan struct{}, 8)
	for range connections {
		clients.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			conn, err := Connect(ctx, path)
			if err == nil {
				err = conn.Close()
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	var open []net.Conn
	for range connections {
		c := testkit.Value(l.Accept())(t)
		defer c.Close()
		open = append(open, c)
	}
	clients.Wait()
	for _, c := range open {
		testkit.Must(t, c.SetReadDeadline(time.Now().Add(time.Minute)))
		if _, err := io.Copy(io.Discard, c); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatal("the connection stays open")
		}
	}
}

// A code from the server differs from the same code of gRPC.
func TestCallEnd(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s.sock")
	stop := serve(t, path, &service{err: status.Error(codes.Unavailable, "the server's own word")})
	client := health.NewHealthClient(testkit.Open(Unix(path, Listening()))(t))
	ask := func(want bool) {
		t.Helper()
		ctx, end := Listen(testkit.Context(t))
		_, err := client.Check(ctx, &health.HealthCheckRequest{})
		if status.Code(err) != codes.Unavailable || end.FromServer() != want {
			t.Errorf("%v, from the server: %t, want %t", err, end.FromServer(), want)
		}
	}
	ask(true)
	stop()
	ask(false)
	if _, err := client.Check(testkit.Context(t), &health.HealthCheckRequest{}); err == nil { // without listening
		t.Error("a call without a server succeeds")
	}
}

// A caller's own timeout is recognised, whether gRPC, the server or the context
// reports it first; other responses count.
func TestEnded(t *testing.T) {
	over, cancel := context.WithDeadline(t.Context(), time.Now().Add(-time.Hour))
	defer cancel()
	gone, leave := context.WithCancel(t.Context())
	leave()
	later, cancelLater := context.WithDeadline(t.Context(), time.Now().Add(time.Hour))
	defer cancelLater()
	unseen := passed{later}
	for name, c := range map[string]struct {
		ctx      context.Context
		answered bool
		code     codes.Code
		want     error
	}{
		"no response, in time":               {later, false, codes.Unavailable, nil},
		"no response, too late":              {over, false, codes.Unavailable, context.DeadlineExceeded},
		"gRPC's clock is ahead":              {later, false, codes.DeadlineExceeded, context.DeadlineExceeded},
		"refused in time":                    {later, true, codes.PermissionDenied, nil},
		"refused after the end":              {gone, true, codes.PermissionDenied, nil},
		"the server stops with its caller":   {gone, true, codes.Canceled, context.Canceled},
		"the server stops at the deadline":   {over, true, codes.DeadlineExceeded, context.DeadlineExceeded},
		"the server's clock is ahead":        {unseen, true, codes.DeadlineExceeded, context.DeadlineExceeded},
		"a deadline of the server":           {later, true, codes.DeadlineExceeded, nil},
		"a deadline of the server, unbound":  {t.Context(), true, codes.DeadlineExceeded, nil},
		"only the server gives up":           {later, true, codes.Canceled, nil},
		"the server's deadline, caller left": {gone, true, codes.DeadlineExceeded, context.Canceled},
	} {
		h := &CallEnd{}
		h.ended.Store(c.answered)
		if got := h.Ended(c.ctx, c.code); !errors.Is(got, c.want) || (got == nil) != (c.want == nil) {
			t.Errorf("%s: got %v, want %v", name, got, c.want)
		}
	}
}

// passed has a passed deadline that it has not noticed.
type passed struct{ context.Context }

func (passed) Deadline() (time.Time, bool) { return time.Now().Add(-time.Millisecond), true }
