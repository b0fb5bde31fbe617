package enforce

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/fence/plan"
	"github.com/cleatproject/cleat/fence/request"
	"github.com/cleatproject/cleat/internal/ledger"
	"github.com/cleatproject/cleat/volume"
)

// requireSeen refuses to unfence clients of which an instance was possibly not
// recorded: it would use its volumes again, which others have by now. A fence
// that was not confirmed has given them to no other client.
func (e *Enforcer) requireSeen(ctx context.Context, req plan.Request) error {
	fences, err := e.ledger.Fences(ctx)
	if err != nil {
		return err
	}
	blocks := plan.InPhase(fences, req, volume.Fenced)
	if len(blocks) == 0 {
		return nil
	}
	if req.Restarted {
		return e.ledger.ForgetUnseen(ctx, blocks)
	}
	all, err := e.ledger.Unseen(ctx, blocks)
	if err != nil || len(all) == 0 {
		return err
	}
	return errs.Errorf(errs.Precondition, "not all uses of volumes before the fence are known, and one that is left would write again: %s. Restart these nodes or turn them off, then confirm it with the parameter %s=true (cleat fence rm --restarted)",
		strings.Join(describeUnseen(all), "; "), request.RestartedParameter)
}

// Unseen describes the fenced clients that Unfence refuses without a restart.
func (e *Enforcer) Unseen(ctx context.Context) ([]string, error) {
	fences, err := e.ledger.Fences(ctx)
	if err != nil {
		return nil, err
	}
	var blocks []netip.Prefix
	for _, f := range fences {
		if f.IsDesired() {
			blocks = append(blocks, f.Block)
		}
	}
	all, err := e.ledger.Unseen(ctx, blocks)
	return describeUnseen(all), err
}

// describeUnseen has a text for each node. The list is sorted by node.
func describeUnseen(all []ledger.Unseen) (texts []string) {
	const most = 3 // volumes of a node
	for len(all) > 0 {
		n := slices.IndexFunc(all, func(u ledger.Unseen) bool { return u.Node != all[0].Node })
		if n < 0 {
			n = len(all)
		}
		since, volumes := all[0].Since, ""
		for i, u := range all[:n] {
			if i < most {
				volumes += " " + string(u.Volume)
			}
			if u.Since.Before(since) {
				since = u.Since
			}
		}
		if n > most {
			volumes += fmt.Sprintf(" and %d more", n-most)
		}
		texts = append(texts, fmt.Sprintf("node %s, volumes%s, not listed in time since %s", all[0].Node, volumes, since.UTC().Format(time.RFC3339)))
		all = all[n:]
	}
	return texts
}
