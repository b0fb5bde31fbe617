package watch

import (
	"context"
	"log/slog"
	"time"
)

// publish makes a new status known: to subscribers, the metrics and the log.
func (h *Host) publish(c change) {
	h.metrics.status(c.Status, h.machine.handled[c.Type])
	h.log(c)
	h.hub.publish(time.Now(), c.Status)
}

func (h *Host) log(c change) {
	level, message := c.entry()
	if !h.o.Logger.Enabled(context.Background(), level) {
		return
	}
	attrs := []slog.Attr{slog.String("socket", c.Socket)}
	if c.Type != "" || c.Name != "" {
		attrs = append(attrs, slog.String("type", c.Type), slog.String("name", c.Name))
	}
	if c.Phase == Registered {
		attrs = append(attrs, slog.String("endpoint", c.Endpoint), slog.Any("versions", c.Versions))
	}
	if c.Error != "" {
		attrs = append(attrs, slog.String("step", string(c.Step)), slog.String("error", c.Error), slog.String("reason", c.Reason))
	}
	if !c.NextTry.IsZero() {
		attrs = append(attrs, slog.Int("attempts", c.Attempts), slog.Duration("next", time.Until(c.NextTry).Round(time.Millisecond)))
	}
	h.o.Logger.LogAttrs(context.Background(), level, message, attrs...)
}

// entry is what the log says of a change: something at info and above only
// when it is news.
func (c change) entry() (slog.Level, string) {
	switch {
	case c.Phase == Registered && c.Dead:
		return slog.LevelWarn, "a registered plugin is dead"
	case c.Phase == Registered:
		return slog.LevelInfo, "plugin registered"
	case c.Phase == Failed && c.news:
		return slog.LevelWarn, "plugin not registered"
	case c.Phase == Failed:
		return slog.LevelDebug, "plugin not registered, again"
	case c.Phase == Gone && c.Type != "":
		return slog.LevelInfo, "plugin gone"
	case c.Phase == Gone:
		return slog.LevelDebug, "socket gone"
	}
	return slog.LevelDebug, "plugin " + string(c.Phase)
}
