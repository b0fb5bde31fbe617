package instance

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/cleatproject/cleat/test/testkit"
)

func TestCheckEndpoint(t *testing.T) {
	for endpoint, want := range map[string]string{
		"/run/x.sock":                     "",
		"/run//x.sock":                    "", // unusual, but can be dialled
		"/odd://name.sock":                "",
		"":                                "empty",
		"unix:///run/x.sock":              `announce "/run/x.sock"`,
		"unix:/run/x.sock":                `announce "/run/x.sock"`,
		"unix://x.sock":                   "plain path",
		"tcp://127.0.0.1:80":              "plain path",
		"x.sock":                          "relative",
		"./x.sock":                        "relative",
		"/run/":                           "directory",
		"/run/\x00.sock":                  "NUL",
		"unix:x.sock":                     "relative",
		"/" + strings.Repeat("long/", 50): "directory",
	} {
		err := CheckEndpoint(endpoint)
		if want == "" && err != nil {
			t.Errorf("%q: %v", endpoint, err)
		}
		if want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: got %v, want something with %q", endpoint, err, want)
		}
	}
}

func FuzzCheckEndpoint(f *testing.F) {
	for _, seed := range []string{"/run/x.sock", "unix:///run/x.sock", "tcp://1.2.3.4:5", "", "x", "/\x00", "/a://b", "/run/"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, endpoint string) {
		err := CheckEndpoint(endpoint)
		if err == nil && (!filepath.IsAbs(endpoint) || strings.ContainsRune(endpoint, 0) || strings.HasSuffix(endpoint, "/")) {
			t.Errorf("%q was taken", endpoint)
		}
	})
}

// serve runs a gRPC server with the health service only.
func serve(t *testing.T, path string) {
	t.Helper()
	testkit.Serve(t, path, func(s grpc.ServiceRegistrar) { healthpb.RegisterHealthServer(s, health.NewServer()) })
}

func TestClient(t *testing.T) {
	path := filepath.Join(t.TempDir(), "plugin.sock")
	conn, err := Client(path)
	testkit.Must(t, err)
	defer func() { _ = conn.Close() }()
	ask := func(options ...grpc.CallOption) error {
		ctx := testkit.Context(t)
		_, err := healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{}, options...)
		return err
	}
	if err := ask(); status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), path) {
		t.Errorf("without a listener: %v", err)
	}
	if err := Connect(t.Context(), path); err == nil {
		t.Error("connected without a listener")
	}
	serve(t, path)
	if err := Connect(t.Context(), path); err != nil {
		t.Error(err)
	}
	testkit.Must(t, ask(grpc.WaitForReady(true))) // the connection is re-established
	err = conn.Invoke(t.Context(), "/csi.v1.Identity/Probe", &healthpb.HealthCheckRequest{}, &healthpb.HealthCheckResponse{})
	if err = Explain(path, "Probe", err); !strings.Contains(err.Error(), "another server listens there") {
		t.Errorf("a foreign server: %v", err)
	}
}

// A path that is too long for a socket address can be dialled.
func TestLongPath(t *testing.T) {
	long := filepath.Join(t.TempDir(), strings.Repeat("x", 100))
	testkit.Must(t, os.Mkdir(long, 0o750))
	dir := testkit.Value(os.Open(long))(t)
	defer func() { _ = dir.Close() }()
	short := fmt.Sprintf("/proc/self/fd/%d/p.sock", dir.Fd())
	l := testkit.Value(net.Listen("unix", short))(t)
	defer func() { _ = l.Close() }()
	if err := Connect(t.Context(), filepath.Join(long, "p.sock")); err != nil {
		t.Error(err)
	}
}

func TestSilentPeer(t *testing.T) {
	path := filepath.Join(t.TempDir(), "silent.sock")
	l := testkit.Value(net.Listen("unix", path))(t) // connections stay in the backlog
	defer func() { _ = l.Close() }()
	conn, err := Client(path)
	testkit.Must(t, err)
	defer func() { _ = conn.Close() }()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err = healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{})
	if err = Explain(path, "Check", err); !strings.Contains(err.Error(), "did not answer in time") {
		t.Errorf("a peer that stays silent: %v", err)
	}
}
