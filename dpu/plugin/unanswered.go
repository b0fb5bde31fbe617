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

// doubt is how long a call without an answer can still have an effect. SNAP
// carries out an attach over time, also after the plugin has ended: TCP
// retransmits its SYN for 127 s, and a silent target takes 10 s more. All other
// calls are carried out when SNAP reads them.
func doubt(k plan.Kind) time.Duration {
	if k == plan.Controller {
		return 3 * time.Minute
	}
	return 30 * time.Second
}

// mayCome reports whether an object can still appear although it was removed,
// and so stays on record. What another process was asked for ended with it.
func (p *Plugin) mayCome(o table.Object, process string) bool {
	return o.Process == process && p.config.Now().Before(o.Doubt)
}

// attachError is the reason why a controller cannot be forgotten yet.
type attachError struct {
	id    plan.ID
	until time.Time
}

func (e *attachError) Error() string {
	return fmt.Sprintf("%s: an attach that SNAP has not answered can still complete until %s; what it attaches is removed", e.id, e.until.UTC().Format(time.RFC3339))
}

func (e *attachError) Unwrap() error { return errs.Unavailable }

// attaching returns what records each attach for o before it is sent. o is the
// record without it, which is valid again once SNAP has answered. If an earlier
// attach is without an answer, the path no longer shows the end of that one.
func (p *Plugin) attaching(o *table.Object) object.Attaching {
	return func(ctx context.Context, path netip.AddrPort) error {
		process, err := p.current(ctx)
		if err != nil {
			return err
		}
		sent := *o
		sent.Asked = path
		if p.mayCome(*o, process) {
			sent.Asked, o.Asked = netip.AddrPort{}, netip.AddrPort{}
		}
		sent.Doubt, sent.Process = p.config.Now().Add(doubt(o.Kind)), process
		if err := p.table.PutObject(ctx, sent); err != nil {
			return err
		}
		crashpoint.Hit("dpu-create.attaching")
		return nil
	}
}

// answered records that SNAP has answered every call for objects, which are the
// records without these calls.
func (p *Plugin) answered(ctx context.Context, objects ...table.Object) {
	ctx = context.WithoutCancel(ctx)
	for _, o := range objects {
		have, known := p.table.Object(o.ID)
		if !known || have.Doubt.IsZero() {
			continue
		}
		have.Doubt, have.Asked = time.Time{}, netip.AddrPort{}
		if o.Kind == plan.Controller { // an earlier attach may be without an answer
			have.Doubt, have.Asked = o.Doubt, o.Asked
		}
		if err := p.table.PutObject(ctx, have); err != nil {
			p.log.ErrorContext(ctx, "answer of SNAP not recorded, the object stays on record for longer", "object", o.ID.String(), "err", err)
		}
	}
}

// checkAttach returns an attachError while an attach can still complete, and
// whether there is a controller to remove. If the controller has the path of the
// only attach without an answer, that has ended; this is on record before the
// controller is removed.
func (p *Plugin) checkAttach(ctx context.Context, o table.Object) (exists bool, pending, err error) {
	exists, hasPath, err := p.objects.Attached(ctx, o.Object, o.Asked)
	switch {
	case err != nil:
		return false, nil, fmt.Errorf("whether an attach of %s has ended is not known: %w", o.ID, err)
	case !hasPath: // also of no path
		return exists, &attachError{id: o.ID, until: o.Doubt}, nil
	}
	o.Doubt, o.Asked = time.Time{}, netip.AddrPort{}
	return true, nil, p.table.PutObject(ctx, o)
}
