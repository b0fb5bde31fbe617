package chart

import (
	"maps"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/google/go-cmp/cmp"
)

func commonArgs(services, driver string) []string {
	return []string{"csi", "--engine=spdk", "--services=" + services, "--driver-name=" + driver, "--node-id=$(NODE_NAME)", "--log-format=json", "--log-level=info"}
}

// The controller of SPDK volumes can run on any node: its state is in a
// ConfigMap, and it has nothing of the host.
func TestSPDKController(t *testing.T) {
	for values, want := range map[string]struct {
		args               []string
		mounts, sidecars   []string
		configMap, secrets string
	}{
		spdkMode: {
			append(commonArgs("controller", "csi.cleat.dev"), "--spdk-config=/etc/spdkcsi-config/config.json", "--spdk-secret=/etc/cleat/spdk-secret/secret.json",
				"--spdk-state=configmap:storage/cleat-spdk-state", "--cluster-id=east", "--max-volumes=100", "--metrics-address=:29801", "--addons-endpoint=unix:///run/csi-addons/addons.sock"),
			[]string{"/etc/spdkcsi-config", "/etc/cleat/spdk-secret", tokenDir, "/csi", "/var/lib/cleat/csi.cleat.dev/controller-state", "/tmp", "/run/csi-addons"},
			[]string{"csi-provisioner", "csi-attacher", "csi-resizer", "csi-snapshotter", "csi-addons"},
			"spdkcsi-cm", "spdkcsi-secret",
		},
		variety["spdk, nothing published"]: {
			append(commonArgs("controller", "csi.cleat.dev"), "--spdk-config=/etc/spdkcsi-config/config.json", "--spdk-state=configmap:storage/cleat-spdk-state", "--metrics-address=:29801"),
			[]string{"/etc/spdkcsi-config", tokenDir, "/csi", "/var/lib/cleat/csi.cleat.dev/controller-state", "/tmp"},
			[]string{"csi-provisioner", "csi-resizer"}, // nothing is published
			"spdkcsi-cm", "",
		},
		hostCluster: {
			append(commonArgs("controller", "csi.spdk.io"), "--spdk-config=/etc/spdkcsi-config/config.json", "--spdk-secret=/etc/cleat/spdk-secret/secret.json",
				"--spdk-state=configmap:storage/cleat-spdk-state", "--cluster-id=east", "--metrics-address=:29801", "--addons-endpoint=unix:///run/csi-addons/addons.sock"),
			[]string{"/etc/spdkcsi-config", "/etc/cleat/spdk-secret", tokenDir, "/csi", "/var/lib/cleat/csi.spdk.io/controller-state", "/tmp", "/run/csi-addons"},
			[]string{"csi-provisioner", "csi-attacher", "csi-resizer", "csi-snapshotter", "csi-addons"},
			"targets", "passwords",
		},
	} {
		spec := of[appsv1.Deployment](render(t, release{values: values, apis: apis}))[0].Spec.Template.Spec
		c := spec.InitContainers[0]
		if c.Image != ours || spec.HostNetwork || spec.HostPID || len(spec.NodeSelector) != 1 || len(spec.Tolerations) != 2 {
			t.Errorf("image %s, the host's network %t and PIDs %t, node selector %v, tolerations %v", c.Image, spec.HostNetwork, spec.HostPID, spec.NodeSelector, spec.Tolerations)
		}
		var mounts, sidecars []string
		for _, m := range c.VolumeMounts {
			mounts = append(mounts, m.MountPath)
		}
		for _, s := range spec.Containers {
			if sidecars = append(sidecars, s.Name); strings.Contains(strings.Join(s.Args, " "), "--enable-capacity") {
				t.Errorf("%s publishes capacity, which no node needs", s.Name)
			}
		}
		for what, diff := range map[string]string{"arguments": cmp.Diff(want.args, c.Args), "mounts": cmp.Diff(want.mounts, mounts), "sidecars": cmp.Diff(want.sidecars, sidecars)} {
			if diff != "" {
				t.Errorf("%s (-want +got):\n%s", what, diff)
			}
		}
		var configMap, secrets string
		for _, v := range spec.Volumes {
			switch {
			case v.HostPath != nil:
				t.Errorf("volume %s is of the host", v.Name)
			case v.ConfigMap != nil:
				configMap += v.ConfigMap.Name
			case v.Secret != nil:
				secrets += v.Secret.SecretName
			}
		}
		if configMap != want.configMap || secrets != want.secrets {
			t.Errorf("ConfigMap %q, Secret %q, want %q, %q", configMap, secrets, want.configMap, want.secrets)
		}
	}
}

// Nodes attach as with engine none, and have neither a Secret nor a token. Their
// addresses are in the node id, for fences.
func TestSPDKNode(t *testing.T) {
	all := render(t, release{values: spdkMode, apis: apis})
	spec := of[appsv1.DaemonSet](all)[0].Spec.Template.Spec
	c := spec.Containers[0]
	if c.Image != ours || len(spec.Containers)+len(spec.InitContainers) != 1 || !spec.HostNetwork || !spec.HostPID || spec.DNSPolicy != corev1.DNSClusterFirstWithHostNet {
		t.Errorf("%d containers, image %s, the host's network %t and PIDs %t", len(spec.Containers)+len(spec.InitContainers), c.Image, spec.HostNetwork, spec.HostPID)
	}
	want := append(commonArgs("node", "csi.cleat.dev"), "--node-address=$(HOST_IPS)", "--cluster-id=east",
		"--topology=topology.kubernetes.io/zone=$(TOPOLOGY_0)", "--topology=topology.kubernetes.io/region=$(TOPOLOGY_1)",
		"--nvme-key-dir=/etc/cleat/nvme-keys", "--registration-dir=/var/lib/kubelet/plugins_registry", "--max-volumes=100", "--metrics-address=127.0.0.1:29801")
	if diff := cmp.Diff(want, c.Args); diff != "" {
		t.Errorf("arguments (-want +got):\n%s", diff)
	}
	labels := map[string]string{}
	for _, e := range c.Env {
		if e.ValueFrom != nil {
			labels[e.Name] = e.ValueFrom.FieldRef.FieldPath
		}
	}
	if labels["TOPOLOGY_0"] != "metadata.labels['topology.kubernetes.io/zone']" || labels["TOPOLOGY_1"] != "metadata.labels['topology.kubernetes.io/region']" {
		t.Errorf("values from the pod: %q", labels)
	}
	keys := slices.IndexFunc(spec.Volumes, func(v corev1.Volume) bool { return v.HostPath != nil && v.HostPath.Path == "/etc/cleat/nvme-keys" })
	if keys < 0 || !slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool {
		return m.Name == spec.Volumes[keys].Name && m.MountPath == "/etc/cleat/nvme-keys" && m.ReadOnly
	}) {
		t.Errorf("the keys of the node are not mounted: %+v", c.VolumeMounts)
	}
	for _, v := range spec.Volumes {
		if v.Secret != nil || v.ConfigMap != nil || v.Projected != nil {
			t.Errorf("the node has %+v", v)
		}
	}
	for account, rules := range rights(all) {
		if account != "storage/cleat-csi-controller" {
			t.Errorf("%s has %v", account, rules)
		}
	}
}

// rights returns what service accounts are allowed to do, for resources that are
// Secrets, ConfigMaps or attachments.
func rights(all []object) map[string][]string {
	rules := map[string][]rbacv1.PolicyRule{}
	for _, r := range of[rbacv1.ClusterRole](all) {
		rules["ClusterRole/"+r.Name] = r.Rules
	}
	for _, r := range of[rbacv1.Role](all) {
		rules["Role/"+r.Name] = r.Rules
	}
	got := map[string][]string{}
	add := func(role rbacv1.RoleRef, to []rbacv1.Subject) {
		for _, s := range to {
			of := s.Namespace + "/" + s.Name
			got[of] = append(got[of], "")
			for _, r := range rules[role.Kind+"/"+role.Name] {
				resource := strings.Join(r.Resources, "+")
				if slices.Contains([]string{"secrets", "configmaps", "volumeattachments/status", "svvolumeattachments", "svvolumeattachments/status"}, resource) {
					got[of] = append(got[of], strings.TrimSpace(strings.Join(r.Verbs, "+")+" "+resource+" "+strings.Join(r.ResourceNames, "+")))
				}
			}
		}
	}
	for _, b := range of[rbacv1.ClusterRoleBinding](all) {
		add(b.RoleRef, b.Subjects)
	}
	for _, b := range of[rbacv1.RoleBinding](all) {
		add(b.RoleRef, b.Subjects)
	}
	for of := range got {
		slices.Sort(got[of])
		got[of] = slices.Compact(got[of])[1:]
	}
	return got
}

// The controller writes its own ConfigMap only. With two clusters, the rights of
// sidecars are in the DPU cluster, and those for the state in the host cluster.
func TestSPDKRights(t *testing.T) {
	state := []string{"create configmaps", "get secrets cleat-csi-addons", "get+update+watch configmaps cleat-spdk-state"}
	for values, want := range map[string]map[string][]string{
		spdkMode: {"storage/cleat-csi-controller": {"create configmaps", "get secrets cleat-csi-addons", "get secrets spdkcsi-secret", "get+update+watch configmaps cleat-spdk-state",
			"patch volumeattachments/status"}},
		hostCluster: {"storage/cleat-csi-controller": state},
		dpuCluster:  {"dpf-operator-system/spdk-csi-controller-sa": {"get secrets spdkcsi-secret", "get+list+watch+patch svvolumeattachments", "patch svvolumeattachments/status"}},
	} {
		if diff := cmp.Diff(want, rights(render(t, release{values: values, apis: apis}))); diff != "" {
			t.Errorf("(-want +got):\n%s\nwith%s", diff, values)
		}
	}
}

// Of the two releases of DPF one has the controller, the other what the DPU
// cluster's API server must know. The host cluster needs no API of snapshots.
func TestSPDKClusters(t *testing.T) {
	for values, want := range map[string]string{
		hostCluster: "ClusterRole ClusterRoleBinding Deployment PodDisruptionBudget Role RoleBinding Secret ServiceAccount",
		dpuCluster:  "CSIDriver ClusterRole ClusterRoleBinding DaemonSet Role RoleBinding ServiceAccount StorageClass VolumeSnapshotClass",
	} {
		kinds := map[string]bool{}
		r := release{values: values, apis: apis}
		if values == hostCluster {
			r.apis = apis[2:]
		}
		for _, o := range render(t, r) {
			if kinds[o.Kind] = true; o.Kind == "DaemonSet" && o.Name != "cleat-dpu" || o.Kind == "ServiceAccount" && values == dpuCluster && o.Name != "cleat-dpu" {
				t.Errorf("%v is not of this cluster", o)
			}
		}
		if got := strings.Join(slices.Sorted(maps.Keys(kinds)), " "); got != want {
			t.Errorf("kinds %s, want %s", got, want)
		}
	}
	dpu := of[appsv1.DaemonSet](render(t, release{values: dpuCluster, apis: apis}))[0]
	if args := dpu.Spec.Template.Spec.Containers[0].Args; !slices.Contains(args, "--cluster-id=east") {
		t.Errorf("the DPU's host NQN is not that of the controller: %q", args)
	}
	for _, c := range of[appsv1.Deployment](render(t, release{values: hostCluster, apis: apis}))[0].Spec.Template.Spec.Containers {
		got := map[string]string{}
		for _, e := range c.Env {
			if ref := e.ValueFrom; ref == nil {
				got[e.Name] = e.Value
			} else if ref.SecretKeyRef != nil {
				got[e.Name] = ref.SecretKeyRef.Name + "/" + ref.SecretKeyRef.Key
			}
		}
		want := map[string]string{"NAMESPACE": "dpf-operator-system", "KUBERNETES_SERVICE_HOST": "dpu-cluster/KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT": "dpu-cluster/KUBERNETES_SERVICE_PORT"}
		if c.Name == "csi-addons" {
			want = map[string]string{} // fences are requested in the host cluster
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.Name, diff)
		}
	}
}

// Nodes of a DPU cluster have no topology keys of the driver: with those of a
// target, the provisioner would provision no claim of a class with Immediate.
func TestSPDKImmediateClaims(t *testing.T) {
	for values, want := range map[string]bool{hostCluster: true, spdkMode: false} {
		for _, c := range of[appsv1.Deployment](render(t, release{values: values, apis: apis}))[0].Spec.Template.Spec.Containers {
			if got := slices.Contains(c.Args, "--immediate-topology=false"); got != (want && c.Name == "csi-provisioner") {
				t.Errorf("%s has the arguments %q", c.Name, c.Args)
			}
		}
	}
}

func TestSPDKClasses(t *testing.T) {
	all := render(t, release{values: spdkMode, apis: apis})
	got := map[string]map[string]string{}
	for _, c := range of[storagev1.StorageClass](all) {
		got[c.Name] = c.Parameters
	}
	for _, c := range of[storagev1.VolumeAttributesClass](all) {
		got[c.Name] = c.Parameters
	}
	want := map[string]map[string]string{
		"cleat": {"csi.storage.k8s.io/fstype": "xfs"},
		"fast": {"csi.storage.k8s.io/fstype": "ext4", "target": "a", "lvolStore": "lvs0", "thinProvision": "false", "clearMethod": "write_zeroes", "allowOldData": "true",
			"dhchapKey": "gold", "dhchapCtrlrKey": "silver",
			"qos_rw_iops": "5000", "qos_r_mbytes": "200"},
		"gold": {"qos_rw_iops": "50000", "qos_rw_mbytes": "0", "qos_w_mbytes": "100"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
