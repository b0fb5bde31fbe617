package watch

import (
	"context"
	"log/slog"
	"slices"
	"time"
)

func (s *socket) update(phase Phase, change func(*Status)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if change != nil {
		change(&s.status)
	}
	s.publish(s, phase)
}

// publish, with Host.mu held, reports to subscribers, metrics and the log.
func (h *Host) publish(s *socket, phase Phase) {
	now := time.Now()
	if s.status.Phase != phase {
		s.status.Phase, s.status.Since = phase, now
	}
	repeated := phase == Failed && s.status.Error == s.reported
	if phase == Failed {
		s.reported = s.status.Error
	}
	h.metrics.status(s.status, h.handlers[s.status.Type] != nil)
	h.log(s.status, repeated)
	h.hub.publish(now, s.status)
}

func (h *Host) log(s Status, repeated bool) {
	level, message := s.entry(repeated)
	if !h.o.Logger.Enabled(context.Background(), level) {
		return
	}
	attrs := []slog.Attr{slog.String("socket", s.Socket), slog.String("phase", string(s.Phase))}
	if s.Type != "" || s.Name != "" {
		attrs = append(attrs, slog.String("type", s.Type), slog.String("name", s.Name))
	}
	if s.Phase == Registered {
		attrs = append(attrs, slog.String("endpoint", s.Endpoint), slog.Any("versions", s.Versions))
	}
	if s.Error != "" {
		attrs = append(attrs, slog.String("step", string(s.Step)), slog.String("err", s.Error), slog.String("reason", s.Reason))
	}
	if !s.NextTry.IsZero() {
		attrs = append(attrs, slog.Int("attempt", s.Attempts), slog.Duration("next", time.Until(s.NextTry).Round(time.Millisecond)))
	}
	h.o.Logger.LogAttrs(context.Background(), level, message, attrs...)
}

// A repeated failure is logged at debug level.
func (s Status) entry(repeated bool) (slog.Level, string) {
	switch {
	case s.Phase == Registered && s.Dead:
		return slog.LevelWarn, "registered plugin is dead"
	case s.Phase == Registered:
		return slog.LevelInfo, "plugin registered"
	case s.Phase == Failed && repeated:
		return slog.LevelDebug, "plugin still not registered"
	case s.Phase == Failed:
		return slog.LevelWarn, "plugin not registered"
	case s.Phase == Gone && s.Type != "":
		return slog.LevelInfo, "plugin gone"
	case s.Phase == Gone:
		return slog.LevelDebug, "socket gone"
	}
	return slog.LevelDebug, "plugin phase changed"
}

// kinds needs Host.mu.
func (h *Host) kinds() []string {
	kinds := make([]string, 0, len(h.handlers))
	for kind := range h.handlers {
		kinds = append(kinds, kind)
	}
	slices.Sort(kinds)
	return kinds
}

func (h *Host) types() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.kinds()
}

// label is bounded: all types without a handler are one.
func (s *socket) label() string {
	if s.handler(s.status.Type) == nil {
		return unknownType
	}
	return s.status.Type
}
