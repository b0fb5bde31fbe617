package plugin

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"github.com/cleatproject/cleat/dpu/object"
	"github.com/cleatproject/cleat/dpu/plan"
	"github.com/cleatproject/cleat/dpu/table"
	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/crashpoint"
)

// unansweredTimeout is how long an unanswered call can still take effect. SNAP
// executes an attach asynchronously: TCP retransmits its SYN for 127 s, and a
// silent target takes 10 s more. SNAP executes all other calls when it reads
// them.
func unansweredTimeout(k plan.Kind) time.Duration {
	if k == plan.Controller {
		return 3 * time.Minute
	}
	return 30 * time.Second
}

// canAppear reports whether an unanswered call can still create the object
// after its removal; it then stays on record.
func (p *Plugin) canAppear(o table.Object, process string) bool {
	return o.Process == process && p.config.Now().Before(o.UnansweredUntil)
}

// attachError: an unanswered attach keeps a controller on record.
type attachError struct {
	id    plan.ID
	until time.Time
}

func (e *attachError) Error() string {
	return fmt.Sprintf("%s: an unanswered attach can still complete until %s; the controller is removed then", e.id, e.until.UTC().Format(time.RFC3339))
}

func (e *attachError) Unwrap() error { return errs.Unavailable }

// attaching returns a callback that records each attach for o before it is
// sent. o keeps the record without this attach, which is valid again after
// SNAP's answer. If an earlier attach is also unanswered, no path is recorded:
// it could not show that both have ended.
func (p *Plugin) attaching(o *table.Object) object.Attaching {
	return func(ctx context.Context, path netip.AddrPort) error {
		process, err := p.current(ctx)
		if err != nil {
			return err
		}
		sent := *o
		sent.UnansweredPath = path
		if p.canAppear(*o, process) {
			sent.UnansweredPath, o.UnansweredPath = netip.AddrPort{}, netip.AddrPort{}
		}
		sent.UnansweredUntil, sent.Process = p.config.Now().Add(unansweredTimeout(o.Kind)), process
		if err := p.table.PutObject(ctx, sent); err != nil {
			return err
		}
		crashpoint.Hit("dpu-create.attaching")
		return nil
	}
}

// answered records the end of the calls for objects; objects are the records
// without these calls.
func (p *Plugin) answered(ctx context.Context, objects ...table.Object) {
	ctx = context.WithoutCancel(ctx)
	for _, o := range objects {
		have, known := p.table.Object(o.ID)
		if !known || have.UnansweredUntil.IsZero() {
			continue
		}
		have.UnansweredUntil, have.UnansweredPath = time.Time{}, netip.AddrPort{}
		if o.Kind == plan.Controller { // an earlier attach might still be unanswered
			have.UnansweredUntil, have.UnansweredPath = o.UnansweredUntil, o.UnansweredPath
		}
		if err := p.table.PutObject(ctx, have); err != nil {
			p.log.ErrorContext(ctx, "recording SNAP's answer failed, object stays on record longer", "object", o.ID.String(), "err", err)
		}
	}
}

// checkAttach reports whether the controller exists, and returns an attachError
// while an attach can still complete. A single unanswered attach has completed
// if the controller has its path; this is recorded before the controller is
// removed.
func (p *Plugin) checkAttach(ctx context.Context, o table.Object) (exists bool, pending, err error) {
	exists, hasPath, err := p.objects.Attached(ctx, o.Object, o.UnansweredPath)
	switch {
	case err != nil:
		return false, nil, fmt.Errorf("check whether an attach of %s has ended: %w", o.ID, err)
	case !hasPath: // also if the path is not recorded
		return exists, &attachError{id: o.ID, until: o.UnansweredUntil}, nil
	}
	o.UnansweredUntil, o.UnansweredPath = time.Time{}, netip.AddrPort{}
	return true, nil, p.table.PutObject(ctx, o)
}
