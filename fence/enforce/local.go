package enforce

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/cidr"
	"github.com/cleatproject/cleat/internal/crashpoint"
	"github.com/cleatproject/cleat/internal/ledger"
	"github.com/cleatproject/cleat/volume"
)

// local is a fencer of this process. Only lock's holder changes its blocks, to
// the ledger's current state, so that no call reverts another.
type local struct {
	Local
	lock    chan struct{} // one token
	applied []netip.Prefix
	known   bool // applied is this process's last Apply
	inForce atomic.Bool
	servers atomic.Pointer[volume.Coverage] // last read, of servers only; nil: not yet, or no coverer
}

// prover is a Fencer whose Apply returns nil only after it has read back, from what
// enforces the fences, that they are in force and that no session of a client in the
// set is left. A fence of it needs no further calls.
type prover interface{ ProvesFences() }

// exclusive calls fn with the ledger's desired set.
func (e *Enforcer) exclusive(ctx context.Context, l *local, bound time.Duration, fn func(ctx context.Context, desired volume.FenceSet) error) error {
	return l.locked(ctx, bound, func(ctx context.Context) error {
		desired, err := desiredIn(ctx, e.ledger)
		if err != nil {
			return err
		}
		return fn(ctx, desired)
	})
}

func (l *local) locked(ctx context.Context, bound time.Duration, fn func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	select {
	case l.lock <- struct{}{}:
		defer func() { <-l.lock }()
	case <-ctx.Done():
		return errs.Errorf(errs.Unavailable, "wait for other changes of the fenced blocks: %w", ctx.Err())
	}
	return fn(ctx)
}

// apply applies the desired blocks. Its error concerns the given blocks.
func (e *Enforcer) apply(ctx context.Context, l *local, blocks []netip.Prefix) error {
	return e.exclusive(ctx, l, e.config.Bounds.Block, func(ctx context.Context, desired volume.FenceSet) error {
		return e.applyLocked(ctx, l, desired, blocks)
	})
}

func (e *Enforcer) applyLocked(ctx context.Context, l *local, desired volume.FenceSet, blocks []netip.Prefix) error {
	err := l.Fencer.Apply(ctx, desired)
	if err == nil {
		l.applied, l.known = desired.Blocks, true
		return nil
	}
	l.known = false // either set can be in force
	if part, ok := errors.AsType[*volume.NotEnforced](err); ok {
		concerned, invalid := cidr.Common(part.Blocks, blocks)
		if invalid == nil && len(concerned) == 0 {
			e.logger.WarnContext(ctx, "other fences are not in force, will retry", "enforcer", l.Name, "cidr", firstBlocks(part.Blocks), "err", err)
			return nil
		}
	}
	return errs.Errorf(errs.Unavailable, "apply %d fenced blocks: %w", len(desired.Blocks), err)
}

// desiredIn reads the set of one moment.
func desiredIn(ctx context.Context, from *ledger.Ledger) (volume.FenceSet, error) {
	recorded, err := from.Records(ctx)
	if err != nil {
		return volume.FenceSet{}, err
	}
	blocks, err := cidr.Merge(recorded.Fenced)
	if err != nil {
		return volume.FenceSet{}, err
	}
	set, err := cidr.Set(blocks)
	if err != nil {
		return volume.FenceSet{}, err
	}
	return volume.FenceSet{Blocks: blocks, Clients: recorded.ClientsIn(set.Contains)}, nil
}

// endSessions ends sessions, and waits until their I/O has completed or was
// aborted. They are recorded first: the kernel does not list ended ones.
func (e *Enforcer) endSessions(ctx context.Context, l *local, blocks []netip.Prefix) error {
	if len(blocks) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, e.config.Bounds.End)
	defer cancel()
	live, err := l.Fencer.Sessions(ctx, blocks)
	if err != nil {
		return errs.Errorf(errs.Unavailable, "list the sessions of %s: %w", firstBlocks(blocks), err)
	}
	ending, err := e.ending(ctx, l, blocks)
	if err != nil {
		return err
	}
	var fresh []ledger.Ending
	for _, s := range live {
		entry := ledger.Ending{Enforcer: l.Name, Session: s}
		if !slices.ContainsFunc(ending, func(known ledger.Ending) bool { return known.Session.ID == s.ID }) {
			fresh = append(fresh, entry)
		}
	}
	all := slices.Concat(ending, fresh)
	if len(all) == 0 {
		return nil
	}
	if err := e.ledger.RecordEnding(ctx, fresh); err != nil {
		return err
	}
	crashpoint.Hit("fence.remembered")
	sessions := make([]volume.Session, len(all))
	for i, one := range all {
		sessions[i] = one.Session
	}
	if err := l.Fencer.End(ctx, sessions); err != nil {
		return errs.Errorf(errs.Unavailable, "end %d sessions of %s: %w", len(sessions), firstBlocks(blocks), err)
	}
	crashpoint.Hit("fence.ended")
	e.metrics.ended.WithLabelValues(l.Name).Add(float64(len(fresh)))
	e.logger.InfoContext(ctx, "ended sessions of fenced clients", "enforcer", l.Name, "count", len(sessions), "cidr", firstBlocks(blocks))
	return e.ledger.ForgetEnding(ctx, all)
}

func (e *Enforcer) ending(ctx context.Context, l *local, blocks []netip.Prefix) ([]ledger.Ending, error) {
	all, err := e.ledger.Ending(ctx)
	if err != nil {
		return nil, err
	}
	set, err := cidr.Set(blocks)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(all, func(one ledger.Ending) bool {
		return one.Enforcer != l.Name || !set.Contains(one.Session.Client.Addr().Unmap().WithZone(""))
	}), nil
}

func (e *Enforcer) verifyEnded(ctx context.Context, l *local, blocks []netip.Prefix) error {
	if len(blocks) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, e.config.Bounds.Verify)
	defer cancel()
	live, err := l.Fencer.Sessions(ctx, blocks)
	if err != nil {
		return errs.Errorf(errs.Unavailable, "list the sessions of %s: %w", firstBlocks(blocks), err)
	}
	if len(live) > 0 {
		return errs.Errorf(errs.Unavailable, "%d sessions still exist, one from %s to %s (%s)", len(live), live[0].Client, live[0].Server, live[0].Holder)
	}
	return nil
}

func (e *Enforcer) verifyHeld(ctx context.Context, l *local, blocks []netip.Prefix) error {
	ctx, cancel := context.WithTimeout(ctx, e.config.Bounds.Verify)
	defer cancel()
	held, err := l.Fencer.Held(ctx)
	if err != nil {
		return errs.Errorf(errs.Unavailable, "read back the fenced blocks: %w", err)
	}
	missing, err := cidr.Missing(held, blocks)
	if err == nil && len(missing) > 0 {
		err = errs.Errorf(errs.Unavailable, "%s is not fenced; it is being repaired", firstBlocks(missing))
	}
	return err
}

// applyLifted applies the desired blocks, and fails if others of the given blocks
// stay fenced. It is one step: of two calls that lift blocks, one must not take
// what the other has recorded, and not applied yet, for its own failure.
func (e *Enforcer) applyLifted(ctx context.Context, l *local, blocks []netip.Prefix) error {
	return e.exclusive(ctx, l, e.config.Bounds.Block+e.config.Bounds.Verify, func(ctx context.Context, desired volume.FenceSet) error {
		bounded, cancel := context.WithTimeout(ctx, e.config.Bounds.Block)
		defer cancel()
		if err := e.applyLocked(bounded, l, desired, nil); err != nil {
			return err
		}
		crashpoint.Hit("unfence.opened")
		held, err := l.Fencer.Held(ctx)
		if err != nil {
			return errs.Errorf(errs.Unavailable, "read back the fenced blocks: %w", err)
		}
		open, err := cidr.Missing(desired.Blocks, blocks)
		if err != nil {
			return err
		}
		closed, err := cidr.Common(held, open)
		if err == nil && len(closed) > 0 {
			err = errs.Errorf(errs.Unavailable, "%s is still fenced", firstBlocks(closed))
		}
		return err
	})
}

// Filter blocks clients (package nft).
type Filter interface {
	Apply(ctx context.Context, blocks []netip.Prefix) error
	Held(ctx context.Context) ([]netip.Prefix, error)
}

// Sockets ends sessions (package sock).
type Sockets interface {
	Sessions(ctx context.Context, blocks []netip.Prefix) ([]volume.Session, error)
	End(ctx context.Context, sessions []volume.Session) error
	Coverage(ctx context.Context, blocks []netip.Prefix) (volume.Coverage, error)
}

// Host returns the Fencer for local storage servers without their own: a packet
// filter blocks clients, and sessions end at the server's sockets.
func Host(filter Filter, sockets Sockets) volume.Fencer { return host{filter, sockets} }

type host struct {
	Filter
	Sockets
}

// Apply ignores client names: the filter knows addresses only.
func (h host) Apply(ctx context.Context, desired volume.FenceSet) error {
	return h.Filter.Apply(ctx, desired.Blocks)
}
