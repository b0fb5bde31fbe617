package takeover

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cleatproject/cleat/test/kubernetes/apiserver"
	"github.com/cleatproject/cleat/test/testkit"
)

var (
	networkFences = schema.GroupVersionResource{Group: "csiaddons.openshift.io", Version: "v1alpha1", Resource: "networkfences"}
	addonsNodes   = schema.GroupVersionResource{Group: "csiaddons.openshift.io", Version: "v1alpha1", Resource: "csiaddonsnodes"}
)

// addonsObjects are the sidecar's pod and the class of the driver, with the names
// of the site.
const addonsObjects = `
apiVersion: v1
kind: Pod
metadata: {name: %[1]s-driver, namespace: cleat-system, ownerReferences: [{apiVersion: apps/v1, kind: DaemonSet, name: %[1]s-driver, uid: %[1]s, controller: true}]}
spec: {nodeName: storage-server, containers: [{name: c, image: i}]}
status: {podIP: 127.0.0.1, phase: Running}
---
apiVersion: csiaddons.openshift.io/v1alpha1
kind: NetworkFenceClass
metadata: {name: %[1]s}
spec:
  provisioner: fence.cleat.dev
  parameters: {csiaddons.openshift.io/networkfence-secret-name: %[1]s-fence, csiaddons.openshift.io/networkfence-secret-namespace: cleat-system}
---
apiVersion: v1
kind: Secret
metadata: {name: %[1]s-fence, namespace: cleat-system}
`

// addons starts the sidecar of CSI-Addons beside the site's fence service, and its
// manager.
func (s *site) addons() {
	s.t.Helper()
	files := testkit.Value(filepath.Glob(apiserver.Program("crds/csi-addons/*.yaml")))(s.t)
	var crds []string
	for _, f := range files {
		crds = append(crds, string(testkit.Value(os.ReadFile(f))(s.t)))
	}
	testkit.Must(s.t, apply(s.t.Context(), []byte(strings.Join(append(crds, fmt.Sprintf(addonsObjects, s.name)), "\n---\n"))))
	s.driver()
	cmd := exec.Command(apiserver.Program("csi-addons-manager"), "--enable-auth=false", "--namespace="+namespace, "--health-probe-bind-address=0")
	cmd.Env = append(os.Environ(), "KUBECONFIG="+testkit.Value(api.Kubeconfig(""))(s.t))
	testkit.Start(s.t, cmd)
	testkit.EventuallyNil(s.t, "the manager is connected to the sidecar", func() error {
		all, err := s.client.Resource(addonsNodes).List(testkit.Context(s.t), metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, n := range all.Items {
			if state, _, _ := unstructured.NestedString(n.Object, "status", "state"); state == "Connected" {
				return nil
			}
		}
		return fmt.Errorf("%d CSIAddonsNodes, none connected", len(all.Items))
	})
}

// driver starts the sidecar, which reads its account where a pod has it.
func (s *site) driver() {
	s.t.Helper()
	pod := testkit.Value(s.client.Resource(pods).Namespace(namespace).Get(s.t.Context(), s.name+"-driver", metav1.GetOptions{}))(s.t)
	config := api.Config("")
	token := filepath.Join(s.t.TempDir(), "token")
	testkit.Must(s.t, os.WriteFile(token, []byte(config.BearerToken), 0o600))
	script := `set -e
mount -t tmpfs none /run
account=/run/secrets/kubernetes.io/serviceaccount
mkdir -p $account
cp "$1" $account/token
cp "$2" $account/ca.crt
shift 2
exec "$@"`
	socket := strings.TrimPrefix(s.service.Endpoint, "unix://")
	cmd := exec.Command("unshare", "--mount", "sh", "-c", script, "sh", token, config.CAFile,
		apiserver.Program("csi-addons-sidecar"), "--csi-addons-address="+socket, "--node-id=storage-server", "--controller-port=9071", "--enable-auth=false",
		"--pod="+s.name+"-driver", "--namespace="+namespace, "--pod-uid="+string(pod.GetUID()), "--leader-election-namespace="+namespace)
	cmd.Env = append(os.Environ(), "KUBERNETES_SERVICE_HOST=127.0.0.1", "KUBERNETES_SERVICE_PORT=6443")
	testkit.Start(s.t, cmd)
}

func (s *site) networkFences() []unstructured.Unstructured {
	s.t.Helper()
	return testkit.Value(s.client.Resource(networkFences).List(testkit.Context(s.t), metav1.ListOptions{}))(s.t).Items
}

// A node's storage is fenced by a CSI driver, through the manager and sidecar of
// CSI-Addons, while the node writes on.
func TestNetworkFence(t *testing.T) {
	s := newSite(t)
	s.cover(fmt.Sprintf(`
maxConcurrent: 5
drivers:
- {driver: net.example.com, backend: addons}
- {driver: disk.example.com, local: true}
backends:
- {name: addons, networkFenceClass: %s, nodeAddresses: true}
`, s.name))
	h, w := s.watch(), s.writer(1)
	s.controller()
	testkit.Value(s.run("start"))(t)
	s.awaitReason("SourceUnavailable") // CSI-Addons is not installed; if the test is repeated only the class is missing
	if reason := s.reason(); !strings.Contains(reason, "install the CustomResourceDefinitions of CSI-Addons") && !strings.Contains(reason, "NetworkFenceClass "+s.name) {
		t.Errorf("the reason is %q", reason)
	}
	s.addons()
	s.awaitReason("TakenOver")
	status := s.remediation().Status
	fences := s.networkFences()
	if len(fences) != 1 || !strings.Contains(strings.Join(status.Certificate.Proofs[0].Evidence, " "), "word of driver fence.cleat.dev: NetworkFence "+fences[0].GetName()) {
		t.Fatalf("NetworkFences %v, proofs %+v", fences, status.Certificate.Proofs)
	}

	// Someone else's fence of the address is not lifted: the release waits for it.
	other := fences[0].DeepCopy()
	other.Object["metadata"] = map[string]any{"name": "of-an-administrator"}
	delete(other.Object, "status")
	testkit.Value(s.client.Resource(networkFences).Create(t.Context(), other, metav1.CreateOptions{}))(t)
	s.reboot()
	s.delete()
	s.awaitReason("OtherFence")
	if reason := s.reason(); !strings.Contains(reason, "of-an-administrator") {
		t.Errorf("the reason is %q", reason)
	}
	// Without its object the fence is still in force: the release unfences it.
	ours := fences[0].GetName()
	testkit.Must(t, s.client.Resource(networkFences).Delete(t.Context(), ours, metav1.DeleteOptions{}))
	if _, err := s.client.Resource(networkFences).Patch(t.Context(), ours, types.MergePatchType, []byte(`{"metadata": {"finalizers": null}}`), metav1.PatchOptions{}); !apierrors.IsNotFound(err) { // the manager can be first
		testkit.Must(t, err)
	}
	testkit.Must(t, s.client.Resource(networkFences).Delete(t.Context(), "of-an-administrator", metav1.DeleteOptions{}))
	testkit.Eventually(t, "the remediation is gone", func() bool { return s.remediation() == nil })
	s.check(h, w)
	s.checkReturned()
	testkit.Eventually(t, "no NetworkFence is left", func() bool { return len(s.networkFences()) == 0 })
	if left := testkit.Value(s.service.List(testkit.Context(t), nil))(t); len(left) != 0 {
		t.Errorf("the driver still fences %v", left)
	}
}
