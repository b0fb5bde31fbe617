package daemon

import (
	"context"
	"errors"
	"log/slog"
	"reflect"
	"time"

	"github.com/cleatproject/cleat/sriov/nodestate"
	"github.com/cleatproject/cleat/sriov/nodestate/source"
	"github.com/cleatproject/cleat/sriov/plan"
)

type report struct {
	uid    string
	status nodestate.Status
}

// reportOf returns the status in the operator's terms.
func reportOf(r *reconciler) report {
	s := plan.Status(r.desired.state.Spec, r.last.state)
	s.SyncStatus, s.LastSyncError = nodestate.InProgress, ""
	switch r.status.Phase {
	case Serving:
		s.SyncStatus = nodestate.Succeeded
		if r.failures > 0 { // the last observations: the status is of one before
			s.LastSyncError = r.status.Reason
		}
	case Failed:
		s.SyncStatus, s.LastSyncError = nodestate.Failed, r.status.Reason
	case Blocked, Superseded:
		s.LastSyncError = r.status.Reason
	}
	if r.desired.err != nil { // newer than the state in force
		s.SyncStatus, s.LastSyncError = nodestate.Failed, r.desired.err.Error()
	}
	return report{r.desired.state.UID, s}
}

// reporter writes one report at a time, the newest.
type reporter struct {
	write  func(context.Context, string, nodestate.Status) error
	logger *slog.Logger
	newest chan report

	last report // owned by the event loop
}

func (p *reporter) offer(next report) {
	if reflect.DeepEqual(next, p.last) {
		return
	}
	p.last = next
	select {
	case <-p.newest:
	default:
	}
	p.newest <- next
}

func (p *reporter) run(ctx context.Context) {
	retry := time.NewTimer(0)
	<-retry.C
	defer retry.Stop()
	var next report
	pause := minBackoff
	for {
		select {
		case next = <-p.newest:
			pause = minBackoff
		case <-retry.C:
		case <-ctx.Done():
			return
		}
		retry.Stop()
		if err := p.write(ctx, next.uid, next.status); err != nil && !errors.Is(err, source.ErrOther) {
			p.logger.Warn("status of the node state was not written, will retry", "err", err)
			retry.Reset(pause)
			pause = min(2*pause, maxBackoff)
		}
	}
}
