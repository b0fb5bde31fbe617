package server

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	health "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/cleatproject/cleat/test/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func table(err error) codes.Code {
	switch {
	case errors.Is(err, errNotFound):
		return codes.NotFound
	case errors.Is(err, errBusy):
		return codes.Aborted
	case err.Error() == "table says OK":
		return codes.OK
	}
	return codes.Internal
}

// service returns results of a function.
type service struct {
	health.UnimplementedHealthServer
	answer func(ctx context.Context) error
}

func (s *service) Check(ctx context.Context, _ *health.HealthCheckRequest) (*health.HealthCheckResponse, error) {
	return &health.HealthCheckResponse{Status: health.HealthCheckResponse_SERVING}, s.answer(ctx)
}

func (s *service) Watch(_ *health.HealthCheckRequest, stream health.Health_WatchServer) error {
	if err := stream.Send(&health.HealthCheckResponse{}); err != nil {
		return err
	}
	return s.answer(stream.Context())
}

type rig struct {
	t        *testing.T
	server   *GRPC
	service  *service
	client   health.HealthClient
	path     string
	registry *prometheus.Registry
	log      *testkit.Log
	served   chan error
}

func (r *rig) lines() []map[string]any {
	r.t.Helper()
	var all []map[string]any
	for text := range strings.Lines(r.log.Reset()) {
		var line map[string]any
		if err := json.Unmarshal([]byte(text), &line); err != nil {
			r.t.Fatalf("%v in %q", err, text)
		}
		all = append(all, line)
	}
	return all
}

func newRig(t *testing.T, level string, change ...func(*GRPCConfig)) *rig {
	t.Helper()
	r := &rig{t: t, registry: prometheus.NewRegistry(), log: &testkit.Log{}, served: make(chan error, 1)}
	r.service = &service{answer: func(context.Context) error { return nil }}
	logger := testkit.Value(NewLogger(r.log, "json", level))(t)
	c := GRPCConfig{Logger: logger, Metrics: r.registry, Code: table}
	for _, f := range change {
		f(&c)
	}
	r.server = testkit.Value(NewGRPC(c))(t)
	health.RegisterHealthServer(r.server, r.service)
	r.path = filepath.Join(t.TempDir(), "s.sock")
	l := testkit.Value(net.Listen("unix", r.path))(t)
	ctx, cancel := context.WithCancel(context.Background())
	go func() { r.served <- r.server.Serve(ctx, l) }()
	conn := testkit.Value(grpc.NewClient("unix://"+r.path, grpc.WithTransportCredentials(insecure.NewCredentials())))(t)
	r.client = health.NewHealthClient(conn)
	t.Cleanup(func() {
		_ = conn.Close()
		cancel()
		if err := <-r.served; err != nil {
			t.Error(err)
		}
	})
	return r
}

func (r *rig) check(ctx context.Context, options ...grpc.CallOption) error {
	_, err := r.client.Check(ctx, &health.HealthCheckRequest{Service: "the-request"}, options...)
	return err
}

func (r *rig) watch(ctx context.Context) (first, last error) {
	r.t.Helper()
	stream := testkit.Value(r.client.Watch(ctx, &health.HealthCheckRequest{Service: "the-request"}))(r.t)
	_, first = stream.Recv()
	_, last = stream.Recv()
	return first, last
}

// awaitIdle waits until no call is in flight.
func (r *rig) awaitIdle() {
	r.t.Helper()
	testkit.Eventually(r.t, "no call is in flight", func() bool { return r.server.running.Load() == 0 })
}
