package chart

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	storagev1 "k8s.io/api/storage/v1"
)

// The controller of Ceph volumes has the image with Ceph's libraries, the
// configuration and the key. It can run on any node, so it has nothing of one.
func TestCephController(t *testing.T) {
	all := render(t, release{values: cephMode, apis: apis})
	spec := of[appsv1.Deployment](all)[0].Spec.Template.Spec
	c := spec.InitContainers[0]
	if c.Image != oursCeph || spec.HostNetwork || len(spec.NodeSelector) != 1 {
		t.Errorf("image %s, the host's network %t, node selector %v", c.Image, spec.HostNetwork, spec.NodeSelector)
	}
	if p := c.SecurityContext.Privileged; p != nil && *p {
		t.Error("it is privileged")
	}
	for _, want := range []string{"--engine=ceph", "--services=controller", "--ceph-cluster=rook-ceph", "--ceph-pool=replicapool", "--ceph-pool=fast",
		"--ceph-secret=/etc/cleat/ceph-secret", "--addons-endpoint=unix:///run/csi-addons/addons.sock"} {
		if !slices.Contains(c.Args, want) {
			t.Errorf("%q is not in %q", want, c.Args)
		}
	}
	for _, v := range spec.Volumes {
		switch {
		case v.HostPath != nil:
			t.Errorf("volume %s is of the host", v.Name)
		case v.ConfigMap != nil && v.ConfigMap.Name != "ceph-csi-config", v.Secret != nil && v.Secret.SecretName != "rook-csi-rbd-provisioner":
			t.Errorf("%+v", v)
		}
	}
	var names []string
	for _, s := range spec.Containers {
		if names = append(names, s.Name); strings.Contains(strings.Join(s.Args, " "), "--enable-capacity") {
			t.Errorf("%s publishes capacity, which no node needs", s.Name)
		}
	}
	if want := []string{"csi-provisioner", "csi-attacher", "csi-resizer", "csi-snapshotter", "csi-addons"}; !slices.Equal(names, want) {
		t.Errorf("sidecars %v, want %v", names, want)
	}
	for _, seconds := range spec.Tolerations {
		if seconds.TolerationSeconds == nil || *seconds.TolerationSeconds != 30 {
			t.Errorf("%+v", seconds)
		}
	}
	if len(spec.Tolerations) != 2 {
		t.Errorf("%d tolerations", len(spec.Tolerations))
	}
}

// Nodes run the static image in the host's network, without a Secret. Unless they
// report boots, they have no token and no role either.
func TestCephNode(t *testing.T) {
	all := render(t, release{values: strings.Replace(cephMode, "clusterID: rook-ceph", "clusterID: rook-ceph, bootReports: false", 1), apis: apis})
	spec := of[appsv1.DaemonSet](all)[0].Spec.Template.Spec
	c := spec.Containers[0]
	if c.Image != ours || len(spec.Containers) != 1 || len(spec.InitContainers) != 0 || !spec.HostNetwork || spec.DNSPolicy != corev1.DNSClusterFirstWithHostNet {
		t.Errorf("%d containers, image %s, the host's network %t, DNS %s", len(spec.Containers)+len(spec.InitContainers), c.Image, spec.HostNetwork, spec.DNSPolicy)
	}
	for _, want := range []string{"--engine=ceph", "--services=node", "--node-address=$(HOST_IPS)", "--max-volumes=100", "--metrics-address=127.0.0.1:29801",
		"--registration-dir=/var/lib/kubelet/plugins_registry"} {
		if !slices.Contains(c.Args, want) {
			t.Errorf("%q is not in %q", want, c.Args)
		}
	}
	paths := map[string]bool{}
	for _, m := range c.VolumeMounts {
		paths[m.MountPath] = m.ReadOnly
	}
	want := map[string]bool{"/etc/ceph-csi-config": true, "/var/lib/cleat/csi.cleat.dev/node-state": false, "/var/lib/kubelet/plugins": false, "/var/lib/kubelet/pods": false,
		"/var/lib/kubelet/plugins_registry": false, "/dev": false, "/sys": false, "/lib/modules": true, "/tmp": false}
	if !maps.Equal(paths, want) {
		t.Errorf("mounts (read-only) %v, want %v", paths, want)
	}
	for _, v := range spec.Volumes {
		if v.Secret != nil || v.Projected != nil {
			t.Errorf("the node has %+v", v)
		}
	}
	subjects := map[string][]string{}
	for _, b := range of[rbacv1.ClusterRoleBinding](all) {
		subjects[b.Subjects[0].Name] = append(subjects[b.Subjects[0].Name], b.RoleRef.Name)
	}
	for _, b := range of[rbacv1.RoleBinding](all) {
		subjects[b.Subjects[0].Name] = append(subjects[b.Subjects[0].Name], b.RoleRef.Name)
	}
	if len(subjects["cleat-csi-node"]) > 0 || len(subjects["cleat-csi-controller"]) < 6 {
		t.Errorf("roles %v", subjects)
	}
}

// Nodes and controller name the same Leases, which belong to the release. Nodes have
// no right but on Leases, of which the policy leaves each its own.
func TestCephBootReports(t *testing.T) {
	for engine, values := range map[string]string{"ceph": cephMode, "cephfs": cephFSMode} {
		all := render(t, release{values: values, apis: apis})
		const arg, own = "--ceph-boot-leases=storage/cleat-boot", `"cleat-boot." + variables.node`
		node, controller := of[appsv1.DaemonSet](all)[0].Spec.Template.Spec.Containers[0], of[appsv1.Deployment](all)[0].Spec.Template.Spec.InitContainers[0]
		if !slices.Contains(node.Args, arg) || !slices.Contains(controller.Args, arg) {
			t.Errorf("%s: %s is not in %q, or not in %q", engine, arg, node.Args, controller.Args)
		}
		policy := of[admissionv1.ValidatingAdmissionPolicy](all)[0].Spec
		if rule := policy.MatchConstraints.ResourceRules[0]; len(rule.Operations) != 3 || !slices.ContainsFunc(policy.Variables, func(v admissionv1.Variable) bool { return v.Expression == own }) {
			t.Errorf("%s: the policy is for %v, with %+v", engine, rule.Operations, policy.Variables)
		}
		for _, r := range of[rbacv1.Role](all) {
			want := rbacv1.PolicyRule{APIGroups: []string{"coordination.k8s.io"}, Resources: []string{"leases"}, Verbs: []string{"get", "create", "update"}}
			if r.Name == "cleat-csi-node" && (len(r.Rules) != 1 || !reflect.DeepEqual(r.Rules[0], want)) {
				t.Errorf("%s: nodes have %+v", engine, r.Rules)
			}
		}
	}
	for _, values := range []string{variety["ceph, no sidecars"], cephMode + "  admissionPolicy: {enabled: false}"} {
		for _, w := range workloads(render(t, release{values: values, apis: apis})) {
			if slices.ContainsFunc(w.containers(), hasBootLeases) {
				t.Errorf("%s reports boots, without fences or without the policy", w.name)
			}
		}
	}
}

// Group snapshots need the snapshotter's feature gate and its access to their
// contents.
func TestCephGroups(t *testing.T) {
	all := render(t, release{values: cephMode + "  volumeGroupSnapshotClasses: [{}]\n", apis: apis})
	containers := of[appsv1.Deployment](all)[0].Spec.Template.Spec.Containers
	n := slices.IndexFunc(containers, func(c corev1.Container) bool { return c.Name == "csi-snapshotter" })
	if !slices.Contains(containers[n].Args, "--feature-gates=CSIVolumeGroupSnapshot=true") {
		t.Errorf("the snapshotter has %q", containers[n].Args)
	}
	if !slices.ContainsFunc(of[rbacv1.ClusterRole](all), func(r *rbacv1.ClusterRole) bool {
		return slices.ContainsFunc(r.Rules, func(p rbacv1.PolicyRule) bool { return slices.Contains(p.Resources, "volumegroupsnapshotcontents") })
	}) {
		t.Error("no role has volumegroupsnapshotcontents")
	}
}

// The controller's service account can only read two Secrets: the one that
// classes made for ceph-csi name, and that of NetworkFenceClasses. That of the
// nodes can read none.
func TestCephSecrets(t *testing.T) {
	all := render(t, release{values: cephMode, apis: apis})
	rules := map[string][]rbacv1.PolicyRule{}
	for _, r := range of[rbacv1.ClusterRole](all) {
		rules["ClusterRole/"+r.Name] = r.Rules
	}
	for _, r := range of[rbacv1.Role](all) {
		rules["Role/"+r.Name] = r.Rules
	}
	got := map[string][]string{} // Secrets by service account
	add := func(role rbacv1.RoleRef, to []rbacv1.Subject) {
		for _, r := range rules[role.Kind+"/"+role.Name] {
			if !slices.Contains(r.Resources, "secrets") && !slices.Contains(r.Resources, "*") {
				continue
			}
			names := r.ResourceNames
			if role.Kind != "Role" || len(names) == 0 || !slices.Equal(r.Verbs, []string{"get"}) {
				names = []string{fmt.Sprintf("%v of any", r.Verbs)}
			}
			for _, s := range to {
				got[s.Name] = append(got[s.Name], names...)
			}
		}
	}
	for _, b := range of[rbacv1.ClusterRoleBinding](all) {
		add(b.RoleRef, b.Subjects)
	}
	for _, b := range of[rbacv1.RoleBinding](all) {
		add(b.RoleRef, b.Subjects)
	}
	want := map[string][]string{"cleat-csi-controller": {"rook-csi-rbd-provisioner", "cleat-csi-addons"}}
	if !maps.EqualFunc(got, want, slices.Equal[[]string, string]) {
		t.Errorf("readable Secrets %v, want %v", got, want)
	}
}

// The chart's classes have ceph-csi's words, and a class overrides them.
func TestCephStorageClasses(t *testing.T) {
	got := map[string]map[string]string{}
	for _, c := range of[storagev1.StorageClass](render(t, release{values: cephMode, apis: apis})) {
		got[c.Name] = c.Parameters
	}
	secret := map[string]string{"csi.storage.k8s.io/node-stage-secret-name": "rook-csi-rbd-node", "csi.storage.k8s.io/node-stage-secret-namespace": "storage", "clusterID": "rook-ceph"}
	want := map[string]map[string]string{"cleat": maps.Clone(secret), "fast": maps.Clone(secret)}
	maps.Copy(want["cleat"], map[string]string{"csi.storage.k8s.io/fstype": "xfs", "pool": "replicapool"})
	maps.Copy(want["fast"], map[string]string{"csi.storage.k8s.io/fstype": "ext4", "pool": "fast", "imageFeatures": "layering"})
	if !maps.EqualFunc(got, want, maps.Equal[map[string]string, map[string]string]) {
		t.Errorf("%v, want %v", got, want)
	}
}

// A release for CephFS differs in its arguments, has no pool and no devices.
func TestCephFS(t *testing.T) {
	all := render(t, release{values: cephFSMode, apis: apis})
	controller := of[appsv1.Deployment](all)[0].Spec.Template.Spec
	c := controller.InitContainers[0]
	if c.Image != oursCeph {
		t.Errorf("the controller has image %s", c.Image)
	}
	for _, want := range []string{"--engine=cephfs", "--ceph-cluster=rook-ceph", "--cephfs-name=myfs", "--ceph-secret=/etc/cleat/ceph-secret"} {
		if !slices.Contains(c.Args, want) {
			t.Errorf("%q is not in %q", want, c.Args)
		}
	}
	for _, s := range controller.Containers {
		if slow := slices.Contains(s.Args, "--retry-interval-max=30s"); slow != (s.Name == "csi-attacher") || strings.Contains(strings.Join(s.Args, " "), "fstype") {
			t.Errorf("%s has %q", s.Name, s.Args)
		}
	}
	node := of[appsv1.DaemonSet](all)[0].Spec.Template.Spec
	for _, m := range node.Containers[0].VolumeMounts {
		if m.Name == "state" && (m.MountPropagation == nil || *m.MountPropagation != corev1.MountPropagationBidirectional) {
			t.Errorf("mounts in the state directory end with the pod: %+v", m)
		}
	}
	for _, v := range node.Volumes {
		if h := v.HostPath; h != nil && (h.Path == "/dev" || h.Path == "/sys") {
			t.Errorf("the node has the host's %s", h.Path)
		}
	}
	if node.Containers[0].Image != ours || !node.HostNetwork || !node.HostPID || !slices.Contains(node.Containers[0].Args, "--engine=cephfs") {
		t.Errorf("the node has image %s, the host's network %t and PIDs %t, %q", node.Containers[0].Image, node.HostNetwork, node.HostPID, node.Containers[0].Args)
	}
	got := map[string]map[string]string{}
	for _, c := range of[storagev1.StorageClass](all) {
		got[c.Name] = c.Parameters
	}
	common := map[string]string{
		"csi.storage.k8s.io/node-stage-secret-name": "rook-csi-cephfs-node", "csi.storage.k8s.io/node-stage-secret-namespace": "storage",
		"clusterID": "rook-ceph", "fsName": "myfs",
	}
	want := map[string]map[string]string{"cleat": common, "fast": maps.Clone(common)}
	maps.Copy(want["fast"], map[string]string{"pool": "fast", "mounter": "kernel", "backingSnapshot": "false"})
	if !maps.EqualFunc(got, want, maps.Equal[map[string]string, map[string]string]) {
		t.Errorf("classes %v, want %v", got, want)
	}
}

// Registry and digest apply to the controller's image.
func TestCephImage(t *testing.T) {
	digest := "sha256:" + strings.Repeat("0123456789abcdef", 4)
	for values, want := range map[string]string{
		"imageRegistry: registry.example.com/mirror": "registry.example.com/mirror/cleat-ceph:0.1.0",
		"nameOverride: cleat":                        oursCeph,
	} {
		d := of[appsv1.Deployment](render(t, release{values: cephMode + values, apis: apis}))[0]
		if got := d.Spec.Template.Spec.InitContainers[0].Image; got != want {
			t.Errorf("%s: got %s, want %s", values, got, want)
		}
	}
	pinned := strings.Replace(cephMode, "clusterID: rook-ceph", "clusterID: rook-ceph, image: {digest: \""+digest+"\"}", 1)
	d := of[appsv1.Deployment](render(t, release{values: pinned, apis: apis}))[0]
	if got := d.Spec.Template.Spec.InitContainers[0].Image; got != "cleat.local/cleat-ceph@"+digest {
		t.Errorf("pinned: got %s", got)
	}
}
