// Package server is what all servers of cleat have in common: settings, log,
// metrics, status, gRPC with its interceptors, sockets, and the order in which
// their parts start and stop. It knows no contract.
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

// GRPCConfig describes a server.
type GRPCConfig struct {
	Logger  *slog.Logger
	Metrics prometheus.Registerer // several servers may share one; nil: none
	// Code is the contract's table: what its errors are in gRPC. Required.
	Code func(error) codes.Code
	// Secrets are the boolean field options whose fields never reach a log,
	// as csi_secret.
	Secrets []protoreflect.ExtensionType
	// Private are fields that may hold secrets though no option marks them, as
	// csi.v1.VolumeCapability.MountVolume.mount_flags.
	Private []protoreflect.FullName
	// Quiet tells of methods whose successes are logged only at level debug,
	// since peers ask them all day; nil is QuietMethod.
	Quiet func(method string) bool
	// Throttle selects failures that are logged at most once a second, with the
	// number of those that were not; nil: none.
	Throttle func(method string, code codes.Code) bool
	// MaxReceive bounds one message, in bytes; zero is 4 MiB.
	MaxReceive int
	// MaxAge is how long a connection may be used for new calls, so that peers
	// have to show again who they are; zero is for ever. Calls that run when it
	// is over have ageGrace to end.
	MaxAge time.Duration
	// Keepalive is after how much silence a peer is asked whether it lives, and
	// how long it may then take to answer before its connection and its calls
	// end; not below a second. Peers answer by themselves, so it finds processes
	// that are stopped, not handlers that hang. Zero is hours.
	Keepalive time.Duration
}

const (
	maxReceive = 4 << 20
	// maxStreams bounds the calls at once on one connection. The sidecars have
	// some hundred workers at most, and a call is cheap while it waits.
	maxStreams = 1024
	// ageGrace is how long calls may run on a connection that is too old.
	ageGrace = 10 * time.Minute
	// cutOff is how long handlers have to return when they are cancelled.
	cutOff = 2 * time.Second
)

// Server serves gRPC. Register the services, then Serve.
type GRPC struct {
	logger    *slog.Logger
	code      func(error) codes.Code
	hidden    hidden
	quiet     func(string) bool
	throttled func(string, codes.Code) bool
	throttle  throttle
	metrics   *metrics
	running   atomic.Int64
	grpc      *grpc.Server
}

// New makes a server. It fails when the metrics cannot be registered.
func NewGRPC(c GRPCConfig) (*GRPC, error) {
	if c.Code == nil {
		return nil, errors.New("a server needs a table of codes")
	}
	m, err := newMetrics(c.Metrics)
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
		// The peers are local and long-lived; some ping often, and being cut
		// off for it would cost them calls.
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: time.Second, PermitWithoutStream: true}),
	)
	return s, nil
}

// RegisterService makes a Server a grpc.ServiceRegistrar, for the generated
// Register functions.
func (s *GRPC) RegisterService(d *grpc.ServiceDesc, implementation any) {
	s.grpc.RegisterService(d, implementation)
}

// Serve takes calls from l, which it closes at the end. It returns nil after
// Drain; when ctx ends, running calls are cut off.
func (s *GRPC) Serve(ctx context.Context, l net.Listener) error {
	unhook := context.AfterFunc(ctx, s.grpc.Stop)
	defer unhook()
	if err := s.grpc.Serve(l); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		return fmt.Errorf("serve %s: %w", l.Addr(), err)
	}
	return nil
}

// Drain takes no more calls and waits for those that run. When ctx ends first
// they are cancelled, and the error tells how many there were.
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
	go s.grpc.Stop() // makes GracefulStop return, when the handlers have
	late := time.NewTimer(cutOff)
	defer late.Stop()
	select {
	case <-drained:
		return fmt.Errorf("%d calls were cut off: %w", left, ctx.Err())
	case <-late.C:
		return fmt.Errorf("%d calls were cut off and %d do not end: %w", left, s.running.Load(), ctx.Err())
	}
}
