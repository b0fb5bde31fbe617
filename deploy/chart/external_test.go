package chart

import (
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/google/go-cmp/cmp"
)

// A driver of another program has its image, its arguments and mounts in all processes, and its
// state in a ConfigMap; what is only the controller's is not on nodes.
func TestExternal(t *testing.T) {
	all := render(t, release{values: externalMode, apis: apis})
	controller, node := of[appsv1.Deployment](all)[0].Spec.Template.Spec, of[appsv1.DaemonSet](all)[0].Spec.Template.Spec
	common := []string{"--driver-name=csi.acme.example", "--node-id=$(NODE_NAME)", "--log-format=json", "--log-level=info"}
	for _, c := range []struct {
		name         string
		container    corev1.Container
		args, mounts []string
	}{
		{
			"controller", controller.InitContainers[0],
			slices.Concat([]string{"csi", "--services=controller"}, common, []string{"--acme-state=configmap:storage/cleat-external-state", "--cluster-id=east",
				"--metrics-address=:29801", "--addons-endpoint=unix:///run/csi-addons/addons.sock", "--share=/mnt/share", "--password-file=/etc/acme/password"}),
			[]string{tokenDir, "/csi", "/var/lib/cleat/csi.acme.example/controller-state", "/tmp", "/run/csi-addons", "/etc/acme"},
		},
		{
			"node", node.Containers[0],
			slices.Concat([]string{"csi", "--services=node"}, common, []string{"--node-address=$(HOST_IPS)", "--cluster-id=east", "--nvme-key-dir=/etc/cleat/nvme-keys",
				"--registration-dir=/var/lib/kubelet/plugins_registry", "--max-volumes=100", "--metrics-address=127.0.0.1:29801", "--share=/mnt/share"}),
			[]string{"/etc/cleat/nvme-keys", "/var/lib/cleat/csi.acme.example/node-state", "/var/lib/kubelet/plugins", "/var/lib/kubelet/pods", "/var/lib/kubelet/plugins_registry",
				"/dev", "/sys", "/lib/modules", "/tmp", "/mnt/share"},
		},
	} {
		var mounts []string
		for _, m := range c.container.VolumeMounts {
			mounts = append(mounts, m.MountPath)
		}
		for what, diff := range map[string]string{"arguments": cmp.Diff(c.args, c.container.Args), "mounts": cmp.Diff(c.mounts, mounts), "image": cmp.Diff("registry.example.com/acme-csi:0.1.0", c.container.Image)} {
			if diff != "" {
				t.Errorf("%s of the %s (-want +got):\n%s", what, c.name, diff)
			}
		}
	}
	if got := rights(all)["storage/cleat-csi-controller"]; !slices.ContainsFunc(got, func(r string) bool { return strings.Contains(r, "cleat-external-state") }) {
		t.Errorf("the controller has %q, and so not its state", got)
	}
	parameters := map[string]map[string]string{}
	for _, c := range of[storagev1.StorageClass](all) {
		parameters[c.Name] = c.Parameters
	}
	want := map[string]map[string]string{"cleat": nil, "fast": {"csi.storage.k8s.io/fstype": "ext4", "tier": "fast", "replicas": "3"}}
	if diff := cmp.Diff(want, parameters); diff != "" {
		t.Errorf("classes (-want +got):\n%s", diff)
	}
	all = render(t, release{values: variety["external, not attached"], apis: apis})
	if d := of[storagev1.CSIDriver](all)[0]; *d.Spec.AttachRequired || slices.ContainsFunc(of[appsv1.Deployment](all)[0].Spec.Template.Spec.Containers, func(c corev1.Container) bool { return c.Name == "csi-attacher" }) {
		t.Error("without csi.external.attachRequired volumes are attached")
	}
}
