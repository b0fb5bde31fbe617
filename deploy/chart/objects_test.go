package chart

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/labels"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cleatproject/cleat/test/testkit"
)

// Names are unique. They start with the release's name and, for cluster-wide
// objects and those in another namespace, contain the namespace.
func TestObjectNames(t *testing.T) {
	inVariety(t, func(t *testing.T, all []object) {
		prefix := "cleat"
		if strings.Contains(t.Name(), "parent") {
			prefix = "other"
		}
		seen := map[string]bool{}
		for _, o := range all {
			if seen[o.String()] {
				t.Errorf("duplicate %v", o)
			}
			seen[o.String()] = true
			want := prefix
			switch o.Kind {
			case "CSIDriver", "StorageClass", "VolumeSnapshotClass", "VolumeGroupSnapshotClass", "VolumeAttributesClass", "SnapshotMetadataService":
				want = "" // named by their users
			case "CustomResourceDefinition":
				want = "storagefenceremediation" // named by its API
			case "ClusterRole", "ClusterRoleBinding", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding":
				want = "storage-" + prefix
			}
			if !strings.HasPrefix(o.Name, want) && !strings.HasPrefix(o.Name, "storage-"+prefix) {
				t.Errorf("%v: the name does not start with %q", o, want)
			}
			if o.Labels["app.kubernetes.io/instance"] != "cleat" {
				t.Errorf("%v has no label of its release", o)
			}
		}
	})
}

// Two releases with different drivers share no object and no host directory.
func TestTwoReleasesShareNothing(t *testing.T) {
	first := render(t, release{name: "a", values: perNode, apis: apis})
	second := render(t, release{name: "b", values: perNode + "  driverName: b.example.com\n", apis: apis})
	second = slices.DeleteFunc(second, func(o object) bool { return o.Name == "thick" }) // named in perNode
	mine := map[string]bool{}
	for _, o := range first {
		mine[o.String()] = true
	}
	for _, o := range second {
		if mine[o.String()] {
			t.Errorf("both releases have %v", o)
		}
	}
	shared := []string{"/dev", "/sys", "/var/lib/kubelet/plugins", "/var/lib/kubelet/pods", "/var/lib/kubelet/plugins_registry"}
	dirs := hostPaths(first)
	for dir := range hostPaths(second) {
		if dirs[dir] && !slices.Contains(shared, dir) {
			t.Errorf("both releases use host path %s", dir)
		}
	}
}

func hostPaths(all []object) map[string]bool {
	dirs := map[string]bool{}
	for _, w := range workloads(all) {
		for _, v := range w.template.Spec.Volumes {
			if v.HostPath != nil {
				dirs[v.HostPath.Path] = true
			}
		}
	}
	return dirs
}

// The CSI-Addons sidecar is allowed to read its secret, which the chart creates
// or the user names.
func TestFenceSecretAccess(t *testing.T) {
	const csi, fence = "csi: {addons: {enabled: true, secret: %s}}", "csi: {enabled: false}\nfence: {enabled: true, nodeSelector: {kubernetes.io/hostname: b}, addons: {secret: %s}}"
	for values, want := range map[string]struct {
		name string
		made bool
	}{
		fmt.Sprintf(csi, `""`):     {"cleat-csi-addons", true},
		fmt.Sprintf(csi, "mine"):   {"mine", false},
		fmt.Sprintf(fence, `""`):   {"cleat-fence-addons", true},
		fmt.Sprintf(fence, "mine"): {"mine", false},
	} {
		all := render(t, release{values: values, apis: apis})
		var read, made []string
		for _, r := range of[rbacv1.Role](all) {
			for _, rule := range r.Rules {
				if slices.Contains(rule.Resources, "secrets") {
					read = append(read, rule.ResourceNames...)
				}
			}
		}
		for _, s := range of[corev1.Secret](all) {
			if made = append(made, s.Name); len(s.Data)+len(s.StringData) > 0 {
				t.Errorf("%s: the secret is not empty", values)
			}
		}
		if !slices.Equal(read, []string{want.name}) || slices.Contains(made, want.name) != want.made || len(made) > 1 {
			t.Errorf("%s: reads %q and creates %q, want %+v", values, read, made, want)
		}
	}
}

// Every selector matches only the intended pods.
func TestSelectors(t *testing.T) {
	inVariety(t, func(t *testing.T, all []object) {
		pods := map[string]labels.Set{}
		for _, w := range workloads(all) {
			pods[w.name] = w.template.Labels
		}
		check := func(what string, selector labels.Selector) {
			var found []string
			for name, l := range pods {
				if selector.Matches(l) {
					found = append(found, name)
				}
			}
			if len(found) != 1 || !strings.HasPrefix(what, found[0]) {
				t.Errorf("%s selects pods of %v", what, found)
			}
		}
		for _, w := range workloads(all) {
			check(w.name, selectorOf(t, w.selector))
		}
		for _, s := range of[corev1.Service](all) {
			check(strings.NewReplacer("snapshot-metadata", "csi-controller", "csi-fence", "csi-controller").Replace(s.Name), labels.SelectorFromSet(s.Spec.Selector))
		}
		for _, p := range of[policyv1.PodDisruptionBudget](all) {
			check(p.Name, selectorOf(t, p.Spec.Selector))
		}
		for _, p := range of[networkingv1.NetworkPolicy](all) {
			check(p.Name, selectorOf(t, &p.Spec.PodSelector))
		}
	})
}

func selectorOf(t *testing.T, s *metav1.LabelSelector) labels.Selector {
	t.Helper()
	selector := testkit.Value(metav1.LabelSelectorAsSelector(s))(t)
	return selector
}

// Roles grant single verbs on single resources, and all referenced service
// accounts and roles exist.
func TestRBAC(t *testing.T) {
	inVariety(t, func(t *testing.T, all []object) {
		names := map[string]bool{}
		for _, o := range all {
			names[o.String()] = true
		}
		rules := map[string][]rbacv1.PolicyRule{}
		for _, r := range of[rbacv1.ClusterRole](all) {
			rules["ClusterRole /"+r.Name] = r.Rules
		}
		for _, r := range of[rbacv1.Role](all) {
			rules["Role "+r.Namespace+"/"+r.Name] = r.Rules
		}
		for role, rules := range rules {
			for _, rule := range rules {
				words := slices.Concat(rule.APIGroups, rule.Resources, rule.Verbs, rule.ResourceNames)
				if slices.Contains(words, "*") || len(rule.Verbs) == 0 || len(rule.APIGroups) == 0 {
					t.Errorf("%s: %+v is not one verb list for one resource", role, rule)
				}
				if slices.Contains(rule.Resources, "secrets") && (!slices.Equal(rule.Verbs, []string{"get"}) || len(rule.ResourceNames) != 1) {
					t.Errorf("%s can do more than read one secret: %+v", role, rule)
				}
				for _, never := range []string{"roles", "clusterroles", "pods/exec", "nodes/proxy", "serviceaccounts/token"} {
					if slices.Contains(rule.Resources, never) {
						t.Errorf("%s can access %s", role, never)
					}
				}
				isChange := func(verb string) bool { return !slices.Contains([]string{"get", "list", "create"}, verb) }
				if slices.Contains(rule.Resources, "leases") && slices.ContainsFunc(rule.Verbs, isChange) && len(rule.ResourceNames) == 0 && !isConfined(all, role, "leases") {
					t.Errorf("%s can change every lease of the namespace", role)
				}
			}
		}
		bound := map[string]bool{}
		check := func(binding, role string, subjects []rbacv1.Subject) {
			bound[role] = true
			if !names[role] {
				t.Errorf("%s: role %s does not exist", binding, role)
			}
			for _, s := range subjects {
				if s.Namespace == "dpf-operator-system" && s.Name == "spdk-csi-controller-sa" {
					continue // DPF creates it
				}
				if !names["ServiceAccount "+s.Namespace+"/"+s.Name] {
					t.Errorf("%s: service account %s/%s does not exist", binding, s.Namespace, s.Name)
				}
			}
		}
		for _, b := range of[rbacv1.ClusterRoleBinding](all) {
			check(b.Name, "ClusterRole /"+b.RoleRef.Name, b.Subjects)
		}
		for _, b := range of[rbacv1.RoleBinding](all) {
			check(b.Name, "Role "+b.Namespace+"/"+b.RoleRef.Name, b.Subjects)
		}
		for role := range rules {
			// The label binds it to NodeHealthCheck.
			if !bound[role] && !strings.HasSuffix(role, "-takeover-requests") {
				t.Errorf("%s is not bound", role)
			}
		}
		for _, w := range workloads(all) {
			if !names["ServiceAccount storage/"+w.template.Spec.ServiceAccountName] {
				t.Errorf("%s: service account %s does not exist", w.name, w.template.Spec.ServiceAccountName)
			}
		}
	})
}

// isConfined reports whether a policy confines the service account that has the
// name of a role.
func isConfined(all []object, role, resource string) bool {
	_, name, _ := strings.Cut(role, "/")
	return slices.ContainsFunc(of[admissionv1.ValidatingAdmissionPolicy](all), func(p *admissionv1.ValidatingAdmissionPolicy) bool {
		return slices.Contains(p.Spec.MatchConstraints.ResourceRules[0].Resources, resource) &&
			strings.Contains(p.Spec.MatchConditions[0].Expression, `"system:serviceaccount:storage:`+name+`"`)
	})
}

func TestCSIDriver(t *testing.T) {
	for values, want := range map[string]storagev1.CSIDriverSpec{
		perNode:                            {AttachRequired: new(false), VolumeLifecycleModes: []storagev1.VolumeLifecycleMode{"Persistent", "Ephemeral"}},
		controllerMode:                     {AttachRequired: new(true), VolumeLifecycleModes: []storagev1.VolumeLifecycleMode{"Persistent"}},
		cephMode:                           {AttachRequired: new(true), VolumeLifecycleModes: []storagev1.VolumeLifecycleMode{"Persistent"}},
		cephFSMode:                         {AttachRequired: new(true), VolumeLifecycleModes: []storagev1.VolumeLifecycleMode{"Persistent"}},
		noneMode:                           {AttachRequired: new(false), VolumeLifecycleModes: []storagev1.VolumeLifecycleMode{"Persistent"}},
		spdkMode:                           {AttachRequired: new(true), VolumeLifecycleModes: []storagev1.VolumeLifecycleMode{"Persistent"}},
		dpuCluster:                         {AttachRequired: new(true), VolumeLifecycleModes: []storagev1.VolumeLifecycleMode{"Persistent"}},
		variety["spdk, nothing published"]: {AttachRequired: new(false), VolumeLifecycleModes: []storagev1.VolumeLifecycleMode{"Persistent"}},
	} {
		drivers := of[storagev1.CSIDriver](render(t, release{values: values, apis: apis}))
		if len(drivers) != 1 {
			t.Fatalf("%d CSIDrivers, want one", len(drivers))
		}
		got := drivers[0].Spec
		if *got.AttachRequired != *want.AttachRequired || !slices.Equal(got.VolumeLifecycleModes, want.VolumeLifecycleModes) {
			t.Errorf("%+v, want %+v", got, want)
		}
		// A directory of a shared file system has no mount options of its own.
		if got.NodeAllocatableUpdatePeriodSeconds != nil || *got.SELinuxMount != (values != cephFSMode) {
			t.Errorf("SELinux mount %t, update period %v: %s", *got.SELinuxMount, got.NodeAllocatableUpdatePeriodSeconds, values)
		}
		if !*got.PodInfoOnMount || *got.StorageCapacity != (values == perNode || values == controllerMode) || *got.FSGroupPolicy != storagev1.FileFSGroupPolicy {
			t.Errorf("%+v", got)
		}
	}
}

func TestCSIDriverSettings(t *testing.T) {
	got := of[storagev1.CSIDriver](render(t, release{values: perNode + "  seLinuxMount: false\n  nodeAllocatableUpdatePeriodSeconds: 60\n", apis: apis}))[0].Spec
	if *got.SELinuxMount || got.NodeAllocatableUpdatePeriodSeconds == nil || *got.NodeAllocatableUpdatePeriodSeconds != 60 {
		t.Errorf("%+v", got)
	}
}

func TestStorageClasses(t *testing.T) {
	classes := of[storagev1.StorageClass](render(t, release{values: perNode, apis: apis}))
	got := map[string]map[string]string{}
	for _, c := range classes {
		got[c.Name] = c.Parameters
		if c.Provisioner != "csi.cleat.dev" || !*c.AllowVolumeExpansion || *c.VolumeBindingMode != storagev1.VolumeBindingWaitForFirstConsumer {
			t.Errorf("%+v", c)
		}
	}
	want := map[string]map[string]string{
		"cleat": {"csi.storage.k8s.io/fstype": "xfs"},
		"thick": {"csi.storage.k8s.io/fstype": "ext4", "provisioning": "thick", "readAheadKiB": "1024"},
	}
	if !maps.EqualFunc(got, want, maps.Equal[map[string]string, map[string]string]) {
		t.Errorf("%v, want %v", got, want)
	}
}

// NetworkPolicies allow only metrics and the CSI-Addons manager.
func TestNetworkPolicies(t *testing.T) {
	for values, want := range map[string]map[string][]int{
		perNode + theOthers:        {"cleat-csi-node": {29801, 9070}, "cleat-csi-placement": {29801}, "cleat-takeover": {29807}},
		controllerMode + theOthers: {"cleat-csi-node": {29801, 9070}, "cleat-csi-controller": {29801, 9070}, "cleat-takeover": {29807}},
		variety["changed blocks"]:  {"cleat-csi-node": {9070}, "cleat-csi-controller": {9070, 50051}},
		cephMode + theOthers:       {"cleat-csi-controller": {29801, 9070}, "cleat-takeover": {29807}}, // its nodes are in the host's network
		cephFSMode + theOthers:     {"cleat-csi-controller": {29801, 9070}, "cleat-takeover": {29807}},
		spdkMode + theOthers:       {"cleat-csi-controller": {29801, 9070}, "cleat-takeover": {29807}},
		noneMode + theOthers:       {"cleat-takeover": {29807}},
		variety["block devices"]:   {"cleat-dpu": nil},
	} {
		got := map[string][]int{}
		for _, p := range of[networkingv1.NetworkPolicy](render(t, release{values: values, apis: apis})) {
			var ports []int
			for _, rule := range p.Spec.Ingress {
				if len(rule.From) == 0 {
					t.Errorf("%s allows all sources", p.Name)
				}
				for _, port := range rule.Ports {
					ports = append(ports, port.Port.IntValue())
				}
			}
			got[p.Name] = ports
			if !slices.Equal(p.Spec.PolicyTypes, []networkingv1.PolicyType{"Ingress"}) {
				t.Errorf("%s: %v", p.Name, p.Spec.PolicyTypes)
			}
		}
		if !maps.EqualFunc(got, want, slices.Equal[[]int]) {
			t.Errorf("%v, want %v", got, want)
		}
	}
}

// Every mount has an existing volume, and none is below a mount with
// bidirectional propagation, since it would be mounted on the host as well.
func TestVolumeMounts(t *testing.T) {
	inVariety(t, func(t *testing.T, all []object) {
		for _, w := range workloads(all) {
			volumes := map[string]bool{}
			for _, v := range w.template.Spec.Volumes {
				volumes[v.Name] = false
			}
			for _, c := range w.containers() {
				for _, m := range c.VolumeMounts {
					if _, ok := volumes[m.Name]; !ok {
						t.Errorf("%s: %s mounts %s, which does not exist", w.name, c.Name, m.Name)
					}
					volumes[m.Name] = true
					for _, outer := range c.VolumeMounts {
						if m.MountPath != outer.MountPath && bidirectional(outer) && strings.HasPrefix(m.MountPath, outer.MountPath+"/") {
							t.Errorf("%s: %s is below %s, which has bidirectional propagation", w.name, m.MountPath, outer.MountPath)
						}
					}
					if path.Clean(m.MountPath) != m.MountPath {
						t.Errorf("%s: %s", w.name, m.MountPath)
					}
				}
			}
			for name, used := range volumes {
				if !used {
					t.Errorf("%s: no container mounts %s", w.name, name)
				}
			}
		}
	})
}

func bidirectional(m corev1.VolumeMount) bool {
	return m.MountPropagation != nil && *m.MountPropagation == corev1.MountPropagationBidirectional
}
