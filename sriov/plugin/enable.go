package plugin

import (
	"context"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/cleatproject/cleat/sriov/control"
	"github.com/cleatproject/cleat/sriov/gate"
)

// Plugin serves the control socket.
var _ control.Plugin = (*Plugin)(nil)

// Enable holds the devices with a claim until its stream ends. A claim for another
// configuration than the last one read may be right: the file is read again first.
func (p *Plugin) Enable(ctx context.Context, session string, c gate.Claim, send func(gate.Status) error) error {
	if c.Hash != "" && c.Hash != p.newestHash() {
		p.reload()
	}
	in := newInbox()
	p.loop.Send(event{event: gate.Enable{Session: session, Claim: c}, inbox: in})
	defer p.loop.Send(event{event: gate.Closed{Session: session}})
	for {
		a, err := p.next(ctx, in)
		if err != nil {
			return err
		}
		switch a := a.(type) {
		case gate.End:
			return &control.End{Code: a.Code, Reason: a.Reason}
		case gate.Publish:
			if err := send(a.Status); err != nil {
				return err
			}
		}
	}
}

// Disable withdraws the devices and waits for that.
func (p *Plugin) Disable(ctx context.Context, session string) (gate.Disabled, error) {
	id, in := p.ids.Add(1), newInbox()
	p.loop.Send(event{event: gate.Disable{Call: id, Session: session}, inbox: in})
	a, err := p.next(ctx, in)
	if err != nil {
		p.loop.Send(event{event: gate.DisableGone{Call: id}})
		return gate.Disabled{}, err
	}
	return a.(gate.Disabled), nil // the only answer
}

// Heartbeat renews a lease.
func (p *Plugin) Heartbeat(ctx context.Context, session string, at time.Time) (time.Duration, error) {
	in := newInbox()
	p.loop.Send(event{at: at, event: gate.Heartbeat{Call: p.ids.Add(1), Session: session}, inbox: in})
	a, err := p.next(ctx, in)
	if err != nil {
		return 0, err
	}
	b := a.(gate.Beat) // the only answer
	if b.Code != codes.OK {
		return 0, &control.End{Code: b.Code, Reason: b.Reason}
	}
	return b.Lease, nil
}

// Status returns the status.
func (p *Plugin) Status() gate.Status { return *p.status.Load() }
