package server

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"io"
	"log/slog"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/cleatproject/cleat/errs"
)

func logFormats() []string { return []string{"text", "json"} }

func logLevels() []string { return []string{"debug", "info", "warn", "error"} }

// NewLogger takes a format (text or json) and a level (debug, info, warn or
// error). The logger adds the request ID of the context, and writes durations
// in seconds.
func NewLogger(w io.Writer, format, level string) (*slog.Logger, error) {
	names := logLevels()
	least := []slog.Level{slog.LevelDebug, slog.LevelInfo, slog.LevelWarn, slog.LevelError}
	n := slices.Index(names, level)
	if n < 0 {
		return nil, unknown("log level", level, names)
	}
	options := &slog.HandlerOptions{Level: least[n], ReplaceAttr: durationInSeconds}
	switch format {
	case "text":
		return slog.New(withRequestID{slog.NewTextHandler(w, options)}), nil
	case "json":
		return slog.New(withRequestID{slog.NewJSONHandler(w, options)}), nil
	default:
		return nil, unknown("log format", format, logFormats())
	}
}

// durationInSeconds formats 0.0125s: slog writes nanoseconds without a unit in
// JSON, and varying units in text.
func durationInSeconds(_ []string, a slog.Attr) slog.Attr {
	if a.Value.Kind() == slog.KindDuration {
		seconds := a.Value.Duration().Round(time.Microsecond).Seconds()
		a.Value = slog.StringValue(strconv.FormatFloat(seconds, 'f', -1, 64) + "s")
	}
	return a
}

func unknown(what, word string, words []string) error {
	hint := ""
	if n := errs.Nearest(word, words); n != "" {
		hint = fmt.Sprintf(" (did you mean %q?)", n)
	}
	return fmt.Errorf("unknown %s %q%s, use one of %s", what, word, hint, strings.Join(words, ", "))
}

type withRequestID struct{ slog.Handler }

func (h withRequestID) Handle(ctx context.Context, r slog.Record) error {
	if id := RequestID(ctx); id != "" {
		r = r.Clone()
		r.AddAttrs(slog.String("request_id", id))
	}
	return h.Handler.Handle(ctx, r)
}

func (h withRequestID) WithAttrs(attrs []slog.Attr) slog.Handler {
	return withRequestID{h.Handler.WithAttrs(attrs)}
}

func (h withRequestID) WithGroup(name string) slog.Handler {
	return withRequestID{h.Handler.WithGroup(name)}
}

type requestIDKey struct{}

func newRequestID() string {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

func withID(ctx context.Context, id string) context.Context {
	return context.WithValue(ctx, requestIDKey{}, id)
}

// RequestID returns the ID of the context's call, or "".
func RequestID(ctx context.Context) string {
	id, _ := ctx.Value(requestIDKey{}).(string)
	return id
}

// Build identifies the program.
type Build struct{ Version, Commit string }

// newRegistry adds cleat_build_info and metrics of the Go runtime and the
// process.
func newRegistry(b Build) *prometheus.Registry {
	r := prometheus.NewRegistry()
	info := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "cleat_build_info",
		Help: "Always 1; the labels say which program it is.",
		ConstLabels: prometheus.Labels{
			"version": b.Version, "commit": b.Commit, "go": runtime.Version(),
		},
	})
	info.Set(1)
	r.MustRegister(info, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return r
}
