package enforce

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/cleatproject/cleat/fence/plan"
	"github.com/cleatproject/cleat/internal/cidr"
	"github.com/cleatproject/cleat/internal/crashpoint"
	"github.com/cleatproject/cleat/volume"
)

// fence needs exclusive use of the request's blocks.
func (e *Enforcer) fence(ctx context.Context, req plan.Request) error {
	before, _, err := e.ledger.ChangeFences(ctx, func(now []volume.Fence) ([]volume.Fence, error) {
		return plan.Fence(now, req, time.Now()), nil
	})
	if err != nil {
		return err
	}
	crashpoint.Hit("fence.intent")
	if err := e.enforceAll(ctx, req); err != nil {
		if refused, ok := errors.AsType[*refusal](err); ok {
			return errors.Join(refused, e.rollBack(ctx, before, req))
		}
		return fmt.Errorf("the fence is recorded and blocks new grants, but is not in force everywhere yet; repeat the call to continue: %w", err)
	}
	crashpoint.Hit("fence.verified")
	_, _, err = e.ledger.ChangeFences(ctx, func(now []volume.Fence) ([]volume.Fence, error) {
		return plan.Confirm(now, req, time.Now()), nil
	})
	crashpoint.Hit("fence.confirmed")
	if err == nil {
		e.recordBoots(ctx)
	}
	return err
}

func (e *Enforcer) enforceAll(ctx context.Context, req plan.Request) error {
	blocks, err := cidr.Merge(req.Blocks)
	if err != nil {
		return err
	}
	var all tasks
	all.add("grants", func() error { return e.waitForGrants(ctx, blocks) })
	for _, l := range e.locals {
		all.add(l.Name, func() error {
			if err := e.apply(ctx, l, blocks); err != nil {
				return err
			}
			crashpoint.Hit("fence.blocked")
			if _, proved := l.Fencer.(prover); proved {
				return nil
			}
			// A grant in flight can still have started a session.
			if err := e.waitForGrants(ctx, blocks); err != nil {
				return err
			}
			if err := e.endSessions(ctx, l, blocks); err != nil {
				return err
			}
			if err := errors.Join(e.verifyHeld(ctx, l, blocks), e.verifyEnded(ctx, l, blocks)); err != nil {
				return err
			}
			return e.verifyCoverage(ctx, l, req, blocks)
		})
	}
	for _, p := range e.peersFor(req.Owner) {
		all.add(p.Name(), func() error { return e.fenceAt(ctx, p, req) })
	}
	return all.wait()
}

// waitForGrants waits for grants in the blocks that were in flight when the
// fence was recorded.
func (e *Enforcer) waitForGrants(ctx context.Context, blocks []netip.Prefix) error {
	ctx, cancel := context.WithTimeout(ctx, e.config.Bounds.End)
	defer cancel()
	return e.ledger.Quiet(ctx, blocks)
}

// rollBack removes unconfirmed fences of a refused request, also those of
// earlier attempts. What cannot be removed is recorded as Lifting, for Guard.
func (e *Enforcer) rollBack(ctx context.Context, before []volume.Fence, req plan.Request) error {
	begun := plan.Request{Owner: req.Owner, Blocks: plan.Unconfirmed(before, req)}
	if len(begun.Blocks) == 0 {
		return nil
	}
	// They were never reported as in force: no session need have ended.
	if _, err := e.lift(ctx, begun, begun.Blocks); err != nil {
		return fmt.Errorf("rolling back the refused fence, will retry: %w", err)
	}
	return nil
}

// unfence needs exclusive use of the request's blocks. All sessions of the
// fenced clients must end first: they would continue.
func (e *Enforcer) unfence(ctx context.Context, req plan.Request) error {
	if err := e.requireSeen(ctx, req); err != nil {
		return err
	}
	var cleared []netip.Prefix
	for {
		// Two concurrent requests can release blocks that neither releases
		// alone. The later transaction returns the blocks whose sessions were
		// not ended.
		uncleared, err := e.lift(ctx, req, cleared)
		if len(uncleared) == 0 {
			return err
		}
		if err := e.endAllSessions(ctx, uncleared); err != nil {
			if !req.Force {
				return fmt.Errorf("the fence is not lifted yet: %w", err)
			}
			e.logger.WarnContext(ctx, "fence lifted by force, sessions have not ended and can still execute old writes",
				"cidr", firstBlocks(uncleared), "err", err)
		}
		crashpoint.Hit("unfence.cleared")
		cleared = append(cleared, uncleared...)
	}
}

func (e *Enforcer) endAllSessions(ctx context.Context, blocks []netip.Prefix) error {
	var all tasks
	for _, l := range e.locals {
		all.add(l.Name, func() error {
			if err := e.endSessions(ctx, l, blocks); err != nil {
				return err
			}
			return e.verifyEnded(ctx, l, blocks)
		})
	}
	return all.wait()
}

// errSessionsLeft aborts a transaction that would release blocks with sessions.
var errSessionsLeft = errors.New("sessions have to end first")

// lift changes nothing if it would release addresses other than the cleared
// ones, which it then returns.
func (e *Enforcer) lift(ctx context.Context, req plan.Request, cleared []netip.Prefix) (uncleared []netip.Prefix, err error) {
	_, after, err := e.ledger.ChangeFences(ctx, func(now []volume.Fence) ([]volume.Fence, error) {
		next, err := plan.Unfence(now, req, time.Now())
		if err != nil {
			return nil, err
		}
		released, err := plan.Released(now, next)
		if err != nil {
			return nil, err
		}
		if uncleared, err = cidr.Missing(cleared, released); err == nil && len(uncleared) > 0 {
			err = errSessionsLeft
		}
		return next, err
	})
	if err != nil {
		return uncleared, err
	}
	crashpoint.Hit("unfence.lifting")
	req.Blocks = plan.InPhase(after, req, volume.Lifting)
	if len(req.Blocks) == 0 {
		return nil, nil // not fenced
	}
	if err := e.liftAll(ctx, req); err != nil {
		return nil, fmt.Errorf("the fence is not lifted everywhere yet; repeat the call to continue: %w", err)
	}
	_, _, err = e.ledger.ChangeFences(ctx, func(now []volume.Fence) ([]volume.Fence, error) {
		return plan.Forget(now, req, time.Now()), nil
	})
	crashpoint.Hit("unfence.forgotten")
	return nil, err
}

func (e *Enforcer) liftAll(ctx context.Context, req plan.Request) error {
	var all tasks
	for _, l := range e.locals {
		all.add(l.Name, func() error { return e.applyLifted(ctx, l, req.Blocks) })
	}
	for _, p := range e.peersFor(req.Owner) {
		all.add(p.Name(), func() error { return e.unfenceAt(ctx, p, req) })
	}
	return all.wait()
}

// tasks run concurrently; wait joins their errors with their names.
type tasks struct {
	running sync.WaitGroup
	mu      sync.Mutex
	errs    []error
}

func (t *tasks) add(name string, fn func() error) {
	t.running.Go(func() {
		if err := fn(); err != nil {
			t.mu.Lock()
			defer t.mu.Unlock()
			t.errs = append(t.errs, fmt.Errorf("%s: %w", name, err))
		}
	})
}

func (t *tasks) wait() error {
	t.running.Wait()
	return errors.Join(t.errs...)
}
