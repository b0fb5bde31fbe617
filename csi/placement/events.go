package placement

import (
	"context"

	corev1 "k8s.io/api/core/v1"

	"github.com/cleatproject/cleat/internal/kubeobject"
)

const component = "cleat-csi-placement"

// event records an event of a claim.
func (p *Controller) event(ctx context.Context, claim *corev1.PersistentVolumeClaim, kind, reason, text string) {
	claim = claim.DeepCopy()
	claim.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("PersistentVolumeClaim")) // a cache keeps none
	if err := kubeobject.WriteEvent(ctx, p.config.Client, component, claim, kind, reason, text); err != nil {
		p.config.Logger.WarnContext(ctx, "event not written", "claim", claim.Namespace+"/"+claim.Name, "reason", reason, "err", err)
	}
}
