package takeover

import (
	"context"

	"github.com/cleatproject/cleat/internal/kubeobject"
)

// event records an event of the remediation. It is a copy of what the status has.
func (c *Controller) event(ctx context.Context, o *observation, kind, reason, text string) {
	if err := kubeobject.WriteEvent(ctx, c.config.Client, "cleat-takeover", o.remediation, kind, reason, text); err != nil {
		c.config.Logger.WarnContext(ctx, "event not written", "remediation", o.Remediation.Name, "reason", reason, "err", err)
	}
}
