package server

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"io"
	"log/slog"
	"strconv"
	"strings"
	"time"

	"github.com/cleatproject/cleat/errs"
)

// Formats and Levels are the words that NewLogger takes.
func Formats() []string { return []string{"text", "json"} }

// Levels are the words for the least important lines that are written.
func Levels() []string { return []string{"debug", "info", "warn", "error"} }

// NewLogger makes a logger that writes lines of a format from a level on. The
// request id of a line's context is added to it, and durations are in seconds.
func NewLogger(w io.Writer, format, level string) (*slog.Logger, error) {
	var least slog.Level
	switch level {
	case "debug":
		least = slog.LevelDebug
	case "info":
		least = slog.LevelInfo
	case "warn":
		least = slog.LevelWarn
	case "error":
		least = slog.LevelError
	default:
		return nil, unknown("log level", level, Levels())
	}
	options := &slog.HandlerOptions{Level: least, ReplaceAttr: durationInSeconds}
	switch format {
	case "text":
		return slog.New(withRequestID{slog.NewTextHandler(w, options)}), nil
	case "json":
		return slog.New(withRequestID{slog.NewJSONHandler(w, options)}), nil
	default:
		return nil, unknown("log format", format, Formats())
	}
}

// durationInSeconds writes a duration as 0.0125s: slog's JSON has nanoseconds
// without a unit, and its text a unit of its own choice.
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
	return fmt.Errorf("%s %q is unknown%s; it is one of %s", what, word, hint, strings.Join(words, ", "))
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

// NewRequestID makes an id for a call that came without one.
func NewRequestID() string {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails, see its documentation
	return hex.EncodeToString(b[:])
}

// WithRequestID returns a context that carries the id of a call.
func WithRequestID(ctx context.Context, id string) context.Context {
	return context.WithValue(ctx, requestIDKey{}, id)
}

// RequestID returns the id that the context carries, or "".
func RequestID(ctx context.Context) string {
	id, _ := ctx.Value(requestIDKey{}).(string)
	return id
}
