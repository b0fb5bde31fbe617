package chart

import (
	"slices"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
)

const tokenDir = "/var/run/secrets/kubernetes.io/serviceaccount"

// Only containers that call the API server have a token: the sidecars, the
// controllers with state in a ConfigMap and of lost nodes, placement, snapshot-controller, the SR-IOV daemon, and those that report boots or read
// the reports. With two clusters, those of sidecars are for the DPU cluster, except
// for that of CSI-Addons.
func TestTokens(t *testing.T) {
	inVariety(t, func(t *testing.T, all []object) {
		for _, w := range workloads(all) {
			if auto := w.template.Spec.AutomountServiceAccountToken; auto == nil || *auto {
				t.Errorf("%s: the token is mounted into every container of the pod", w.name)
			}
		}
	})
	inContainers(t, func(t *testing.T, where string, w workload, c corev1.Container) {
		stateInObject := slices.ContainsFunc(c.Args, func(arg string) bool { return strings.Contains(arg, "-state=configmap:") })
		want := strings.HasPrefix(c.Name, "csi-") || stateInObject || slices.Contains([]string{"sriov-daemon/daemon", "csi-placement/placement", "takeover/takeover", "snapshot-controller/snapshot-controller"}, where) || hasBootLeases(c) || hasLease(c)
		i := slices.IndexFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.MountPath == tokenDir })
		if i >= 0 != want {
			t.Errorf("%s has a token: %t, want %t", where, i >= 0, want)
		}
		if i < 0 || !want {
			return
		}
		m := c.VolumeMounts[i]
		v := w.template.Spec.Volumes[slices.IndexFunc(w.template.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == m.Name })]
		var files []string
		wantFiles := []string{"token", "ca.crt", "namespace"}
		if v.Name == "dpu-cluster" {
			wantFiles = []string{"TOKEN_FILE as token", "KUBERNETES_CA_DATA as ca.crt"}
		}
		if other := strings.Contains(t.Name(), "host_cluster") && !stateInObject && c.Name != "csi-addons"; other != (v.Name == "dpu-cluster") {
			t.Errorf("%s has the token of volume %s", where, v.Name)
		}
		if v.Projected != nil {
			for _, s := range v.Projected.Sources {
				switch {
				case s.ServiceAccountToken != nil:
					files = append(files, s.ServiceAccountToken.Path)
				case s.ConfigMap != nil && s.ConfigMap.Name == "kube-root-ca.crt":
					files = append(files, s.ConfigMap.Items[0].Path)
				case s.Secret != nil && s.Secret.Name == "dpu-cluster":
					for _, item := range s.Secret.Items {
						files = append(files, item.Key+" as "+item.Path)
					}
				case s.DownwardAPI != nil:
					files = append(files, s.DownwardAPI.Items[0].Path)
				}
			}
		}
		if !m.ReadOnly || !slices.Equal(files, wantFiles) {
			t.Errorf("%s: %s has %v, read-only %t", where, m.MountPath, files, m.ReadOnly)
		}
	})
}

// hasLease reports whether a driver is one of several replicas.
func hasLease(c corev1.Container) bool {
	return slices.ContainsFunc(c.Args, func(arg string) bool { return strings.HasPrefix(arg, "--lease=storage/") })
}

func hasBootLeases(c corev1.Container) bool {
	return slices.ContainsFunc(c.Args, func(arg string) bool { return strings.HasPrefix(arg, "--ceph-boot-leases=") })
}

// With a provisioner on each node, two policies confine the service account
// shared by all nodes, with boot reports one; another one confines placement.
// test/kubernetes tests their effect.
func TestAdmissionPolicies(t *testing.T) {
	const user = "system:serviceaccount:storage:cleat-csi-"
	for values, want := range map[string][]string{
		perNode:                              {"persistentvolumeclaims", "persistentvolumes", "persistentvolumeclaims"},
		"csi: {placement: {enabled: false}}": {"persistentvolumes", "persistentvolumeclaims"},
		controllerMode:                       nil, // the nodes' service account cannot do this
		"csi: {admissionPolicy: {enabled: false}}": nil,
		variety["fence alone"]:                     nil,
		cephMode:                                   {"leases"},
		cephFSMode:                                 {"leases"},
		variety["ceph, no sidecars"]:               nil,
		cephMode + "  admissionPolicy: {enabled: false}": nil,
	} {
		all := render(t, release{values: values, apis: apis})
		bound := map[string]bool{}
		for _, b := range of[admissionv1.ValidatingAdmissionPolicyBinding](all) {
			bound[b.Spec.PolicyName] = slices.Equal(b.Spec.ValidationActions, []admissionv1.ValidationAction{admissionv1.Deny})
		}
		var got []string
		for _, p := range of[admissionv1.ValidatingAdmissionPolicy](all) {
			got = append(got, p.Spec.MatchConstraints.ResourceRules[0].Resources...)
			if !bound[p.Name] || p.Spec.FailurePolicy == nil || *p.Spec.FailurePolicy != admissionv1.Fail {
				t.Errorf("%s does not deny requests: bindings %v, %+v", p.Name, bound, p.Spec.FailurePolicy)
			}
			if len(p.Spec.MatchConditions) != 1 || !strings.Contains(p.Spec.MatchConditions[0].Expression, `"`+user) {
				t.Errorf("%s does not match only %s*: %+v", p.Name, user, p.Spec.MatchConditions)
			}
			for _, v := range p.Spec.Validations {
				if v.Message == "" && v.MessageExpression == "" {
					t.Errorf("%s has no message: %s", p.Name, v.Expression)
				}
			}
			delete(bound, p.Name)
		}
		if !slices.Equal(got, want) || len(bound) > 0 {
			t.Errorf("policies for %v, want %v, bindings without a policy %v, with\n%s", got, want, bound, values)
		}
	}
}

// The controller of lost nodes has rights on NetworkFences only if a backend
// fences by them.
func TestTakeoverRights(t *testing.T) {
	for backends, want := range map[string]bool{
		"[{name: a, endpoint: 'a:1'}]":                                     false,
		"[{name: a, endpoint: 'a:1'}, {name: b, networkFenceClass: rook}]": true,
	} {
		has := false
		for _, r := range of[rbacv1.ClusterRole](render(t, release{values: "takeover: {enabled: true, coverage: {backends: " + backends + "}}"})) {
			for _, rule := range r.Rules {
				has = has || strings.HasSuffix(r.Name, "-takeover") && slices.Contains(rule.APIGroups, "csiaddons.openshift.io")
			}
		}
		if has != want {
			t.Errorf("%s: rights on NetworkFences %t", backends, has)
		}
	}
}
