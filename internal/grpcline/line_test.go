package grpcline

import (
	"context"
	"errors"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/cleatproject/cleat/test/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	getInfo = registration.Registration_GetInfo_FullMethodName
	notify  = registration.Registration_NotifyRegistrationStatus_FullMethodName
)

// patience is for what is answered.
const patience = 30 * time.Second

// listen hands connections to serve until the test ends.
func listen(t testing.TB, serve func(net.Listener)) (path string) {
	t.Helper()
	path = filepath.Join(testkit.Dir(t), "s")
	l := testkit.Value(net.Listen("unix", path))(t)
	ended := make(chan struct{})
	go func() { defer close(ended); serve(l) }()
	t.Cleanup(func() {
		_ = l.Close()
		<-ended
	})
	return path
}

func dial(t testing.TB, path string) *Line {
	t.Helper()
	raw := testkit.Value(net.Dial("unix", path))(t)
	l := New(raw, patience)
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// service is a gRPC server of which a call may do anything.
type service struct {
	registration.UnimplementedRegistrationServer
	info func(context.Context) (*registration.PluginInfo, error)
	told string
}

func (s *service) GetInfo(ctx context.Context, _ *registration.InfoRequest) (*registration.PluginInfo, error) {
	return s.info(ctx)
}

func (s *service) NotifyRegistrationStatus(_ context.Context, r *registration.RegistrationStatus) (*registration.RegistrationStatusResponse, error) {
	s.told = r.Error
	return &registration.RegistrationStatusResponse{}, nil
}

func serve(t testing.TB, s *service, options ...grpc.ServerOption) (*grpc.Server, *Line) {
	t.Helper()
	server := grpc.NewServer(options...)
	registration.RegisterRegistrationServer(server, s)
	path := listen(t, func(l net.Listener) { _ = server.Serve(l) })
	t.Cleanup(server.Stop)
	return server, dial(t, path)
}

func named(name string) func(context.Context) (*registration.PluginInfo, error) {
	return func(context.Context) (*registration.PluginInfo, error) {
		return &registration.PluginInfo{Name: name}, nil
	}
}

func ask(t testing.TB, l *Line) (*registration.PluginInfo, error) {
	var info registration.PluginInfo
	err := l.Call(t.Context(), patience, getInfo, &registration.InfoRequest{}, &info)
	return &info, err
}

func tell(t testing.TB, l *Line, text string) error {
	return l.Call(t.Context(), patience, notify, &registration.RegistrationStatus{Error: text}, &registration.RegistrationStatusResponse{})
}

func TestCalls(t *testing.T) {
	s := &service{info: named("n")}
	_, l := serve(t, s)
	for range 3 {
		if info, err := ask(t, l); err != nil || info.Name != "n" {
			t.Fatalf("%v, %v", info, err)
		}
		if err := tell(t, l, "whatever"); err != nil || s.told != "whatever" || !l.Usable() {
			t.Fatalf("told %q: %v", s.told, err)
		}
	}
}

func TestSizes(t *testing.T) {
	s := &service{}
	_, l := serve(t, s, grpc.MaxSendMsgSize(1<<20))
	for _, size := range []int{0, 1, 16<<10 - 5, 16 << 10, 100_000, MostAnswer - 10, MostAnswer - 10} {
		s.info = named(strings.Repeat("x", size))
		if info, err := ask(t, l); err != nil || len(info.Name) != size {
			t.Errorf("an answer of %d: %v", size, err)
		}
		l = dial(t, l.raw.RemoteAddr().String()) // its window is for one large answer
	}
	for _, size := range []int{0, 1, MostText - 10} {
		if err := tell(t, l, strings.Repeat("x", size)); err != nil || len(s.told) != size {
			t.Errorf("a request of %d: %v", size, err)
		}
	}
	if err := tell(t, l, strings.Repeat("x", MostText)); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("a request that is too large: %v", err)
	}
	s.info = named(strings.Repeat("x", MostAnswer+1))
	if _, err := ask(t, l); status.Code(err) != codes.ResourceExhausted || l.Usable() {
		t.Errorf("an answer that is too large: %v", err)
	}
}

func TestErrorsOfCalls(t *testing.T) {
	for name, want := range map[string]*status.Status{
		"plain":   status.New(codes.Internal, "out of order"),
		"odd":     status.New(codes.NotFound, "100 %, grün\nand \"more\"\x7f"),
		"unknown": status.New(codes.Code(99), "later than this program"),
		"long":    status.New(codes.Unavailable, strings.Repeat("long ", 2000)),
	} {
		s := &service{info: func(context.Context) (*registration.PluginInfo, error) { return nil, want.Err() }}
		_, l := serve(t, s)
		_, err := ask(t, l)
		if got := status.Convert(err); got.Code() != want.Code() || got.Message() != want.Message() {
			t.Errorf("%s: got %v, want %v", name, got, want)
		}
		if err := tell(t, l, "x"); err != nil { // the line is whole
			t.Errorf("%s, then: %v", name, err)
		}
	}
	_, l := serve(t, &service{})
	err := l.Call(t.Context(), patience, "/no.Service/Call", &registration.InfoRequest{}, &registration.PluginInfo{})
	if status.Code(err) != codes.Unimplemented {
		t.Errorf("no such service: %v", err)
	}
}

func TestHeadersAndTrailersOfServers(t *testing.T) {
	_, l := serve(t, &service{info: func(ctx context.Context) (*registration.PluginInfo, error) {
		many := metadata.Pairs("a", strings.Repeat("b", 5000), "x-bin", "\x00\xff")
		testkit.Must(t, grpc.SendHeader(ctx, many), grpc.SetTrailer(ctx, many))
		return &registration.PluginInfo{Name: "n"}, nil
	}})
	if info, err := ask(t, l); err != nil || info.Name != "n" {
		t.Errorf("%v, %v", info, err)
	}
}

func TestEndsOfCalls(t *testing.T) {
	hang := func(ctx context.Context) (*registration.PluginInfo, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	call := func(ctx context.Context, l *Line, within time.Duration) error {
		return l.Call(ctx, within, getInfo, &registration.InfoRequest{}, &registration.PluginInfo{})
	}
	_, l := serve(t, &service{info: hang})
	if err := call(t.Context(), l, 20*time.Millisecond); status.Code(err) != codes.DeadlineExceeded {
		t.Errorf("too slow: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	called := make(chan struct{})
	_, l = serve(t, &service{info: func(ctx context.Context) (*registration.PluginInfo, error) { close(called); return hang(ctx) }})
	go func() { <-called; cancel() }()
	if err := call(ctx, l, time.Minute); status.Code(err) != codes.Canceled || l.Usable() {
		t.Errorf("cancelled: %v", err)
	}
	if err := call(t.Context(), l, time.Minute); status.Code(err) != codes.Unavailable {
		t.Errorf("after that: %v", err)
	}
	var server *grpc.Server
	server, l = serve(t, &service{info: func(ctx context.Context) (*registration.PluginInfo, error) {
		go server.Stop()
		return hang(ctx)
	}})
	if err := call(t.Context(), l, time.Minute); status.Code(err) != codes.Unavailable {
		t.Errorf("the server ended: %v", err)
	}
}

// The server learns how long it has.
func TestTimeIsTold(t *testing.T) {
	left := make(chan time.Duration, 1)
	_, l := serve(t, &service{info: func(ctx context.Context) (*registration.PluginInfo, error) {
		deadline, _ := ctx.Deadline()
		left <- time.Until(deadline)
		return &registration.PluginInfo{}, nil
	}})
	began := time.Now()
	testkit.Value(ask(t, l))(t)
	// It is counted from when the server heard of the call.
	if got, took := <-left, time.Since(began); got > patience || got < patience-took {
		t.Errorf("the server has %s left of %s after %s", got, patience, took)
	}
}

// A server that asks for a sign of life between calls gets it.
func TestPingBetweenCalls(t *testing.T) {
	answered := make(chan struct{})
	l := answering(t, func(s *script) {
		s.begin().data(named1).end()
		_ = s.WritePing(false, [8]byte{1})
	}, func(c net.Conn) {
		frames := http2.NewFramer(nil, c)
		for {
			frame, err := frames.ReadFrame()
			if ping, ok := frame.(*http2.PingFrame); ok && ping.IsAck() {
				close(answered)
				return
			}
			if err != nil {
				return
			}
		}
	})
	testkit.Value(ask(t, l))(t)
	testkit.Eventually(t, "the ping is answered", func() bool {
		if !l.Usable() {
			t.Fatal("a ping ended the line")
		}
		select {
		case <-answered:
			return true
		default:
			return false
		}
	})
}

func TestGoneBetweenCalls(t *testing.T) {
	server, l := serve(t, &service{info: named("n")})
	testkit.Value(ask(t, l))(t)
	stopped := make(chan struct{})
	go func() { defer close(stopped); server.GracefulStop() }()
	// After 5 s the server says its last word, which is not what is waited for
	// here. On a slow machine the looks take longer, too.
	for looks := 0; l.Usable(); time.Sleep(time.Millisecond) {
		if looks++; looks > 3000 {
			t.Fatal("the server went away, and nobody saw it")
		}
	}
	_ = l.Close()
	<-stopped
}

func TestForeignPeers(t *testing.T) {
	words := func(words string, hangUp bool) func(net.Listener) {
		return func(l net.Listener) {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = c.Write([]byte(words))
			if !hangUp {
				_, _ = l.Accept() // until the listener closes
			}
			_ = c.Close()
		}
	}
	for name, c := range map[string]struct {
		serve func(net.Listener)
		waits time.Duration
		want  error
	}{
		"silent":   {words("", false), 50 * time.Millisecond, ErrSilent},
		"hangs up": {words("", true), patience, ErrForeign},
		"HTTP/1":   {words("HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n", false), patience, ErrForeign},
		"SSH":      {words("SSH-2.0-OpenSSH_9.9\r\n", false), patience, ErrForeign},
		"ping":     {words("\x00\x00\x08\x06\x00\x00\x00\x00\x0012345678", false), patience, ErrForeign},
	} {
		raw := testkit.Value(net.Dial("unix", listen(t, c.serve)))(t)
		l := New(raw, c.waits)
		if _, err := ask(t, l); !errors.Is(err, c.want) || (c.want == ErrSilent) != errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: got %v, want %v", name, err, c.want)
		}
		_ = l.Close()
	}
}

// A web server is no gRPC server, though it speaks HTTP/2.
func TestWebServer(t *testing.T) {
	for code, want := range map[int]codes.Code{404: codes.Unimplemented, 503: codes.Unavailable, 403: codes.PermissionDenied, 200: codes.Internal, 418: codes.Unknown} {
		var protocols http.Protocols
		protocols.SetUnencryptedHTTP2(true)
		server := &http.Server{Protocols: &protocols, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) })}
		l := dial(t, listen(t, func(l net.Listener) { _ = server.Serve(l) }))
		if _, err := ask(t, l); status.Code(err) != want || l.Usable() {
			t.Errorf("HTTP %d: %v, want %s", code, err, want)
		}
		testkit.Must(t, server.Close())
	}
}
