package chart

import (
	"maps"
	"slices"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
)

// The driver of static NVMe volumes is one container on each node: it has the
// host's network for its connections, the host's processes to find users of a
// disk, and keys.
func TestNone(t *testing.T) {
	all := render(t, release{values: noneMode, apis: apis})
	var kinds []string
	for _, o := range all {
		kinds = append(kinds, o.Kind)
	}
	slices.Sort(kinds)
	if want := []string{"CSIDriver", "DaemonSet", "ServiceAccount"}; !slices.Equal(kinds, want) {
		t.Errorf("objects %v, want %v: nothing else is needed", kinds, want)
	}
	spec := of[appsv1.DaemonSet](all)[0].Spec.Template.Spec
	c := spec.Containers[0]
	if c.Image != ours || len(spec.Containers)+len(spec.InitContainers) != 1 || !spec.HostNetwork || !spec.HostPID || spec.DNSPolicy != corev1.DNSClusterFirstWithHostNet {
		t.Errorf("%d containers, image %s, the host's network %t and PIDs %t", len(spec.Containers)+len(spec.InitContainers), c.Image, spec.HostNetwork, spec.HostPID)
	}
	want := []string{"csi", "--engine=none", "--services=node", "--driver-name=csi.cleat.dev", "--node-id=$(NODE_NAME)", "--log-format=json", "--log-level=info",
		"--cluster-id=east", "--nvme-key-dir=/etc/cleat/nvme-keys", "--registration-dir=/var/lib/kubelet/plugins_registry", "--max-volumes=100", "--metrics-address=127.0.0.1:29801"}
	if !slices.Equal(c.Args, want) {
		t.Errorf("arguments %q, want %q", c.Args, want)
	}
	paths := map[string]bool{}
	for _, m := range c.VolumeMounts {
		paths[m.MountPath] = m.ReadOnly
	}
	mounts := map[string]bool{"/etc/cleat/nvme-keys": true, "/var/lib/cleat/csi.cleat.dev/node-state": false, "/var/lib/kubelet/plugins": false, "/var/lib/kubelet/pods": false,
		"/var/lib/kubelet/plugins_registry": false, "/dev": false, "/sys": false, "/lib/modules": true, "/tmp": false}
	if !maps.Equal(paths, mounts) {
		t.Errorf("mounts (read-only) %v, want %v", paths, mounts)
	}
	for _, v := range spec.Volumes {
		if v.ConfigMap != nil || v.Projected != nil || v.Secret != nil && v.Secret.SecretName != "nvme-keys" {
			t.Errorf("volume %+v", v)
		}
	}
}
