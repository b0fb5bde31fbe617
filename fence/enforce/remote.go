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

// peer has whether it answered the last call.
type peer struct {
	Peer
	up atomic.Bool
}

// refusal: the peer will never execute the request.
type refusal struct{ err error }

func (r *refusal) Error() string { return r.err.Error() }

func (r *refusal) Unwrap() error { return r.err }

// peersFor excludes fences that another server forwarded: it has called all
// peers, and mutual peers would forward for ever.
func (e *Enforcer) peersFor(owner volume.FenceOwner) []*peer {
	if slices.Contains(owner.Keys, request.ViaParameter) {
		return nil
	}
	return e.peers
}

func (e *Enforcer) fenceAt(ctx context.Context, p *peer, req plan.Request) error {
	return e.callPeer(ctx, p, e.config.Bounds.Peer, func(ctx context.Context) error { return p.Fence(ctx, req) })
}

func (e *Enforcer) unfenceAt(ctx context.Context, p *peer, req plan.Request) error {
	return e.callPeer(ctx, p, e.config.Bounds.Peer, func(ctx context.Context) error { return p.Unfence(ctx, req) })
}

func (e *Enforcer) missingAt(ctx context.Context, p *peer, req plan.Request) ([]netip.Prefix, error) {
	var held []netip.Prefix
	err := e.callPeer(ctx, p, e.config.Bounds.Verify, func(ctx context.Context) (err error) {
		held, err = p.List(ctx, req.Owner)
		return err
	})
	if err != nil {
		return nil, err
	}
	return cidr.Missing(held, req.Blocks)
}

// callPeer distinguishes refusals from failures.
func (e *Enforcer) callPeer(ctx context.Context, p *peer, bound time.Duration, call func(context.Context) error) error {
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
		return &refusal{fmt.Errorf("peer %s refused the request: %w", p.Name(), err)}
	}
	return errs.Errorf(errs.Unavailable, "peer %s: %w", p.Name(), err)
}
