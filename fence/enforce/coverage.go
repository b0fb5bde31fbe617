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
	why := l.uncovered(coverage)
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
	before := l.servers.Swap(&coverage.Servers)
	if len(coverage.Servers) == 0 && !l.Standby && (before == nil || len(*before) > 0) {
		e.logger.WarnContext(ctx, "no storage server listens on the fenced ports, a fence would protect nothing", "enforcer", l.Name)
	}
	return coverage, nil
}

// uncovered says why a fence proves nothing; empty: it does.
func (l *local) uncovered(c volume.Coverage) string {
	if _, can := l.Fencer.(coverer); !can {
		return ""
	}
	var why []string
	if len(c.Servers) == 0 && !l.Standby {
		why = append(why, "no storage server listens on the fenced ports in this network namespace, so the fence protects nothing: start the server, or name its ports (--ports); on a machine where it runs only after a failover, set --standby")
	}
	if n := len(c.Unprotected); n > 0 {
		s := c.Unprotected[0]
		why = append(why, fmt.Sprintf("%d sessions use ports that are not fenced, one from %s to %s of %s: add the port to --ports, or end the sessions if they are not used for storage", n, s.Client, s.Server, s.Holder))
	}
	if n := len(c.Forwarded); n > 0 {
		s := c.Forwarded[0]
		why = append(why, fmt.Sprintf("%d connections are forwarded out of this network namespace, one from %s to %s of %s, and would continue after the fence: run the service in the server's network namespace, or restart the server", n, s.Client, s.Server, s.Holder))
	}
	return strings.Join(why, "; ")
}
