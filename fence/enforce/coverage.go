package enforce

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/fence/plan"
	"github.com/cleatproject/cleat/fence/request"
	"github.com/cleatproject/cleat/volume"
)

// coverer is a Fencer that can be in force without protecting anything: it
// filters packets and does not know the storage.
type coverer interface {
	Coverage(ctx context.Context, blocks []netip.Prefix) (volume.Coverage, error)
}

// verifyCoverage fails unless the fence covers a storage server, and the
// clients have no session with one on another port.
func (e *Enforcer) verifyCoverage(ctx context.Context, l *local, req plan.Request, blocks []netip.Prefix) error {
	coverage, err := e.coverage(ctx, l, blocks)
	if err != nil {
		return err
	}
	why := strings.Join(l.uncovered(coverage), "; ")
	switch {
	case why == "":
		return nil
	case slices.Contains(req.Owner.Keys, request.ViaParameter):
		// The forwarding server takes Precondition for a refusal, and would roll
		// back the fence.
		return errs.Errorf(errs.Unavailable, "%s", why)
	}
	return errs.Errorf(errs.Precondition, "%s", why)
}

// coverage also updates what status and metrics report. A Fencer that is part
// of the storage needs none.
func (e *Enforcer) coverage(ctx context.Context, l *local, blocks []netip.Prefix) (volume.Coverage, error) {
	c, can := l.Fencer.(coverer)
	if !can {
		return volume.Coverage{}, nil
	}
	ctx, cancel := context.WithTimeout(ctx, e.config.Bounds.Verify)
	defer cancel()
	coverage, err := c.Coverage(ctx, blocks)
	if err != nil {
		return coverage, errs.Errorf(errs.Unavailable, "find the storage servers that the fence covers: %w", err)
	}
	before := l.servers.Swap(&volume.Coverage{Servers: coverage.Servers, Uncovered: coverage.Uncovered})
	if len(coverage.Servers) == 0 && !l.Standby && (before == nil || len(before.Servers) > 0) {
		e.logger.WarnContext(ctx, "no storage server listens on the fenced ports, a fence would protect nothing", "enforcer", l.Name)
	}
	return coverage, nil
}

// uncovered returns the reasons for which a fence proves nothing; empty: it does.
func (l *local) uncovered(c volume.Coverage) (why []string) {
	if _, can := l.Fencer.(coverer); !can {
		return nil
	}
	if len(c.Servers) == 0 && !l.Standby {
		why = append(why, "no storage server listens on the fenced ports in this network namespace, so the fence protects nothing: start the server, or name its ports (--ports); on a machine where it runs only after a failover, set --standby")
	}
	if n := len(c.Unobserved); n > 0 {
		s := c.Unobserved[0]
		why = append(why, fmt.Sprintf("%d sessions have %s, so their end cannot be observed, one from %s to %s: for targets of the kernel set --kernel-targets", n, s.Holder, s.Client, s.Server))
	}
	if n := len(c.Uncovered); n > 0 {
		why = append(why, fmt.Sprintf("%d servers accept sessions over RDMA, which pass no packet filter and have no sockets, one is %s: end and refuse the client's sessions at the server itself, and set --allow-rdma", n, describe(c.Uncovered[0])))
	}
	if n := len(c.Unprotected); n > 0 {
		s := c.Unprotected[0]
		why = append(why, fmt.Sprintf("%d sessions use ports that are not fenced, one from %s to %s of %s: add the port to --ports, or end the sessions if they are not used for storage", n, s.Client, s.Server, s.Holder))
	}
	if n := len(c.Forwarded); n > 0 {
		s := c.Forwarded[0]
		why = append(why, fmt.Sprintf("%d connections are forwarded out of this network namespace, one from %s to %s of %s, and would continue after the fence: run the service in the server's network namespace, or restart the server", n, s.Client, s.Server, s.Holder))
	}
	return why
}

// CheckCoverage fails while no fence would be confirmed here, whatever its clients:
// for /readyz, so that a service that protects nothing is noticed before an
// outage. It reports the last check.
func (e *Enforcer) CheckCoverage(context.Context) error {
	var why []string
	for _, l := range e.locals {
		_, can := l.Fencer.(coverer)
		switch last := l.servers.Load(); {
		case !can:
		case last == nil:
			why = append(why, "the storage servers on the fenced ports have not been read yet")
		default:
			why = append(why, l.uncovered(*last)...)
		}
	}
	if len(why) == 0 {
		return nil
	}
	return errs.Errorf(errs.Precondition, "a fence would not be confirmed: %s", strings.Join(why, "; "))
}

func describe(l volume.Listener) string {
	if l.Address.IsValid() {
		return fmt.Sprintf("%s at %s", l.Holder, l.Address)
	}
	return l.Holder
}

// Coverage reports for each enforcer what fences of the blocks cover now, and
// why a fence would not be confirmed; without blocks, of all recorded fences. It
// changes nothing. Local omits peers.
//
// Errors: Invalid for blocks that Fence refuses; Unavailable.
func (e *Enforcer) Coverage(ctx context.Context, blocks []netip.Prefix, onlyLocal bool) ([]volume.Coverage, error) {
	var err error
	if len(blocks) == 0 {
		var desired volume.FenceSet
		desired, err = desiredIn(ctx, e.ledger)
		blocks = desired.Blocks
	} else if network, failed := e.config.Network(ctx); failed == nil {
		err = request.CheckReach(plan.Request{Blocks: blocks}, network)
	} else {
		err = errs.Errorf(errs.Unavailable, "read the addresses of this server to check the blocks: %w", failed)
	}
	if err != nil {
		return nil, err
	}
	peers := e.peers
	if onlyLocal {
		peers = nil
	}
	found := make([][]volume.Coverage, len(e.locals)+len(peers))
	var all tasks
	for i, l := range e.locals {
		all.add(l.Name, func() (err error) {
			found[i], err = e.localCoverage(ctx, l, blocks)
			return err
		})
	}
	for i, p := range peers {
		all.add(p.Name(), func() error {
			found[len(e.locals)+i] = e.peerCoverage(ctx, p, blocks)
			return nil
		})
	}
	err = all.wait()
	return slices.Concat(found...), err
}

func (e *Enforcer) localCoverage(ctx context.Context, l *local, blocks []netip.Prefix) ([]volume.Coverage, error) {
	c, err := e.coverage(ctx, l, blocks)
	if err != nil {
		return nil, err
	}
	c.Enforcer = l.Name
	c.Problems = l.uncovered(c)
	if _, can := l.Fencer.(coverer); !can && len(blocks) > 0 {
		ctx, cancel := context.WithTimeout(ctx, e.config.Bounds.Verify)
		defer cancel()
		if c.Sessions, err = l.Fencer.Sessions(ctx, blocks); err != nil {
			return nil, errs.Errorf(errs.Unavailable, "list the sessions of %s: %w", firstBlocks(blocks), err)
		}
	}
	return []volume.Coverage{c}, nil
}

// peerCoverage has a problem instead of an error: the other enforcers' coverage
// is known.
func (e *Enforcer) peerCoverage(ctx context.Context, p *peer, blocks []netip.Prefix) []volume.Coverage {
	ctx, cancel := context.WithTimeout(ctx, e.config.Bounds.Verify)
	defer cancel()
	all, err := p.Coverage(ctx, blocks)
	if err != nil {
		return []volume.Coverage{{Enforcer: p.Name(), Problems: []string{fmt.Sprintf("its coverage is not known: %s", err)}}}
	}
	for i := range all {
		all[i].Enforcer = p.Name() + "/" + all[i].Enforcer
	}
	return all
}
