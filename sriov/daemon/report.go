package daemon

import (
	"context"
	"errors"
	"log/slog"
	"reflect"
	"sync"
	"time"

	"github.com/cleatproject/cleat/sriov/nodestate"
	"github.com/cleatproject/cleat/sriov/nodestate/source"
	"github.com/cleatproject/cleat/sriov/plan"
)

// reported is the status of one object.
type reported struct {
	uid    string
	status nodestate.Status
}

// grounds are what a report follows from.
type grounds struct {
	uid, spec, source, reason string
	phase                     Phase
	last                      *looked
}

// report says how far the wish came true, in the operator's words.
func report(m *machine) reported {
	s := plan.Status(m.wish.Spec, m.last.state)
	s.SyncStatus, s.LastSyncError = nodestate.InProgress, ""
	switch m.status.Phase {
	case Serving:
		s.SyncStatus = nodestate.Succeeded
	case Failed:
		s.SyncStatus, s.LastSyncError = nodestate.Failed, m.status.Reason
	case Blocked, Away:
		s.LastSyncError = m.status.Reason
	}
	if m.source != nil { // the object is newer than what is served
		s.SyncStatus, s.LastSyncError = nodestate.Failed, m.source.Error()
	}
	return reported{m.wish.UID, s}
}

// reporter writes statuses one after the other, the newest only.
type reporter struct {
	write  func(context.Context, string, nodestate.Status) error
	logger *slog.Logger
	kick   chan struct{}

	mu     sync.Mutex
	newest *reported
	last   reported // offered

	grounds grounds // of last; the loop's own
}

func newReporter(write func(context.Context, string, nodestate.Status) error, logger *slog.Logger) *reporter {
	return &reporter{write: write, logger: logger, kick: make(chan struct{}, 1)}
}

// offer takes the machine's report, unless it is the same again.
func (r *reporter) offer(m *machine) {
	g := grounds{uid: m.wish.UID, spec: m.spec, reason: m.status.Reason, phase: m.status.Phase, last: m.last}
	if m.source != nil {
		g.source = m.source.Error()
	}
	if g == r.grounds {
		return
	}
	r.grounds = g
	n := report(m)
	r.mu.Lock()
	defer r.mu.Unlock()
	if reflect.DeepEqual(n, r.last) {
		return
	}
	r.newest, r.last = &n, n
	select {
	case r.kick <- struct{}{}:
	default:
	}
}

func (r *reporter) run(ctx context.Context) {
	for {
		select {
		case <-r.kick:
		case <-ctx.Done():
			return
		}
		for pause := firstPause; ctx.Err() == nil; pause = min(2*pause, maxPause) {
			if r.once(ctx) {
				break
			}
			timer := time.NewTimer(pause)
			select {
			case <-timer.C:
			case <-r.kick:
				timer.Stop()
			case <-ctx.Done():
				timer.Stop()
			}
		}
	}
}

// once writes the newest; false: it must be tried again.
func (r *reporter) once(ctx context.Context) bool {
	r.mu.Lock()
	n := r.newest
	r.mu.Unlock()
	if n == nil {
		return true
	}
	err := r.write(ctx, n.uid, n.status)
	if err != nil && !errors.Is(err, source.ErrOther) {
		r.logger.Warn("the status of the node state was not written", "error", err)
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.newest == n {
		r.newest = nil
	}
	return r.newest == nil
}
