package enforce

import (
	"context"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/fence/plan"
	"github.com/cleatproject/cleat/internal/cidr"
	"github.com/cleatproject/cleat/internal/crashpoint"
	"github.com/cleatproject/cleat/internal/ledger"
	"github.com/cleatproject/cleat/volume"
)

// local is a fencer of this process. The holder of turn alone changes what it
// holds, always to what the ledger says at that moment, so that of two calls
// the later one never takes back what the earlier one did.
type local struct {
	Local
	turn    chan struct{} // one token
	applied []netip.Prefix
	known   bool // applied is what the fencer was last told, in this process
	holds   atomic.Bool
}

// alone calls fn with what the ledger wants, while nobody else changes what a
// fencer holds, and within a bound.
func (e *Enforcer) alone(ctx context.Context, l *local, bound time.Duration, fn func(ctx context.Context, wanted []netip.Prefix) error) error {
	ctx, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	select {
	case l.turn <- struct{}{}:
		defer func() { <-l.turn }()
	case <-ctx.Done():
		return errs.Errorf(errs.Unavailable, "others change its set of fences: %w", ctx.Err())
	}
	wanted, err := e.wanted(ctx)
	if err != nil {
		return err
	}
	return fn(ctx, wanted)
}

// apply makes a fencer hold what the ledger wants.
func (e *Enforcer) apply(ctx context.Context, l *local) error {
	return e.alone(ctx, l, e.config.Bounds.Block, func(ctx context.Context, wanted []netip.Prefix) error {
		return e.applyLocked(ctx, l, wanted)
	})
}

func (e *Enforcer) applyLocked(ctx context.Context, l *local, wanted []netip.Prefix) error {
	clients, err := e.ledger.ClientsIn(ctx, wanted)
	if err != nil {
		return err
	}
	if err := l.Fencer.Apply(ctx, volume.FenceSet{Blocks: wanted, Clients: clients}); err != nil {
		l.known = false // it may hold either
		return errs.Errorf(errs.Unavailable, "set what is to be fenced (%d blocks): %w", len(wanted), err)
	}
	l.applied, l.known = wanted, true
	return nil
}

func (e *Enforcer) wanted(ctx context.Context) ([]netip.Prefix, error) {
	fences, err := e.ledger.Fences(ctx)
	if err != nil {
		return nil, err
	}
	return plan.Wanted(fences)
}

// clear ends the sessions of clients in the blocks, and waits until their I/O
// is done or aborted. Which sessions these are is on record before the first of
// them is ended: afterwards the kernel no longer tells.
func (e *Enforcer) clear(ctx context.Context, l *local, blocks []netip.Prefix) error {
	if len(blocks) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, e.config.Bounds.End)
	defer cancel()
	live, err := l.Fencer.Sessions(ctx, blocks)
	if err != nil {
		return errs.Errorf(errs.Unavailable, "list the sessions of %s: %w", some(blocks), err)
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
	if err := e.ledger.RememberEnding(ctx, fresh); err != nil {
		return err
	}
	crashpoint.Hit("fence.remembered")
	sessions := make([]volume.Session, len(all))
	for i, one := range all {
		sessions[i] = one.Session
	}
	if err := l.Fencer.End(ctx, sessions); err != nil {
		return errs.Errorf(errs.Unavailable, "end %d sessions of %s: %w", len(sessions), some(blocks), err)
	}
	crashpoint.Hit("fence.ended")
	e.metrics.ended.WithLabelValues(l.Name).Add(float64(len(fresh)))
	e.logger.InfoContext(ctx, "sessions of fenced clients were ended", "enforcer", l.Name, "sessions", len(sessions), "blocks", some(blocks))
	return e.ledger.ForgetEnding(ctx, all)
}

// ending returns what is on record as being ended, of clients in the blocks.
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

// verifyEnded fails unless no client in the blocks has a session.
func (e *Enforcer) verifyEnded(ctx context.Context, l *local, blocks []netip.Prefix) error {
	if len(blocks) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, e.config.Bounds.Verify)
	defer cancel()
	live, err := l.Fencer.Sessions(ctx, blocks)
	if err != nil {
		return errs.Errorf(errs.Unavailable, "list the sessions of %s: %w", some(blocks), err)
	}
	if len(live) > 0 {
		return errs.Errorf(errs.Unavailable, "%d sessions are still there, one from %s to %s (%s)", len(live), live[0].Client, live[0].Server, live[0].Holder)
	}
	return nil
}

// verifyHeld fails unless all the blocks hold.
func (e *Enforcer) verifyHeld(ctx context.Context, l *local, blocks []netip.Prefix) error {
	ctx, cancel := context.WithTimeout(ctx, e.config.Bounds.Verify)
	defer cancel()
	held, err := l.Fencer.Held(ctx)
	if err != nil {
		return errs.Errorf(errs.Unavailable, "read back what is fenced: %w", err)
	}
	missing, err := cidr.Missing(held, blocks)
	if err == nil && len(missing) > 0 {
		err = errs.Errorf(errs.Unavailable, "%s should be fenced and is not; it is being repaired", some(missing))
	}
	return err
}

// verifyOpen fails unless everybody in the blocks is let in whom no fence keeps
// out.
func (e *Enforcer) verifyOpen(ctx context.Context, l *local, blocks []netip.Prefix) error {
	return e.alone(ctx, l, e.config.Bounds.Verify, func(ctx context.Context, wanted []netip.Prefix) error {
		held, err := l.Fencer.Held(ctx)
		if err != nil {
			return errs.Errorf(errs.Unavailable, "read back what is fenced: %w", err)
		}
		open, err := cidr.Missing(wanted, blocks)
		if err != nil {
			return err
		}
		closed, err := cidr.Common(held, open)
		if err == nil && len(closed) > 0 {
			err = errs.Errorf(errs.Unavailable, "%s is still fenced", some(closed))
		}
		return err
	})
}

// Filter blocks clients; package nft has one.
type Filter interface {
	Apply(ctx context.Context, blocks []netip.Prefix) error
	Held(ctx context.Context) ([]netip.Prefix, error)
}

// Sockets ends the sessions that clients have; package sock does.
type Sockets interface {
	Sessions(ctx context.Context, blocks []netip.Prefix) ([]volume.Session, error)
	End(ctx context.Context, sessions []volume.Session) error
}

// Host returns the Fencer of storage servers on this machine that have none of
// their own: a packet filter blocks their clients, whose sessions end at their
// sockets.
func Host(filter Filter, sockets Sockets) volume.Fencer { return host{filter, sockets} }

type host struct {
	Filter
	Sockets
}

// Apply needs the addresses only: the filter knows clients by nothing else.
func (h host) Apply(ctx context.Context, wanted volume.FenceSet) error {
	return h.Filter.Apply(ctx, wanted.Blocks)
}
