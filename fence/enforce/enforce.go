// Package enforce carries fences out, in the one order that is safe, through
// whatever enforces them: fencers of this machine or engine, and peers. It
// answers only when everything was read back. It knows no contract.
package enforce

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/fence/plan"
	"github.com/cleatproject/cleat/fence/request"
	"github.com/cleatproject/cleat/internal/ledger"
	"github.com/cleatproject/cleat/internal/op"
	"github.com/cleatproject/cleat/volume"
)

// Local is a fencer of this process.
type Local struct {
	Name   string // as "host" or the engine's; the ledger keeps it
	Fencer volume.Fencer
}

// Peer is another server that enforces the same fences. Errors of kind Invalid
// and Precondition say that it refuses; all others, that it may do it later.
type Peer interface {
	Name() string
	Fence(ctx context.Context, ask plan.Ask) error
	Unfence(ctx context.Context, ask plan.Ask) error
	// List returns what the peer holds for an owner.
	List(ctx context.Context, owner volume.FenceOwner) ([]netip.Prefix, error)
}

// Bounds are the deadlines of the steps of a call. Zero fields have defaults.
type Bounds struct {
	Block  time.Duration // until a fencer has taken the set; 30 s
	End    time.Duration // until sessions, and grants under way, have ended; 30 s
	Verify time.Duration // for reading back; 15 s
	Peer   time.Duration // until a peer has fenced or unfenced; 90 s
}

// Config is what an Enforcer works with. Ledger and Operations are needed.
type Config struct {
	Ledger     *ledger.Ledger
	Operations *op.Operations
	Locals     []Local
	Peers      []Peer
	// Network returns what blocks are checked against; nil: loopback alone.
	Network func(ctx context.Context) (request.Network, error)
	Bounds  Bounds
	// Interval is how often what holds is read back; zero is 10 s. Changed, if not
	// nil, signals that another program can have changed it; it is never closed.
	Interval time.Duration
	Changed  <-chan struct{}
	Logger   *slog.Logger          // nil: none
	Metrics  prometheus.Registerer // nil: none
}

// Enforcer keeps the fences of a ledger in force. Its methods may be called by
// many goroutines.
type Enforcer struct {
	config  Config
	ledger  *ledger.Ledger
	logger  *slog.Logger
	locals  []*local
	peers   []*peer
	metrics *metrics
	checked atomic.Pointer[error] // of the last check; nil: none yet
}

// New makes an Enforcer. Restore comes next.
func New(c Config) (*Enforcer, error) {
	if c.Ledger == nil || c.Operations == nil {
		return nil, errors.New("an enforcer of fences needs a ledger and operations")
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Network == nil {
		c.Network = func(context.Context) (request.Network, error) {
			return request.Network{Own: []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback()}}, nil
		}
	}
	c.Interval = orElse(c.Interval, 10*time.Second)
	c.Bounds.Block = orElse(c.Bounds.Block, 30*time.Second)
	c.Bounds.End = orElse(c.Bounds.End, 30*time.Second)
	c.Bounds.Verify = orElse(c.Bounds.Verify, 15*time.Second)
	c.Bounds.Peer = orElse(c.Bounds.Peer, 90*time.Second)
	e := &Enforcer{config: c, ledger: c.Ledger, logger: c.Logger}
	for _, l := range c.Locals {
		e.locals = append(e.locals, &local{Local: l, turn: make(chan struct{}, 1)})
	}
	for _, p := range c.Peers {
		e.peers = append(e.peers, &peer{Peer: p})
	}
	var err error
	e.metrics, err = newMetrics(c.Metrics)
	return e, err
}

func orElse(d, fallback time.Duration) time.Duration {
	if d == 0 {
		return fallback
	}
	return d
}

// Fence cuts the blocks off. When it returns nil no client in them has a
// session or can begin one, at any enforcer, and no grant. What has begun is
// continued by the same call again, and by Guard.
//
// Errors: Invalid and Precondition, with nothing changed; Busy; Unavailable and
// others, when an enforcer could not be brought to it: then the fence is on
// record, keeps grants away, and holds in part.
func (e *Enforcer) Fence(ctx context.Context, ask plan.Ask) error {
	network, err := e.config.Network(ctx)
	if err != nil {
		return errs.Errorf(errs.Unavailable, "check the blocks against the addresses of this server: %w", err)
	}
	if err := request.CheckReach(ask, network); err != nil {
		return err
	}
	return e.do(ctx, "FenceClusterNetwork", ask, false, e.fence)
}

// Unfence lets the blocks in again, as far as no other fence covers them, and
// takes this owner's record of them away. What is not fenced is no error.
//
// By force it takes everybody's record of just these blocks away, also in front
// of sessions that do not end: the way out where the parameters that fenced are
// lost, or a server is stuck.
//
// Errors: Precondition, with nothing changed, for a block that only another
// parameter set, or another block, has fenced; else as Fence.
func (e *Enforcer) Unfence(ctx context.Context, ask plan.Ask) error {
	if ask.Force {
		if err := e.unfenceOwners(ctx, ask); err != nil {
			return err
		}
	}
	return e.do(ctx, "UnfenceClusterNetwork", ask, true, e.unfence)
}

func (e *Enforcer) unfenceOwners(ctx context.Context, ask plan.Ask) error {
	fences, err := e.ledger.Fences(ctx)
	if err != nil {
		return err
	}
	var all tasks
	for _, theirs := range plan.Owners(fences, ask.Blocks) {
		if theirs.Owner.Digest == ask.Owner.Digest {
			continue
		}
		theirs.Force = true
		all.add(plan.Describe(theirs.Owner), func() error {
			e.logger.WarnContext(ctx, "fences of another parameter set are lifted by force", "owner", plan.Describe(theirs.Owner), "blocks", some(theirs.Blocks))
			return e.do(ctx, "UnfenceClusterNetwork", theirs, true, e.unfence)
		})
	}
	return all.wait()
}

func (e *Enforcer) do(ctx context.Context, what string, ask plan.Ask, undoes bool, fn func(context.Context, plan.Ask) error) error {
	r := op.Request{What: what, Keys: request.Keys(ask), Fingerprint: request.Fingerprint(what, ask)}
	if undoes {
		r.Cancels = r.Keys
	}
	_, err := op.Do(ctx, e.config.Operations, r, func(ctx context.Context) (struct{}, error) { return struct{}{}, fn(ctx, ask) })
	return err
}

// List returns the blocks that are fenced and verified, of one owner or of all,
// as they were asked for. It fails when one of them does not hold now.
func (e *Enforcer) List(ctx context.Context, owner *volume.FenceOwner) ([]netip.Prefix, error) {
	fences, err := e.ledger.Fences(ctx)
	if err != nil {
		return nil, err
	}
	var fenced []volume.Fence
	for _, f := range fences {
		if f.Phase == volume.Fenced && (owner == nil || owner.Digest == f.Owner.Digest) {
			fenced = append(fenced, f)
		}
	}
	if err := e.verifyAll(ctx, fenced); err != nil {
		return nil, err
	}
	var blocks []netip.Prefix
	for i, f := range fenced { // they come in the order of blocks
		if i == 0 || f.Block != fenced[i-1].Block {
			blocks = append(blocks, f.Block)
		}
	}
	return blocks, nil
}

// verifyAll reads back everywhere whether fences hold.
func (e *Enforcer) verifyAll(ctx context.Context, fenced []volume.Fence) error {
	if len(fenced) == 0 {
		return nil
	}
	wanted, err := plan.Wanted(fenced)
	if err != nil {
		return err
	}
	var all tasks
	for _, l := range e.locals {
		all.add(l.Name, func() error { return e.verifyHeld(ctx, l, wanted) })
	}
	for _, ask := range asks(fenced) {
		for _, p := range e.peersFor(ask.Owner) {
			all.add(p.Name(), func() error {
				missing, err := e.missingAt(ctx, p, ask)
				if err == nil && len(missing) > 0 {
					err = errs.Errorf(errs.Unavailable, "it does not hold %s; it is being repaired", some(missing))
				}
				return err
			})
		}
	}
	return all.wait()
}

// asks puts fences together by owner, as they would be asked for.
func asks(fences []volume.Fence) []plan.Ask {
	at := map[string]int{}
	var all []plan.Ask
	for _, f := range fences {
		key := fmt.Sprint(f.Owner.Digest, f.Force)
		i, known := at[key]
		if !known {
			i = len(all)
			at[key] = i
			all = append(all, plan.Ask{Owner: f.Owner, Force: f.Force})
		}
		all[i].Blocks = append(all[i].Blocks, f.Block)
	}
	return all
}

// some names the first of many blocks.
func some(blocks []netip.Prefix) string {
	const most = 3
	if len(blocks) <= most {
		return fmt.Sprint(blocks)
	}
	return fmt.Sprintf("%v and %d more", blocks[:most], len(blocks)-most)
}
