package register

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

const (
	firstReminder = time.Minute
	lastReminder  = 10 * time.Minute
)

type reporter struct {
	mu    sync.Mutex
	state State
	text  string
	next  time.Time
	pause time.Duration
}

// report logs changes, and repeats problems.
func (r *Registrar) report() {
	r.reports.mu.Lock()
	defer r.reports.mu.Unlock()
	r.mu.Lock()
	sought := !r.record.watchersFound.IsZero()
	r.mu.Unlock()
	s := r.Status()
	if s.State == Silent && !sought {
		return // logged with the watchers after the next check
	}
	if r.reports.due(s, time.Now()) {
		s.log(r.logger)
	}
}

func (p *reporter) due(s Status, now time.Time) bool {
	text := s.Error
	if s.State == Absent || s.State == Yielding {
		text = s.Reason
	}
	switch {
	case s.State != p.state || text != p.text:
		p.state, p.text, p.pause = s.State, text, firstReminder
	case s.Reason == "" || now.Before(p.next):
		return false
	default:
		p.pause = min(2*p.pause, lastReminder)
	}
	p.next = now.Add(p.pause)
	return true
}

func (s Status) log(l *slog.Logger) {
	level, message := slog.LevelWarn, "plugin not registered"
	switch s.State {
	case Registered:
		level, message = slog.LevelInfo, "plugin registered"
	case Waiting:
		level, message = slog.LevelInfo, "registration socket created"
	case Asked:
		level, message = slog.LevelDebug, "GetInfo called by host"
		if s.Reason != "" {
			level, message = slog.LevelWarn, "plugin not registered"
		}
	case Refused:
		level, message = slog.LevelWarn, "plugin registration refused by host"
	}
	attrs := []slog.Attr{
		slog.String("state", string(s.State)), slog.String("type", s.Type), slog.String("name", s.Name),
		slog.String("socket", s.Socket), slog.String("announced", s.Endpoint),
	}
	if s.Error != "" {
		attrs = append(attrs, slog.String("err", s.Error))
	}
	if s.Reason != "" {
		attrs = append(attrs, slog.String("reason", s.Reason))
	}
	l.LogAttrs(context.Background(), level, message, attrs...)
}
