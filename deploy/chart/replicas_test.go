package chart

import (
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
)

// Of two replicas of a network engine's controller, the drivers elect the one that
// serves, and the sidecars follow it without an election of their own, which would take as
// long again. A replica that waits must not be restarted for that.
func TestReplicasOfController(t *testing.T) {
	for _, mode := range []string{cephMode, cephFSMode, spdkMode, variety["ceph, replicas"], hostCluster} {
		if !strings.Contains(mode, twoReplicas) {
			mode = strings.Replace(mode, "  snapshots", twoReplicas+"  snapshots", 1)
		}
		all := render(t, release{values: mode, apis: apis})
		d := named[appsv1.Deployment](t, all, "cleat-csi-controller").Spec
		spec := d.Template.Spec
		if *d.Replicas != 2 || d.Strategy.Type != appsv1.RollingUpdateDeploymentStrategyType || d.Strategy.RollingUpdate.MaxUnavailable.IntValue() != 1 {
			t.Errorf("%d replicas, %+v", *d.Replicas, d.Strategy)
		}
		if len(spec.TopologySpreadConstraints) != 1 || spec.TopologySpreadConstraints[0].TopologyKey != "kubernetes.io/hostname" {
			t.Errorf("they are not spread: %+v", spec.TopologySpreadConstraints)
		}
		for _, o := range spec.Tolerations {
			if o.TolerationSeconds == nil || *o.TolerationSeconds > 30 {
				t.Errorf("%+v", o)
			}
		}
		if b := named[policyv1.PodDisruptionBudget](t, all, "cleat-csi-controller").Spec; b.MaxUnavailable.IntValue() != 1 {
			t.Errorf("%+v", b)
		}
		driver := spec.InitContainers[0]
		if !slices.Contains(driver.Args, "--lease=storage/cleat-csi-controller") || !slices.ContainsFunc(driver.VolumeMounts, func(m corev1.VolumeMount) bool { return m.MountPath == tokenDir }) {
			t.Errorf("the driver takes part in no election: %q, %+v", driver.Args, driver.VolumeMounts)
		}
		for _, c := range spec.Containers {
			if c.Name != "csi-addons" && (slices.Contains(c.Args, "--leader-election") || c.LivenessProbe != nil) {
				t.Errorf("%s waits for a Lease of its own, or is killed while it waits: %q", c.Name, c.Args)
			}
		}
		if !slices.ContainsFunc(of[rbacv1.Role](all), func(r *rbacv1.Role) bool {
			return r.Namespace == "storage" && slices.ContainsFunc(r.Rules, func(p rbacv1.PolicyRule) bool {
				return slices.Equal(p.ResourceNames, []string{"cleat-csi-controller"}) && slices.Equal(p.Verbs, []string{"get", "update"})
			})
		}) {
			t.Error("no role has the Lease")
		}
	}
}
