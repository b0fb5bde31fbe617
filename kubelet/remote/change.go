package remote

import (
	"context"
	"iter"
	"time"

	hostv1 "github.com/cleatproject/cleat/api/host/v1"
	"github.com/cleatproject/cleat/kubelet/watch"
)

// Kind is what a Change means to whoever follows a host.
type Kind string

// The kinds of a Change. First comes each plugin as Present, then Synced, then
// what changes. After Restart, which is for those who were too slow, all comes
// again as at the beginning.
const (
	Present Kind = "present" // the plugin is so now: new, or changed
	Gone    Kind = "gone"    // its socket went, and it is deregistered
	Synced  Kind = "synced"  // all that there was has been told
	Restart Kind = "restart" // something was missed: forget all
)

func kinds() map[Kind]hostv1.WatchPluginsResponse_Kind {
	return map[Kind]hostv1.WatchPluginsResponse_Kind{
		Present: hostv1.WatchPluginsResponse_KIND_PRESENT, Gone: hostv1.WatchPluginsResponse_KIND_GONE,
		Synced: hostv1.WatchPluginsResponse_KIND_SYNCED, Restart: hostv1.WatchPluginsResponse_KIND_RESTART,
	}
}

// Change is one step of following a host.
type Change struct {
	Kind Kind      `json:"kind"`
	Time time.Time `json:"time"` // when it came to be so
	// Plugin is set for Present and Gone.
	Plugin *watch.Status `json:"plugin,omitempty"`
}

// Follow yields how all plugins of a host are and what changes, until ctx ends
// or the host is closed.
func Follow(ctx context.Context, h *watch.Host) iter.Seq[Change] {
	return func(yield func(Change) bool) {
		for again := true; again; {
			again = follow(ctx, h, yield) && yield(Change{Kind: Restart, Time: time.Now()})
		}
	}
}

// follow does so up to the first gap, which it reports.
func follow(ctx context.Context, h *watch.Host, yield func(Change) bool) (gap bool) {
	events := h.Subscribe(ctx) // before the look, so that nothing is missed between
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
