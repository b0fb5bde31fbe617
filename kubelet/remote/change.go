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

// A watch starts with a Present for each plugin and then Synced. Restart is for
// a slow client: everything is sent again.
const (
	Present Kind = "present" // new or changed
	Gone    Kind = "gone"    // deregistered
	Synced  Kind = "synced"  // initial list complete
	Restart Kind = "restart" // changes were missed: discard all state
)

func kinds() map[Kind]hostv1.WatchPluginsResponse_Kind {
	return map[Kind]hostv1.WatchPluginsResponse_Kind{
		Present: hostv1.WatchPluginsResponse_KIND_PRESENT, Gone: hostv1.WatchPluginsResponse_KIND_GONE,
		Synced: hostv1.WatchPluginsResponse_KIND_SYNCED, Restart: hostv1.WatchPluginsResponse_KIND_RESTART,
	}
}

// Change is a message of a watch.
type Change struct {
	Kind Kind      `json:"kind"`
	Time time.Time `json:"time"`
	// For Present and Gone.
	Plugin *watch.Status `json:"plugin,omitempty"`
}

// source is a watch.Host.
type source interface {
	Subscribe(ctx context.Context) iter.Seq[watch.Event]
	Snapshot() (serial uint64, all []watch.Status)
}

// Follow yields a host's plugins and then each change, until ctx ends or the
// host is closed.
func Follow(ctx context.Context, h source) iter.Seq[Change] {
	return func(yield func(Change) bool) {
		for again := true; again; {
			again = follow(ctx, h, yield) && yield(Change{Kind: Restart, Time: time.Now()})
		}
	}
}

// follow ends at the first gap, and reports it.
func follow(ctx context.Context, h source, yield func(Change) bool) (gap bool) {
	events := h.Subscribe(ctx) // before Snapshot, to miss no change
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
