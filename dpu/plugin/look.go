package plugin

import (
	"context"
	"fmt"
	"time"

	"github.com/cleatproject/cleat/dpu/object"
	"github.com/cleatproject/cleat/dpu/request"
	"github.com/cleatproject/cleat/dpu/table"
	"github.com/cleatproject/cleat/errs"
)

// Get returns the device of a volume. ErrNotFound: SNAP does not hold the
// device, or was restarted since; the host's function is dead then until a
// CreateDevice and a new exposure. While SNAP is slow, Get repeats its last
// result for up to Grace: one error makes the node driver replay the
// attachment.
func (p *Plugin) Get(ctx context.Context, r request.Device) (table.Device, error) {
	d, known := p.table.Device(r.Volume)
	if !known || d.Phase != table.Ready || r.Name != "" && r.Name != d.Name {
		return table.Device{}, fmt.Errorf("volume %s, device %q: %w", r.Volume, r.Name, ErrNotFound)
	}
	asking, cancel := context.WithTimeout(ctx, p.config.LookWithin)
	defer cancel()
	state, err := p.look(asking, d)
	switch {
	case err != nil && asking.Err() != nil && ctx.Err() == nil && p.wasHeld(d):
		p.stale.Inc()
		p.log.WarnContext(ctx, "SNAP is slow, GetDevice returns last known device", "volume", d.Volume, "device", d.Name, "err", err)
		return d, nil
	case err != nil:
		return table.Device{}, fmt.Errorf("volume %s: %w", d.Volume, err)
	case !state.Held, state.Failed:
		return table.Device{}, fmt.Errorf("volume %s: %s; call CreateDevice again: %w", d.Volume, state.Why, ErrNotFound)
	}
	p.recordHeld(d)
	return d, nil
}

func (p *Plugin) look(ctx context.Context, d table.Device) (object.State, error) {
	process, err := p.current(ctx)
	if err != nil {
		return object.State{}, err
	}
	if process != d.Process {
		return object.State{Why: "SNAP was restarted since device " + d.Name + " was created"}, nil
	}
	o, known := p.shown(d)
	if !known {
		return object.State{}, errs.Errorf(errs.Internal, "%s, an object of device %s, is not on record", d.Objects[len(d.Objects)-1], d.Name)
	}
	return p.objects.Look(ctx, object.Shown{Name: d.Name, Namespace: d.Namespace, Object: o.Object, As: o.ForeignName})
}

func (p *Plugin) recordHeld(d table.Device) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.held[d.Volume] = lastHeld{process: d.Process, at: time.Now()}
}

// wasHeld reports whether SNAP held a device within Grace, and no restart since
// is known.
func (p *Plugin) wasHeld(d table.Device) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	g, ok := p.held[d.Volume]
	return ok && g.process == p.process && time.Since(g.at) < p.config.Grace
}

// List returns a page of the devices of the last known SNAP process, and
// whether more follow.
func (p *Plugin) List(ctx context.Context, q request.Page) ([]table.Device, bool, error) {
	asking, cancel := context.WithTimeout(ctx, p.config.LookWithin)
	defer cancel()
	if _, err := p.current(asking); err != nil {
		p.log.DebugContext(ctx, "SNAP does not respond, ListDevices uses the last known process", "err", err)
	}
	p.mu.Lock()
	process := p.process
	p.mu.Unlock()
	page, more := p.table.List(q.After, q.Max, func(d table.Device) bool {
		return d.Phase == table.Ready && (process == "" || d.Process == process)
	})
	return page, more, ctx.Err()
}

// Offer returns the volume modes that SNAP supports, or supported when it last
// responded.
func (p *Plugin) Offer(ctx context.Context) (Offer, error) {
	asking, cancel := context.WithTimeout(ctx, p.config.LookWithin)
	defer cancel()
	a, err := p.objects.Abilities(asking)
	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil {
		if p.offer != nil {
			return *p.offer, nil
		}
		return Offer{}, fmt.Errorf("the methods of SNAP are not known yet: %w", err)
	}
	p.offer = &Offer{Block: a.NVMe || a.AIO || a.RBD, Filesystem: a.Filesystem}
	return *p.offer, nil
}

// Ready reports whether SNAP is initialised, and the first cleanup has ended or
// reached readyAfter.
func (p *Plugin) Ready(ctx context.Context) (bool, error) {
	asking, cancel := context.WithTimeout(ctx, p.config.LookWithin)
	defer cancel()
	a, err := p.objects.Abilities(asking)
	if err == nil { // Abilities can be cached
		err = p.rpc.Call(asking, "spdk_get_version", nil, nil)
	}
	if err != nil {
		p.log.InfoContext(ctx, "not ready, SNAP does not respond", "err", err)
		notify(p.wakeCleanup) // the cleanup waits until SNAP is initialised
		return false, ctx.Err()
	}
	return p.cleanedUp.Load() && a != object.Abilities{}, nil
}
