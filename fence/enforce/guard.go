package enforce

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/fence/plan"
	"github.com/cleatproject/cleat/internal/cidr"
	"github.com/cleatproject/cleat/volume"
)

// resumeAfter is how long the caller of a call that stopped half-way can retry it
// before Guard does.
const resumeAfter = time.Minute

// Restore puts the fences on record in force again. It must be called before the
// servers listen. Guard then ends the sessions that began while no fence held.
func (e *Enforcer) Restore(ctx context.Context) error {
	wanted, err := e.wanted(ctx)
	if err != nil {
		return err
	}
	var all tasks
	for _, l := range e.locals {
		all.add(l.Name, func() error {
			if err := e.apply(ctx, l); err != nil {
				return err
			}
			return e.verifyHeld(ctx, l, wanted)
		})
	}
	if err := all.wait(); err != nil {
		return fmt.Errorf("the fences on record could not be put in force again: %w", err)
	}
	return nil
}

// Guard keeps the fences on record in force until ctx ends: at each interval, and
// at once after Config.Changed, it reads back what holds and repairs it. At each
// interval it also continues calls that stopped half-way.
func (e *Enforcer) Guard(ctx context.Context) error {
	ticker := time.NewTicker(e.config.Interval)
	defer ticker.Stop()
	e.check(ctx)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-e.config.Changed:
			e.check(ctx)
		case <-ticker.C:
			e.check(ctx)
			e.resume(ctx)
		}
	}
}

// check reads back what every enforcer holds and repairs it.
func (e *Enforcer) check(ctx context.Context) {
	var all tasks
	for _, l := range e.locals {
		all.add(l.Name, func() error {
			err := e.checkLocal(ctx, l)
			l.holds.Store(err == nil)
			return e.failed(ctx, l.Name, err)
		})
	}
	fences, err := e.ledger.Fences(ctx)
	if err == nil {
		for _, p := range e.peers {
			all.add(p.Name(), func() error { return e.failed(ctx, p.Name(), e.checkPeer(ctx, p, fences)) })
		}
	}
	err = errors.Join(e.failed(ctx, "ledger", err), all.wait())
	ending, failed := e.ledger.Ending(ctx)
	err = errors.Join(err, e.failed(ctx, "ledger", failed))
	if ctx.Err() == nil {
		e.checked.Store(&err)
		e.observe(fences, ending)
	}
}

func (e *Enforcer) failed(ctx context.Context, who string, err error) error {
	if err != nil && ctx.Err() == nil {
		e.metrics.failures.WithLabelValues(who).Inc()
		e.logger.ErrorContext(ctx, "a fence is not known to hold; it is tried again", "enforcer", who, "error", err)
	}
	return err
}

// checkLocal repairs one fencer: first what it holds, then sessions that began
// while it did not.
func (e *Enforcer) checkLocal(ctx context.Context, l *local) error {
	wanted, err := e.repair(ctx, l)
	if err != nil || len(wanted) == 0 {
		return err
	}
	return e.clear(ctx, l, wanted)
}

func (e *Enforcer) repair(ctx context.Context, l *local) (wanted []netip.Prefix, err error) {
	err = e.alone(ctx, l, e.config.Bounds.Block, func(ctx context.Context, now []netip.Prefix) error {
		wanted = now
		held, err := l.Fencer.Held(ctx)
		switch {
		case err != nil:
			return errs.Errorf(errs.Unavailable, "read back what is fenced: %w", err)
		case slices.Equal(held, wanted):
			return nil
		}
		// A difference to the last Apply was made by another program; a difference
		// to the record alone belongs to a call in flight.
		if l.known && !slices.Equal(held, l.applied) {
			lifted, added, err := compare(l.applied, held)
			if err != nil {
				return err
			}
			e.metrics.drift.WithLabelValues(l.Name).Inc()
			e.logger.WarnContext(ctx, "somebody changed what enforces the fences; it is repaired", "enforcer", l.Name, "lifted", lifted, "added", added)
		}
		if err := e.applyLocked(ctx, l, wanted); err != nil {
			return err
		}
		return e.verifyRepair(ctx, l, wanted)
	})
	return wanted, err
}

func (e *Enforcer) verifyRepair(ctx context.Context, l *local, wanted []netip.Prefix) error {
	held, err := l.Fencer.Held(ctx)
	if err != nil {
		return errs.Errorf(errs.Unavailable, "read back what was repaired: %w", err)
	}
	if slices.Equal(held, wanted) {
		return nil
	}
	lifted, added, err := compare(wanted, held)
	if err != nil {
		return err
	}
	return errs.Errorf(errs.Unavailable, "the repair did not take: %s is not fenced, %s is and should not be", lifted, added)
}

// compare names what is wanted and not held, and what is held and not wanted.
func compare(wanted, held []netip.Prefix) (lifted, added string, err error) {
	missing, err := cidr.Missing(held, wanted)
	if err != nil {
		return "", "", err
	}
	surplus, err := cidr.Missing(wanted, held)
	return some(missing), some(surplus), err
}

// checkPeer asks a peer which of the fences it holds, and fences the missing ones
// again.
func (e *Enforcer) checkPeer(ctx context.Context, p *peer, fences []volume.Fence) error {
	fenced := slices.DeleteFunc(slices.Clone(fences), func(f volume.Fence) bool {
		return f.Phase != volume.Fenced || !slices.Contains(e.peersFor(f.Owner), p)
	})
	for _, ask := range asks(fenced) {
		missing, err := e.missingAt(ctx, p, ask)
		if err != nil {
			return err
		}
		if len(missing) == 0 {
			continue
		}
		e.metrics.drift.WithLabelValues(p.Name()).Inc()
		e.logger.WarnContext(ctx, "a peer lost fences; they are put in force again", "peer", p.Name(), "lifted", some(missing))
		if err := e.do(ctx, "FenceClusterNetwork", ask, false, e.fence); err != nil {
			return err
		}
	}
	return nil
}

// resume continues calls whose callers did not retry.
func (e *Enforcer) resume(ctx context.Context) {
	fences, err := e.ledger.Fences(ctx)
	if err != nil {
		return // check has logged it
	}
	stale := func(phase volume.FencePhase) []plan.Ask {
		return asks(slices.DeleteFunc(slices.Clone(fences), func(f volume.Fence) bool {
			return f.Phase != phase || time.Since(f.Since) < resumeAfter
		}))
	}
	var all tasks
	for _, ask := range stale(volume.Fencing) {
		all.add("fence", func() error { return e.do(ctx, "FenceClusterNetwork", ask, false, e.fence) })
	}
	for _, ask := range stale(volume.Lifting) {
		ask.Force = false // its fence was forced, not its end
		all.add("unfence", func() error { return e.do(ctx, "UnfenceClusterNetwork", ask, false, e.unfence) })
	}
	if err := all.wait(); err != nil && ctx.Err() == nil {
		e.logger.WarnContext(ctx, "a call that stopped half-way could not be finished", "error", err)
	}
}
