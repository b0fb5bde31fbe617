package enforce

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/fence/plan"
	"github.com/cleatproject/cleat/internal/cidr"
	"github.com/cleatproject/cleat/internal/ledger"
	"github.com/cleatproject/cleat/volume"
)

// resumeAfter is how long a caller can retry an interrupted call itself.
const resumeAfter = time.Minute

// Restore puts the recorded fences in force, before the servers listen, unless
// Local.Deferred. Guard ends the sessions that began before.
func (e *Enforcer) Restore(ctx context.Context) error {
	desired, err := desiredIn(ctx, e.ledger)
	if err != nil {
		return err
	}
	var all tasks
	for _, l := range e.locals {
		if l.Deferred {
			continue
		}
		all.add(l.Name, func() error {
			if err := e.apply(ctx, l, desired.Blocks); err != nil {
				return err
			}
			return e.verifyHeld(ctx, l, desired.Blocks)
		})
	}
	if err := all.wait(); err != nil {
		return fmt.Errorf("restore the recorded fences: %w", err)
	}
	return nil
}

// Guard keeps the recorded fences in force. At each interval, and after
// Config.Changed, it reads the blocks back and repairs them. It also continues
// interrupted calls, and looks after the peers: that can wait long for others, and
// does not delay the rest.
func (e *Enforcer) Guard(ctx context.Context) error {
	var others sync.WaitGroup
	defer others.Wait()
	others.Go(func() {
		e.each(ctx, nil, func() {
			e.checkPeers(ctx)
			e.resume(ctx)
			e.recordBoots(ctx)
		})
	})
	e.each(ctx, e.config.Changed, func() { e.check(ctx) })
	return nil
}

// each calls do at once, at each interval and after changes, until ctx ends.
func (e *Enforcer) each(ctx context.Context, changed <-chan struct{}, do func()) {
	ticker := time.NewTicker(e.config.Interval)
	defer ticker.Stop()
	for {
		do()
		select {
		case <-ctx.Done():
			return
		case <-changed:
		case <-ticker.C:
		}
	}
}

// verdict is the result of a check.
type verdict struct {
	err error
	at  time.Time
}

func (e *Enforcer) check(ctx context.Context) {
	var all tasks
	for _, l := range e.locals {
		all.add(l.Name, func() error {
			err := e.checkLocal(ctx, l)
			l.inForce.Store(err == nil)
			return e.report(ctx, l.Name, err)
		})
	}
	recorded := e.ledger.Recent()
	fences, err := recorded.Fences(ctx)
	var ending []ledger.Ending
	if err == nil {
		ending, err = recorded.Ending(ctx)
	}
	if err == nil {
		ending, err = awaited(ending, fences)
	}
	isRead := err == nil
	err = errors.Join(e.report(ctx, "ledger", err), all.wait())
	if ctx.Err() == nil {
		e.checked.Store(&verdict{err, time.Now()})
		e.observe()
		if isRead {
			e.observeRecords(fences, ending)
		}
	}
}

func (e *Enforcer) checkPeers(ctx context.Context) {
	if len(e.peers) == 0 {
		return
	}
	fences, err := e.ledger.Fences(ctx) // not Recent: they decide what the peers fence
	var all tasks
	if err == nil {
		for _, p := range e.peers {
			all.add(p.Name(), func() error { return e.report(ctx, p.Name(), e.checkPeer(ctx, p, fences)) })
		}
	}
	err = errors.Join(e.report(ctx, "ledger", err), all.wait())
	if ctx.Err() == nil {
		e.peersChecked.Store(&verdict{err, time.Now()})
	}
}

func (e *Enforcer) report(ctx context.Context, who string, err error) error {
	if err != nil && ctx.Err() == nil {
		e.metrics.failures.WithLabelValues(who).Inc()
		e.logger.ErrorContext(ctx, "fence verification failed, will retry", "enforcer", who, "err", err)
	}
	return err
}

// checkLocal also ends sessions that began while a block was not in force.
func (e *Enforcer) checkLocal(ctx context.Context, l *local) error {
	desired, err := e.repair(ctx, l)
	if err == nil {
		_, err = e.coverage(ctx, l, desired)
	}
	if err != nil || len(desired) == 0 {
		return err
	}
	return e.endSessions(ctx, l, desired)
}

func (e *Enforcer) repair(ctx context.Context, l *local) (desired []netip.Prefix, err error) {
	err = l.locked(ctx, e.config.Bounds.Block, func(ctx context.Context) error {
		held, err := l.Fencer.Held(ctx)
		if err != nil {
			return errs.Errorf(errs.Unavailable, "read back the fenced blocks: %w", err)
		}
		var now volume.FenceSet
		for _, recorded := range []*ledger.Ledger{e.ledger.Recent(), e.ledger} {
			if now, err = desiredIn(ctx, recorded); err != nil {
				return err
			}
			if desired = now.Blocks; slices.Equal(held, desired) {
				l.applied, l.known = desired, true // also after an Apply that failed
				return nil
			}
		}
		// Another program has caused a difference to the last Apply; one only
		// to the record is a call in flight.
		applied, known := l.applied, l.known
		err = e.applyLocked(ctx, l, now, desired)
		// Storage that does not answer was not changed.
		_, silent := errors.AsType[*volume.NotEnforced](err)
		if known && !silent && !slices.Equal(held, applied) {
			lifted, added, err := compare(applied, held)
			if err != nil {
				return err
			}
			e.metrics.drift.WithLabelValues(l.Name).Inc()
			e.logger.WarnContext(ctx, "fences were changed by another program, repairing", "enforcer", l.Name, "missing", lifted, "unexpected", added)
		}
		if err != nil {
			return err
		}
		return e.verifyRepair(ctx, l, desired)
	})
	return desired, err
}

func (e *Enforcer) verifyRepair(ctx context.Context, l *local, desired []netip.Prefix) error {
	held, err := l.Fencer.Held(ctx)
	if err != nil {
		return errs.Errorf(errs.Unavailable, "read back the repaired blocks: %w", err)
	}
	if slices.Equal(held, desired) {
		return nil
	}
	lifted, added, err := compare(desired, held)
	if err != nil {
		return err
	}
	return errs.Errorf(errs.Unavailable, "repair failed: missing blocks %s, unexpected blocks %s", lifted, added)
}

// compare formats missing and undesired blocks.
func compare(desired, held []netip.Prefix) (lifted, added string, err error) {
	missing, err := cidr.Missing(held, desired)
	if err != nil {
		return "", "", err
	}
	surplus, err := cidr.Missing(desired, held)
	return firstBlocks(missing), firstBlocks(surplus), err
}

// checkPeer fences the blocks that a peer lacks.
func (e *Enforcer) checkPeer(ctx context.Context, p *peer, fences []volume.Fence) error {
	fenced := slices.DeleteFunc(slices.Clone(fences), func(f volume.Fence) bool {
		return f.Phase != volume.Fenced || !slices.Contains(e.peersFor(f.Owner), p)
	})
	for _, req := range groupByOwner(fenced) {
		missing, err := e.missingAt(ctx, p, req)
		if err != nil {
			return err
		}
		if len(missing) == 0 {
			continue
		}
		e.metrics.drift.WithLabelValues(p.Name()).Inc()
		e.logger.WarnContext(ctx, "peer lost fences, fencing again", "peer", p.Name(), "missing", firstBlocks(missing))
		if err := e.runOperation(ctx, "FenceClusterNetwork", req, false, e.fence); err != nil {
			return err
		}
	}
	return nil
}

// resume continues interrupted calls without a retry.
func (e *Enforcer) resume(ctx context.Context) {
	isStale := func(f volume.Fence) bool { return f.Phase != volume.Fenced && time.Since(f.Since) >= resumeAfter }
	fences, err := e.ledger.Recent().Fences(ctx)
	if err != nil || !slices.ContainsFunc(fences, isStale) {
		return // an error is logged by check
	}
	if fences, err = e.ledger.Fences(ctx); err != nil {
		return
	}
	stale := func(phase volume.FencePhase) []plan.Request {
		return groupByOwner(slices.DeleteFunc(slices.Clone(fences), func(f volume.Fence) bool { return f.Phase != phase || !isStale(f) }))
	}
	var all tasks
	for _, req := range stale(volume.Fencing) {
		all.add("fence", func() error { return e.runOperation(ctx, "FenceClusterNetwork", req, false, e.fence) })
	}
	for _, req := range stale(volume.Lifting) {
		req.Force = false // of the fence, not of the unfence
		all.add("unfence", func() error { return e.runOperation(ctx, "UnfenceClusterNetwork", req, false, e.unfence) })
	}
	if err := all.wait(); err != nil && ctx.Err() == nil {
		e.logger.WarnContext(ctx, "interrupted call could not be completed, will retry", "err", err)
	}
}
