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
	var readErr error
	if e.config.Boots != nil {
		if all, readErr, err = e.forgetRestarted(ctx, all, blocks); err != nil || len(all) == 0 {
			return err
		}
	}
	err = errs.Errorf(errs.Precondition, "not all uses of volumes before the fence are known, and one that is left would write again: %s. Restart these nodes or turn them off, then confirm it, unless their reboot is noticed, with the parameter %s=true (cleat fence rm --restarted)",
		strings.Join(describeUnseen(all), "; "), request.RestartedParameter)
	if readErr != nil {
		err = errs.Errorf(errs.Precondition, "%w; the boot reports of nodes could not be read: %w", err, readErr)
	}
	return err
}

// bootsTimeout bounds the read of boot reports: a call goes on without them.
const bootsTimeout = 10 * time.Second

func (e *Enforcer) readBoots(ctx context.Context) (map[string]volume.Boot, error) {
	ctx, cancel := context.WithTimeout(ctx, bootsTimeout)
	defer cancel()
	return e.config.Boots(ctx)
}

// forgetRestarted returns the uses that no report of a restart ends.
func (e *Enforcer) forgetRestarted(ctx context.Context, all []ledger.Unseen, blocks []netip.Prefix) (left []ledger.Unseen, readErr, err error) {
	boots, readErr := e.readBoots(ctx)
	if readErr != nil {
		return all, readErr, nil
	}
	if err := e.ledger.ForgetRestarted(ctx, all, boots); err != nil {
		return nil, nil, err
	}
	left, err = e.ledger.Unseen(ctx, blocks)
	return left, nil, err
}

// recordBoots records which boot the nodes with unseen uses have reported, once
// their fence is in force. Guard repeats what failed: a later report is as good,
// but needs a later restart.
func (e *Enforcer) recordBoots(ctx context.Context) {
	if e.config.Boots == nil {
		return
	}
	awaiting, err := e.ledger.Recent().AwaitingBoots(ctx)
	if err == nil && len(awaiting) > 0 {
		var boots map[string]volume.Boot
		if boots, err = e.readBoots(ctx); err == nil {
			err = e.ledger.RecordBoots(ctx, awaiting, boots)
		}
	}
	if err != nil && ctx.Err() == nil {
		e.logger.WarnContext(ctx, "recording the boots of fenced nodes failed, will retry", "err", err)
	}
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
		since, volumes, noticed := all[0].Since, "", ", a reboot is noticed"
		for i, u := range all[:n] {
			if u.Fenced == nil {
				noticed = ""
			}
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
		texts = append(texts, fmt.Sprintf("node %s, volumes%s, not listed in time since %s%s", all[0].Node, volumes, since.UTC().Format(time.RFC3339), noticed))
		all = all[n:]
	}
	return texts
}
