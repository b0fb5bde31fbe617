package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// GRPCConfig describes a gRPC server.
type GRPCConfig struct {
	Logger  *slog.Logger
	Metrics prometheus.Registerer // can be shared by servers; nil: no metrics
	// Code maps errors to the contract's gRPC codes. Required.
	Code func(error) codes.Code
	// Secrets are boolean field options, such as csi_secret, whose fields are
	// never logged.
	Secrets []protoreflect.ExtensionType
	// Private fields can contain secrets although no option marks them, such as
	// csi.v1.VolumeCapability.MountVolume.mount_flags.
	Private []protoreflect.FullName
	// Quiet selects frequent methods, whose successes are logged at level
	// debug; default QuietMethod.
	Quiet func(method string) bool
	// Throttle selects failures logged at most once per second, with the number
	// of suppressed ones; nil: no throttling.
	Throttle func(method string, code codes.Code) bool
	// MaxReceive limits messages, in bytes; default 4 MiB.
	MaxReceive int
	// MaxAge is how long a connection accepts new calls, so that peers
	// authenticate again; zero is unlimited. In-flight calls then have
	// ageGrace.
	MaxAge time.Duration
	// Keepalive is the idle time before a ping, and its timeout; at least a
	// second. gRPC answers pings itself, so this detects stopped processes, not
	// hanging handlers. Zero is hours.
	Keepalive time.Duration
}

const (
	maxReceive = 4 << 20
	// maxStreams per connection. Sidecars have at most a hundred workers, and a
	// waiting call is cheap.
	maxStreams = 1024
	// ageGrace is for in-flight calls on a connection older than MaxAge.
	ageGrace = 10 * time.Minute
	// cancelTimeout is for canceled handlers to return.
	cancelTimeout = 2 * time.Second
)

// GRPC is a gRPC server with request IDs, a log without secrets, metrics, panic
// recovery, mapping of errors to the contract's codes, and shutdown with a
// timeout. It neither validates nor locks. Register the services before Serve.
type GRPC struct {
	logger    *slog.Logger
	code      func(error) codes.Code
	hidden    hidden
	quiet     func(string) bool
	throttled func(string, codes.Code) bool
	throttle  throttle
	metrics   *callMetrics
	running   atomic.Int64
	grpc      *grpc.Server
}

// NewGRPC fails if the metrics cannot be registered.
func NewGRPC(c GRPCConfig) (*GRPC, error) {
	if c.Code == nil {
		return nil, errors.New("GRPCConfig.Code is required")
	}
	m, err := newCallMetrics(c.Metrics)
	if err != nil {
		return nil, err
	}
	s := &GRPC{logger: c.Logger, code: c.Code, hidden: hidden{c.Secrets, c.Private}, quiet: c.Quiet, throttled: c.Throttle, metrics: m}
	if s.logger == nil {
		s.logger = slog.New(slog.DiscardHandler)
	}
	if s.quiet == nil {
		s.quiet = QuietMethod
	}
	if c.MaxReceive == 0 {
		c.MaxReceive = maxReceive
	}
	s.grpc = grpc.NewServer(
		grpc.UnaryInterceptor(s.unary),
		grpc.StreamInterceptor(s.stream),
		grpc.MaxRecvMsgSize(c.MaxReceive),
		grpc.MaxConcurrentStreams(maxStreams),
		grpc.ConnectionTimeout(20*time.Second),
		grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionAge: c.MaxAge, MaxConnectionAgeGrace: ageGrace, Time: c.Keepalive, Timeout: c.Keepalive}),
		grpc.WaitForHandlers(true),
		// Some peers ping often; closing their connections would fail their
		// calls.
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: time.Second, PermitWithoutStream: true}),
	)
	return s, nil
}

// RegisterService implements grpc.ServiceRegistrar.
func (s *GRPC) RegisterService(d *grpc.ServiceDesc, implementation any) {
	s.grpc.RegisterService(d, implementation)
}

// Serve accepts calls from l, and closes l at the end. It returns nil after
// Drain; when ctx ends, in-flight calls are canceled.
func (s *GRPC) Serve(ctx context.Context, l net.Listener) error {
	unhook := context.AfterFunc(ctx, s.grpc.Stop)
	defer unhook()
	if err := s.grpc.Serve(l); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		return fmt.Errorf("serve %s: %w", l.Addr(), err)
	}
	return nil
}

// Drain stops accepting calls and waits for in-flight ones. When ctx ends they
// are canceled, and the error has their number.
func (s *GRPC) Drain(ctx context.Context) error {
	drained := make(chan struct{})
	go func() {
		s.grpc.GracefulStop()
		close(drained)
	}()
	select {
	case <-drained:
		return nil
	case <-ctx.Done():
	}
	left := s.running.Load()
	go s.grpc.Stop() // lets GracefulStop return after the handlers
	late := time.NewTimer(cancelTimeout)
	defer late.Stop()
	select {
	case <-drained:
		return fmt.Errorf("%d calls canceled: %w", left, ctx.Err())
	case <-late.C:
		return fmt.Errorf("%d calls canceled, %d still running: %w", left, s.running.Load(), ctx.Err())
	}
}

// callMetrics counts calls. The method label is bounded: only registered
// methods reach an interceptor.
type callMetrics struct {
	calls   *prometheus.CounterVec
	seconds *prometheus.HistogramVec
	running prometheus.Gauge
	panics  prometheus.Counter
}

// newCallMetrics registers the metrics, or returns those of another gRPC server
// of the process.
func newCallMetrics(r prometheus.Registerer) (*callMetrics, error) {
	m := &callMetrics{
		calls: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "cleat_rpc_calls_total", Help: "Calls that ended, by method and gRPC code.",
		}, []string{"method", "code"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "cleat_rpc_duration_seconds", Help: "How long calls took, by method.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120},
		}, []string{"method"}),
		running: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "cleat_rpc_calls_running", Help: "Calls that run now.",
		}),
		panics: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "cleat_rpc_panics_total", Help: "Panics that were recovered; each is a bug, and the log has its stack.",
		}),
	}
	if r == nil {
		return m, nil
	}
	err := errors.Join(shared(r, &m.calls), shared(r, &m.seconds), shared(r, &m.running), shared(r, &m.panics))
	if err != nil {
		return nil, fmt.Errorf("register call metrics: %w", err)
	}
	return m, nil
}

// shared sets *c to the collector that is registered in the end.
func shared[C prometheus.Collector](r prometheus.Registerer, c *C) error {
	err := r.Register(*c)
	if registered, ok := errors.AsType[prometheus.AlreadyRegisteredError](err); ok {
		existing, ok := registered.ExistingCollector.(C)
		if !ok {
			return err
		}
		*c = existing
		return nil
	}
	return err
}
