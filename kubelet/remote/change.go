package remote

import (
	"context"
	"iter"
	"time"

	hostv1 "github.com/cleatproject/cleat/api/host/v1"
	"github.com/cleatproject/cleat/kubelet/watch"
)

// Kind is the kind of a Change.
type Kind string

// The kinds of a Change. A watch starts with a Present for each plugin and then
// Synced; after that come changes. Restart is sent to a client that was too
// slow: everything is sent again as at the start.
const (
	Present Kind = "present" // the plugin is new or changed
	Gone    Kind = "gone"    // the socket is gone and the plugin is deregistered
	Synced  Kind = "synced"  // the initial list is complete
	Restart Kind = "restart" // changes were missed: discard all state
)

func kinds() map[Kind]hostv1.WatchPluginsResponse_Kind {
	return map[Kind]hostv1.WatchPluginsResponse_Kind{
		Present: hostv1.WatchPluginsResponse_KIND_PRESENT, Gone: hostv1.WatchPluginsResponse_KIND_GONE,
		Synced: hostv1.WatchPluginsResponse_KIND_SYNCED, Restart: hostv1.WatchPluginsResponse_KIND_RESTART,
	}
}

// Change is one message of a watch.
type Change struct {
	Kind Kind      `json:"kind"`
	Time time.Time `json:"time"` // of the change
	// Plugin is set for Present and Gone.
	Plugin *watch.Status `json:"plugin,omitempty"`
}

// Follow yields all plugins of a host and then each change, until ctx ends or
// the host is closed.
func Follow(ctx context.Context, h *watch.Host) iter.Seq[Change] {
	return func(yield func(Change) bool) {
		for again := true; again; {
			again = follow(ctx, h, yield) && yield(Change{Kind: Restart, Time: time.Now()})
		}
	}
}

// follow yields changes until the first gap, and reports whether there was one.
func follow(ctx context.Context, h *watch.Host, yield func(Change) bool) (gap bool) {
	events := h.Subscribe(ctx) // before Snapshot, so that no change is missed
	known, all := h.Snapshot()
	for _, s := range all {
		if !yield(Change{Kind: Present, Time: s.Since, Plugin: &s}) {
			return false
		}
	}
	if !yield(Change{Kind: Synced, Time: time.Now()}) {
		return false
	}
	for e := range events {
		switch {
		case e.Lost:
			return true
		case e.Serial <= known:
			continue
		}
		c := Change{Kind: Present, Time: e.Time, Plugin: &e.Status}
		if e.Status.Phase == watch.Gone {
			c.Kind = Gone
		}
		if !yield(c) {
			return false
		}
	}
	return false
}

func changeToWire(c Change) *hostv1.WatchPluginsResponse {
	m := &hostv1.WatchPluginsResponse{Kind: kinds()[c.Kind], Time: timeToWire(c.Time)}
	if c.Plugin != nil {
		m.Plugin = toWire(*c.Plugin)
	}
	return m
}

func changeFromWire(m *hostv1.WatchPluginsResponse) Change {
	c := Change{Time: timeFromWire(m.GetTime())}
	for kind, number := range kinds() {
		if number == m.GetKind() {
			c.Kind = kind
		}
	}
	if m.GetPlugin() != nil {
		s := fromWire(m.GetPlugin())
		c.Plugin = &s
	}
	return c
}
