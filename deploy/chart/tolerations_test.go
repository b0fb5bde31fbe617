package chart

import (
	"maps"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
)

// Pods of a DaemonSet stay on a node that is taken over, since they unmount its volumes
// after a reboot. Deployments go elsewhere.
func TestOutOfServiceTaint(t *testing.T) {
	tolerates := func(all []corev1.Toleration) bool {
		return slices.ContainsFunc(all, func(o corev1.Toleration) bool {
			return o.Operator == corev1.TolerationOpExists && (o.Key == "" || o.Key == "node.kubernetes.io/out-of-service") && (o.Effect == "" || o.Effect == corev1.TaintEffectNoExecute)
		})
	}
	releases := maps.Clone(variety)
	releases["other tolerations"] = strings.Replace(cephMode, "maxVolumes: 100", "tolerations: [{key: a, operator: Exists}]", 1)
	for name, values := range releases {
		all := render(t, release{values: strings.Replace(values, ", tolerations: [{operator: Exists}]", "", 1), apis: apis})
		for _, d := range of[appsv1.DaemonSet](all) {
			if !tolerates(d.Spec.Template.Spec.Tolerations) {
				t.Errorf("%s: DaemonSet %s does not tolerate the taint: %+v", name, d.Name, d.Spec.Template.Spec.Tolerations)
			}
		}
		for _, d := range of[appsv1.Deployment](all) {
			if tolerates(d.Spec.Template.Spec.Tolerations) {
				t.Errorf("%s: Deployment %s tolerates the taint: %+v", name, d.Name, d.Spec.Template.Spec.Tolerations)
			}
		}
	}
}
