// Package enforce puts fences in force, in the only safe order, at local
// fencers and peers. Calls return after all results were read back. It depends
// on no RPC contract.
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
	Name   string // "host" or the engine's name; recorded
	Fencer volume.Fencer
	// Standby: the storage server runs here only after a failover, so a fence
	// without one behind it is confirmed.
	Standby bool
	// Deferred: other machines enforce the fences, and keep them without this
	// process. Restore leaves them to Guard, so that a fence that fails, or storage
	// that is away, keeps no server from starting: nothing that starts here admits
	// a client, except for the ledger, which refuses fenced ones.
	Deferred bool
}

// Peer is another server with the same fences. Invalid and Precondition are
// refusals; after other errors a retry can succeed.
type Peer interface {
	Name() string
	Fence(ctx context.Context, req plan.Request) error
	Unfence(ctx context.Context, req plan.Request) error
	// List returns the peer's blocks of an owner.
	List(ctx context.Context, owner volume.FenceOwner) ([]netip.Prefix, error)
	// Coverage returns what a fence of the blocks covers at the peer's own
	// enforcers.
	Coverage(ctx context.Context, blocks []netip.Prefix) ([]volume.Coverage, error)
}

// Bounds are a call's timeouts; zero fields have defaults.
type Bounds struct {
	Block  time.Duration // Fencer.Apply; 30 s
	End    time.Duration // with the wait for grants in flight; 30 s
	Verify time.Duration // 15 s
	Peer   time.Duration // of a call; 90 s
}

// Config configures an Enforcer. Ledger and Operations are required.
type Config struct {
	Ledger     *ledger.Ledger
	Operations *op.Operations
	Locals     []Local
	Peers      []Peer
	// Addresses that blocks are checked against; nil is loopback.
	Network func(ctx context.Context) (request.Network, error)
	Bounds  Bounds
	// Interval of reading back; zero is 10 s. Changed signals possible changes
	// by other programs; it is never closed.
	Interval time.Duration
	Changed  <-chan struct{}
	// Boots reads the last boot reports of all nodes; nil: nodes do not report.
	Boots   func(ctx context.Context) (map[string]volume.Boot, error)
	Logger  *slog.Logger
	Metrics prometheus.Registerer
}

// Enforcer keeps a ledger's fences in force. Methods are safe for concurrent
// use.
type Enforcer struct {
	config  Config
	ledger  *ledger.Ledger
	logger  *slog.Logger
	locals  []*local
	peers   []*peer
	metrics *metrics
	// Of the last checks of the local fencers, and of the peers.
	checked, peersChecked atomic.Pointer[verdict]
}

// New returns an Enforcer. Call Restore next.
func New(c Config) (*Enforcer, error) {
	if c.Ledger == nil || c.Operations == nil {
		return nil, errors.New("enforce: Ledger and Operations are required")
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
		e.locals = append(e.locals, &local{Local: l, lock: make(chan struct{}, 1)})
	}
	for _, p := range c.Peers {
		e.peers = append(e.peers, &peer{Peer: p})
	}
	var err error
	e.metrics, err = newMetrics(c.Metrics, e)
	return e, err
}

func orElse(d, fallback time.Duration) time.Duration {
	if d == 0 {
		return fallback
	}
	return d
}

// Fence fences the blocks. After nil, no client in them has, or can get, a
// session or a grant at any enforcer. A retry or Guard continues an interrupted
// call.
//
// Errors: Invalid and Precondition, without a change, except that a fence that
// is in force and covers no storage server is Precondition too, and stays; Busy;
// others if an enforcer failed: the fence is then recorded, blocks new grants,
// and is in force at some enforcers.
func (e *Enforcer) Fence(ctx context.Context, req plan.Request) error {
	network, err := e.config.Network(ctx)
	if err != nil {
		return errs.Errorf(errs.Unavailable, "read the addresses of this server to check the blocks: %w", err)
	}
	if err := request.CheckReach(req, network); err != nil {
		return err
	}
	return e.runOperation(ctx, "FenceClusterNetwork", req, false, e.fence)
}

// Unfence lifts this owner's fences and removes their records. Addresses of
// another fence stay fenced; a block that is not fenced is no error.
//
// Force removes all owners' records of exactly these blocks, even with
// sessions: for lost parameters and hung servers.
//
// Errors: Precondition, without a change, if only another parameter set or
// block has fenced a block, or a client instance was possibly missed and neither
// the request nor a boot report of its node confirms a restart; otherwise as
// Fence.
func (e *Enforcer) Unfence(ctx context.Context, req plan.Request) error {
	if req.Force {
		if err := e.unfenceOwners(ctx, req); err != nil {
			return err
		}
	}
	return e.runOperation(ctx, "UnfenceClusterNetwork", req, true, e.unfence)
}

func (e *Enforcer) unfenceOwners(ctx context.Context, req plan.Request) error {
	fences, err := e.ledger.Fences(ctx)
	if err != nil {
		return err
	}
	var all tasks
	for _, theirs := range plan.Owners(fences, req.Blocks) {
		if theirs.Owner.Digest == req.Owner.Digest {
			continue
		}
		theirs.Force, theirs.Restarted = true, req.Restarted
		all.add(plan.Describe(theirs.Owner), func() error {
			e.logger.WarnContext(ctx, "lifting fences of another parameter set by force", "owner", plan.Describe(theirs.Owner), "cidr", firstBlocks(theirs.Blocks))
			return e.runOperation(ctx, "UnfenceClusterNetwork", theirs, true, e.unfence)
		})
	}
	return all.wait()
}

func (e *Enforcer) runOperation(ctx context.Context, what string, req plan.Request, undoes bool, fn func(context.Context, plan.Request) error) error {
	r := op.Request{What: what, Keys: request.Keys(req), Fingerprint: request.Fingerprint(what, req)}
	if undoes {
		r.Cancels = r.Keys
	}
	_, err := op.Do(ctx, e.config.Operations, r, func(ctx context.Context) (struct{}, error) { return struct{}{}, fn(ctx, req) })
	return err
}

// List returns the fenced, verified blocks of one owner or all. It fails if one
// is not in force.
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
	for i, f := range fenced { // by block
		if i == 0 || f.Block != fenced[i-1].Block {
			blocks = append(blocks, f.Block)
		}
	}
	return blocks, nil
}

func (e *Enforcer) verifyAll(ctx context.Context, fenced []volume.Fence) error {
	if len(fenced) == 0 {
		return nil
	}
	desired, err := plan.Desired(fenced)
	if err != nil {
		return err
	}
	var all tasks
	for _, l := range e.locals {
		all.add(l.Name, func() error { return e.verifyHeld(ctx, l, desired) })
	}
	for _, req := range groupByOwner(fenced) {
		for _, p := range e.peersFor(req.Owner) {
			all.add(p.Name(), func() error {
				missing, err := e.missingAt(ctx, p, req)
				if err == nil && len(missing) > 0 {
					err = errs.Errorf(errs.Unavailable, "%s is not fenced there; it is being repaired", firstBlocks(missing))
				}
				return err
			})
		}
	}
	return all.wait()
}

// groupByOwner returns requests that would create the fences.
func groupByOwner(fences []volume.Fence) []plan.Request {
	at := map[string]int{}
	var all []plan.Request
	for _, f := range fences {
		key := fmt.Sprint(f.Owner.Digest, f.Force)
		i, known := at[key]
		if !known {
			i = len(all)
			at[key] = i
			all = append(all, plan.Request{Owner: f.Owner, Force: f.Force})
		}
		all[i].Blocks = append(all[i].Blocks, f.Block)
	}
	return all
}

// firstBlocks formats the first few blocks.
func firstBlocks(blocks []netip.Prefix) string {
	const most = 3
	if len(blocks) <= most {
		return fmt.Sprint(blocks)
	}
	return fmt.Sprintf("%v and %d more", blocks[:most], len(blocks)-most)
}
