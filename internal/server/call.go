package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/cleatproject/cleat/errs"
)

// requestIDHeader is in requests and responses.
const requestIDHeader = "x-request-id"

func (s *GRPC) unary(ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (response any, err error) {
	ctx, id := identify(ctx)
	_ = grpc.SetHeader(ctx, metadata.Pairs(requestIDHeader, id)) // fails only if the peer has disconnected
	c := &call{GRPC: s, method: info.FullMethod, request: request}
	err = c.observe(ctx, func() error {
		var err error
		response, err = handler(ctx, request)
		return err
	})
	if err != nil {
		return nil, err
	}
	return response, nil
}

func (s *GRPC) stream(service any, inner grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	ctx, id := identify(inner.Context())
	_ = inner.SetHeader(metadata.Pairs(requestIDHeader, id))
	c := &call{GRPC: s, method: info.FullMethod}
	return c.observe(ctx, func() error {
		return handler(service, &watchedStream{ServerStream: inner, ctx: ctx, call: c})
	})
}

// watchedStream provides the request ID, and logs the first message.
type watchedStream struct {
	grpc.ServerStream
	ctx  context.Context
	call *call
	once sync.Once
}

func (w *watchedStream) Context() context.Context { return w.ctx }

func (w *watchedStream) RecvMsg(m any) error {
	err := w.ServerStream.RecvMsg(m)
	if err == nil {
		w.once.Do(func() {
			w.call.request = m
			w.call.begin(w.ctx)
		})
	}
	return err
}

func identify(ctx context.Context) (context.Context, string) {
	var id string
	if sent := metadata.ValueFromIncomingContext(ctx, requestIDHeader); len(sent) == 1 && isSane(sent[0]) {
		id = sent[0]
	} else {
		id = newRequestID()
	}
	return withID(ctx, id), id
}

// isSane reports whether an ID is safe in log lines.
func isSane(id string) bool {
	return id != "" && len(id) <= 128 && !strings.ContainsFunc(id, func(r rune) bool {
		return r > '~' || r <= ' ' || r == '"' || r == '\\'
	})
}

type call struct {
	*GRPC
	method  string
	request any // nil until a stream's first message
}

// observe logs and counts the handler's result, and returns the error for the
// peer.
func (c *call) observe(ctx context.Context, handler func() error) error {
	start := time.Now()
	c.running.Add(1)
	c.metrics.running.Inc()
	defer func() {
		c.running.Add(-1)
		c.metrics.running.Dec()
	}()
	if c.request != nil {
		c.begin(ctx)
	}
	result := c.answer(c.recovered(ctx, handler))
	took := time.Since(start)
	method, code := strings.TrimPrefix(c.method, "/"), result.Code()
	c.metrics.calls.WithLabelValues(method, code.String()).Inc()
	c.metrics.seconds.WithLabelValues(method).Observe(took.Seconds())
	c.end(ctx, result, took)
	return result.Err()
}

// recovered converts a panic to an error without details.
func (c *call) recovered(ctx context.Context, handler func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			c.metrics.panicked(ctx, c.logger, c.method, v, debug.Stack())
			err = status.Errorf(codes.Internal, "internal error, see the log of request %s", RequestID(ctx))
		}
	}()
	return handler()
}

func (m *callMetrics) panicked(ctx context.Context, logger *slog.Logger, where string, value any, stack []byte) {
	m.panics.Inc()
	logger.ErrorContext(ctx, "panic recovered", "source", where, "value", fmt.Sprint(value), "stack", string(stack))
}

// Panicked reports a panic outside a handler, such as in an operation that
// outlived its call.
func (s *Server) Panicked(ctx context.Context, where string, value any, stack []byte) {
	s.calls.panicked(ctx, s.Logger, where, value, stack)
}

func (c *call) begin(ctx context.Context) {
	c.logger.DebugContext(ctx, "call started", "method", c.method, "request", c.hidden.view(c.request))
}

// end logs failures with the request, successes without it, and those of quiet
// methods at level debug.
func (c *call) end(ctx context.Context, result *status.Status, took time.Duration) {
	attrs := []slog.Attr{
		slog.String("method", c.method), slog.String("code", result.Code().String()), slog.Duration("duration", took),
	}
	level := slog.LevelInfo
	switch result.Code() {
	case codes.OK:
		if c.quiet(c.method) {
			level = slog.LevelDebug
		}
	case codes.Internal, codes.Unknown, codes.DataLoss:
		level = slog.LevelError
	case codes.Canceled: // by the peer
	default:
		level = slog.LevelWarn
	}
	if result.Code() != codes.OK {
		attrs = append(attrs, slog.String("err", result.Message()))
		if c.request != nil {
			attrs = append(attrs, slog.Any("request", c.hidden.view(c.request)))
		}
		if c.throttled != nil && c.throttled(c.method, result.Code()) {
			suppressed, ok := c.throttle.take(time.Now())
			if !ok {
				return
			}
			attrs = append(attrs, slog.Int("suppressed", suppressed))
		}
	}
	c.logger.LogAttrs(ctx, level, "call", attrs...)
}

// throttle admits one log line per second.
type throttle struct {
	mu         sync.Mutex
	last       time.Time
	suppressed int
}

// take also returns the number of lines suppressed since the last one.
func (t *throttle) take(now time.Time) (suppressed int, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if now.Sub(t.last) < time.Second {
		t.suppressed++
		return 0, false
	}
	suppressed, t.suppressed, t.last = t.suppressed, 0, now
	return suppressed, true
}

// QuietMethod reports whether a method only reads, by its name.
func QuietMethod(method string) bool {
	name := method[strings.LastIndexByte(method, '/')+1:]
	for _, prefix := range []string{"Group", "Controller", "Node"} {
		name = strings.TrimPrefix(name, prefix)
	}
	for _, word := range []string{"Probe", "Get", "List", "Validate", "Check", "Watch"} {
		if strings.HasPrefix(name, word) {
			return true
		}
	}
	return false
}

// maxMessage of an error, in bytes: it is sent in a header, and copied into
// events and annotations.
const maxMessage = 4 << 10

// answer returns the status for the peer: a gRPC status unchanged, others by
// the contract's code function, and context errors where that has no better
// code.
func (s *GRPC) answer(err error) *status.Status {
	if err == nil {
		return status.New(codes.OK, "")
	}
	// Not errors.As: a wrapped status is another server's.
	if direct, ok := err.(interface{ GRPCStatus() *status.Status }); ok {
		if st := direct.GRPCStatus(); st.Code() != codes.OK {
			return status.New(st.Code(), errs.Clip(st.Message(), maxMessage))
		}
	}
	code := s.code(err)
	switch code {
	case codes.Internal, codes.Unknown, codes.OK:
		switch {
		case errors.Is(err, context.DeadlineExceeded):
			code = codes.DeadlineExceeded
		case errors.Is(err, context.Canceled):
			code = codes.Canceled
		case code == codes.OK:
			code = codes.Unknown // an error never maps to OK
		}
	}
	return status.New(code, errs.Clip(err.Error(), maxMessage))
}
