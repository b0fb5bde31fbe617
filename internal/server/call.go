package server

import (
	"context"
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
)

// requestIDHeader is the metadata key under which peers send an id, and get the
// one that was used.
const requestIDHeader = "x-request-id"

func (s *GRPC) unary(ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (response any, err error) {
	ctx, id := identify(ctx)
	_ = grpc.SetHeader(ctx, metadata.Pairs(requestIDHeader, id)) // only fails when the peer is gone
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

// watchedStream carries the context with the request id, and shows the first
// message to the log.
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
		id = NewRequestID()
	}
	return WithRequestID(ctx, id), id
}

// isSane admits what may stand in every line of the log.
func isSane(id string) bool {
	return id != "" && len(id) <= 128 && !strings.ContainsFunc(id, func(r rune) bool {
		return r > '~' || r <= ' ' || r == '"' || r == '\\'
	})
}

// call is one call under way.
type call struct {
	*GRPC
	method  string
	request any // nil until a stream's first message
}

// observe runs the handler, and logs and counts what became of it. The error
// it returns is what the peer gets.
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

// recovered runs the handler. A panic is logged with its stack and counted, and
// the peer learns no more than where to look.
func (c *call) recovered(ctx context.Context, handler func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			c.Panicked(ctx, c.method, v, debug.Stack())
			err = status.Errorf(codes.Internal, "internal error; the log has it as request %s", RequestID(ctx))
		}
	}()
	return handler()
}

// Panicked logs and counts a panic that was recovered elsewhere on behalf of a
// call, as in an operation that outlived it.
func (s *GRPC) Panicked(ctx context.Context, where string, value any, stack []byte) {
	s.metrics.panics.Inc()
	s.logger.ErrorContext(ctx, "panic", "where", where, "value", fmt.Sprint(value), "stack", string(stack))
}

func (c *call) begin(ctx context.Context) {
	c.logger.DebugContext(ctx, "call begins", "method", c.method, "request", c.hidden.view(c.request))
}

// end logs the outcome: a failure with the request that led to it, a success
// without, and one of a quiet method only at level debug. Failures selected by
// GRPCConfig.Throttle are logged once a second.
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
	case codes.Canceled: // the peer's own doing
	default:
		level = slog.LevelWarn
	}
	if result.Code() != codes.OK {
		attrs = append(attrs, slog.String("error", result.Message()))
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

// throttle admits one line of the log in a second.
type throttle struct {
	mu         sync.Mutex
	last       time.Time
	suppressed int
}

// take reports whether a line may be logged now, and how many could not be
// since the last one.
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

// QuietMethod reports whether a method only asks: probes, lists, and what is
// named after getting or validating.
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
