package enforce

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/fence/plan"
	"github.com/cleatproject/cleat/fence/request"
	"github.com/cleatproject/cleat/internal/cidr"
	"github.com/cleatproject/cleat/volume"
)

// peer is another server, and whether it answered last time.
type peer struct {
	Peer
	up atomic.Bool
}

// refusal is the answer of a peer that will never do what was asked.
type refusal struct{ err error }

func (r *refusal) Error() string { return r.err.Error() }

func (r *refusal) Unwrap() error { return r.err }

// peersFor returns the peers that an owner's fences are passed on to. What came
// from another server stays here: that one has told all who are to know, and
// servers that are each other's peers would never end telling.
func (e *Enforcer) peersFor(owner volume.FenceOwner) []*peer {
	if slices.Contains(owner.Keys, request.ViaParameter) {
		return nil
	}
	return e.peers
}

func (e *Enforcer) fenceAt(ctx context.Context, p *peer, ask plan.Ask) error {
	return e.at(ctx, p, e.config.Bounds.Peer, func(ctx context.Context) error { return p.Fence(ctx, ask) })
}

func (e *Enforcer) unfenceAt(ctx context.Context, p *peer, ask plan.Ask) error {
	return e.at(ctx, p, e.config.Bounds.Peer, func(ctx context.Context) error { return p.Unfence(ctx, ask) })
}

// missingAt returns what a peer does not hold of an ask.
func (e *Enforcer) missingAt(ctx context.Context, p *peer, ask plan.Ask) ([]netip.Prefix, error) {
	var held []netip.Prefix
	err := e.at(ctx, p, e.config.Bounds.Verify, func(ctx context.Context) (err error) {
		held, err = p.List(ctx, ask.Owner)
		return err
	})
	if err != nil {
		return nil, err
	}
	return cidr.Missing(held, ask.Blocks)
}

// at calls a peer within the bound and tells a refusal from a failure.
func (e *Enforcer) at(ctx context.Context, p *peer, bound time.Duration, call func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	err := call(ctx)
	kind := errs.KindOf(err)
	refused := err != nil && (kind == errs.Invalid || kind == errs.Precondition)
	p.up.Store(err == nil || refused)
	switch {
	case err == nil:
		return nil
	case refused:
		return &refusal{fmt.Errorf("peer %s refuses it: %w", p.Name(), err)}
	}
	return errs.Errorf(errs.Unavailable, "peer %s: %w", p.Name(), err)
}
