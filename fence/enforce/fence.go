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

// fence is one Fence, alone with its blocks.
func (e *Enforcer) fence(ctx context.Context, ask plan.Ask) error {
	before, _, err := e.ledger.ChangeFences(ctx, func(now []volume.Fence) ([]volume.Fence, error) {
		return plan.Fence(now, ask, time.Now()), nil
	})
	if err != nil {
		return err
	}
	crashpoint.Hit("fence.intent")
	if err := e.carryOut(ctx, ask); err != nil {
		if refused, ok := errors.AsType[*refusal](err); ok {
			return errors.Join(refused, e.takeBack(ctx, before, ask))
		}
		return fmt.Errorf("the fence is on record and no new grant is given, but it does not hold everywhere yet; call again to continue: %w", err)
	}
	crashpoint.Hit("fence.verified")
	_, _, err = e.ledger.ChangeFences(ctx, func(now []volume.Fence) ([]volume.Fence, error) {
		return plan.Confirm(now, ask, time.Now()), nil
	})
	crashpoint.Hit("fence.confirmed")
	return err
}

// carryOut brings a recorded fence about everywhere at once.
func (e *Enforcer) carryOut(ctx context.Context, ask plan.Ask) error {
	blocks, err := cidr.Merge(ask.Blocks)
	if err != nil {
		return err
	}
	var all tasks
	all.add("grants", func() error { return e.quiet(ctx, blocks) })
	for _, l := range e.locals {
		all.add(l.Name, func() error {
			if err := e.apply(ctx, l); err != nil {
				return err
			}
			crashpoint.Hit("fence.blocked")
			// A grant that was under way may still begin a session.
			if err := e.quiet(ctx, blocks); err != nil {
				return err
			}
			if err := e.clear(ctx, l, blocks); err != nil {
				return err
			}
			return errors.Join(e.verifyHeld(ctx, l, blocks), e.verifyEnded(ctx, l, blocks))
		})
	}
	for _, p := range e.peersFor(ask.Owner) {
		all.add(p.Name(), func() error { return e.fenceAt(ctx, p, ask) })
	}
	return all.wait()
}

// quiet waits for grants to clients in the blocks that were under way when the
// intent was recorded.
func (e *Enforcer) quiet(ctx context.Context, blocks []netip.Prefix) error {
	ctx, cancel := context.WithTimeout(ctx, e.config.Bounds.End)
	defer cancel()
	return e.ledger.Quiet(ctx, blocks)
}

// takeBack undoes what a refused call, or an attempt of it before, has begun,
// and leaves what was answered before it. What it cannot undo is on record as Lifting, and Guard goes on.
func (e *Enforcer) takeBack(ctx context.Context, before []volume.Fence, ask plan.Ask) error {
	begun := plan.Ask{Owner: ask.Owner, Blocks: plan.Unanswered(before, ask)}
	if len(begun.Blocks) == 0 {
		return nil
	}
	// No caller was told that these hold, so no session need have ended.
	if _, err := e.lift(ctx, begun, begun.Blocks); err != nil {
		return fmt.Errorf("what had begun is being taken back: %w", err)
	}
	return nil
}

// unfence is one Unfence, alone with its blocks. Behind a block that still
// holds, no session may be left that would come back to life.
func (e *Enforcer) unfence(ctx context.Context, ask plan.Ask) error {
	var cleared []netip.Prefix
	for {
		// Two calls may release what each alone would not: the later one finds
		// in its transaction what nobody has cleared.
		uncleared, err := e.lift(ctx, ask, cleared)
		if len(uncleared) == 0 {
			return err
		}
		if err := e.clearAll(ctx, uncleared); err != nil {
			if !ask.Force {
				return fmt.Errorf("nothing is let in yet: %w", err)
			}
			e.logger.WarnContext(ctx, "a fence is lifted by force in front of sessions that have not ended: what their clients sent may still be done",
				"blocks", some(uncleared), "error", err)
		}
		crashpoint.Hit("unfence.cleared")
		cleared = append(cleared, uncleared...)
	}
}

// clearAll ends the sessions of clients in the blocks everywhere here.
func (e *Enforcer) clearAll(ctx context.Context, blocks []netip.Prefix) error {
	var all tasks
	for _, l := range e.locals {
		all.add(l.Name, func() error {
			if err := e.clear(ctx, l, blocks); err != nil {
				return err
			}
			return e.verifyEnded(ctx, l, blocks)
		})
	}
	return all.wait()
}

// errUncleared ends a transaction that would let in what was not cleared.
var errUncleared = errors.New("sessions have to end first")

// lift lets the blocks of an owner in again. It changes nothing and returns
// those addresses that it would let in and that are not among the cleared.
func (e *Enforcer) lift(ctx context.Context, ask plan.Ask, cleared []netip.Prefix) (uncleared []netip.Prefix, err error) {
	_, after, err := e.ledger.ChangeFences(ctx, func(now []volume.Fence) ([]volume.Fence, error) {
		next, err := plan.Unfence(now, ask, time.Now())
		if err != nil {
			return nil, err
		}
		released, err := plan.Released(now, next)
		if err != nil {
			return nil, err
		}
		if uncleared, err = cidr.Missing(cleared, released); err == nil && len(uncleared) > 0 {
			err = errUncleared
		}
		return next, err
	})
	if err != nil {
		return uncleared, err
	}
	crashpoint.Hit("unfence.lifting")
	ask.Blocks = plan.InPhase(after, ask, volume.Lifting)
	if len(ask.Blocks) == 0 {
		return nil, nil // none of them is fenced
	}
	if err := e.open(ctx, ask); err != nil {
		return nil, fmt.Errorf("the fence is not lifted everywhere yet; call again to continue: %w", err)
	}
	_, _, err = e.ledger.ChangeFences(ctx, func(now []volume.Fence) ([]volume.Fence, error) {
		return plan.Forget(now, ask, time.Now()), nil
	})
	crashpoint.Hit("unfence.forgotten")
	return nil, err
}

// open lets in everywhere what is on record as Lifting.
func (e *Enforcer) open(ctx context.Context, ask plan.Ask) error {
	var all tasks
	for _, l := range e.locals {
		all.add(l.Name, func() error {
			if err := e.apply(ctx, l); err != nil {
				return err
			}
			crashpoint.Hit("unfence.opened")
			return e.verifyOpen(ctx, l, ask.Blocks)
		})
	}
	for _, p := range e.peersFor(ask.Owner) {
		all.add(p.Name(), func() error { return e.unfenceAt(ctx, p, ask) })
	}
	return all.wait()
}

// tasks run at once; their errors are joined, each with its name.
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
