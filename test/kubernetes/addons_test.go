package kubernetes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/cleatproject/cleat/deploy/image/oci"
	"github.com/cleatproject/cleat/test/kubernetes/cluster"
	"github.com/cleatproject/cleat/test/kubernetes/programs"
	"github.com/cleatproject/cleat/test/testkit"
)

const (
	managerImage     = "cleat.local/csi-addons-manager:local"
	managerManifest  = "csi-addons-manager.yaml"
	managerNamespace = "csi-addons-system"
	managerModule    = "github.com/csi-addons/kubernetes-csi-addons"
)

// Releases of the chart with the CSI-Addons sidecar.
var (
	// directRelease has a controller that forwards fences to the node's
	// process.
	directRelease = release{name: "direct", values: `
csi:
  driverName: direct.cleat.dev
  mode: controller
  nodeSelector: {kubernetes.io/hostname: node-1}
  controller: {nodeSelector: {kubernetes.io/hostname: node-1}}
  pool: {image: 512MiB, overprovisionRatio: 100}
  storageClasses: [{name: direct-ext4, fsType: ext4}]
  addons: {enabled: true}
networkPolicy: {enabled: true}
`}
	// eachRelease sends fences to the storage server by mutual TLS.
	eachRelease = release{name: "each", values: `
csi:
  driverName: each.cleat.dev
  pool: {image: 512MiB, overprovisionRatio: 100}
  storageClasses: []
  addons: {enabled: true, fencePeers: ["storage=10.99.0.1:9071"], tlsSecret: fencing}
`}
	// storageRelease fences on a storage server, which runs on this node.
	storageRelease = release{name: "storage", values: `
csi: {enabled: false}
fence:
  enabled: true
  nodeSelector: {kubernetes.io/hostname: node-1}
  ports: [10809]
  listen: ":9071"
  tlsSecret: fencing
`}
)

// addons is a test with CSI-Addons.
type addons struct{ *space }

// addonsManager returns the image of the CSI-Addons manager. The manifests of
// its module are written below dir with only the image replaced.
func addonsManager(ctx context.Context, dir string, set programs.Set) (oci.Image, error) {
	download := exec.CommandContext(ctx, "go", "mod", "download", "-json", managerModule)
	download.Dir = filepath.Join("programs", "csiaddons")
	out, err := download.Output()
	if err != nil {
		return oci.Image{}, fmt.Errorf("find the module of CSI-Addons: %w: %s", err, out)
	}
	var module struct{ Dir string }
	if err := json.Unmarshal(out, &module); err != nil {
		return oci.Image{}, fmt.Errorf("find the module of CSI-Addons: %w", err)
	}
	var all []string
	for _, name := range []string{"setup-controller.yaml", "rbac.yaml", "csi-addons-config.yaml"} {
		text, err := os.ReadFile(filepath.Join(module.Dir, "deploy", "controller", name))
		if err != nil {
			return oci.Image{}, err
		}
		all = append(all, string(text))
	}
	const published = "quay.io/csiaddons/k8s-controller:latest"
	text := strings.Join(all, "\n---\n")
	if strings.Count(text, published) != 1 {
		return oci.Image{}, fmt.Errorf("the manifests of CSI-Addons must contain %s once", published)
	}
	text = strings.Replace(text, published, managerImage, 1)
	if err := os.WriteFile(filepath.Join(dir, managerManifest), []byte(text), 0o644); err != nil {
		return oci.Image{}, err
	}
	i := cluster.ProgramImage(managerImage, set.Path("csi-addons-manager"))
	i.User = "65532:65532"
	return i, nil
}

func (r release) add(ctx context.Context) error    { return r.install(ctx, testCluster) }
func (r release) remove(ctx context.Context) error { return r.uninstall(ctx, testCluster) }

// together runs all functions concurrently; it can be used in a cleanup.
func together(t *testing.T, do ...func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 2*waitTimeout)
	defer cancel()
	failed := make([]error, len(do))
	var wait sync.WaitGroup
	for i, f := range do {
		wait.Go(func() { failed[i] = f(ctx) })
	}
	wait.Wait()
	if err := errors.Join(failed...); err != nil {
		t.Error(err)
	}
}

// manager runs the CSI-Addons manager until the end of the test.
func (a *addons) manager() {
	a.Helper()
	file := filepath.Join(testCluster.Dir, managerManifest)
	a.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), waitTimeout)
		defer cancel()
		if a.Failed() {
			logs, _ := testCluster.Kubectl(ctx, "", "-n", managerNamespace, "logs", "deployment/csi-addons-controller-manager", "--tail=60")
			a.Log(logs)
		}
		if _, err := testCluster.Kubectl(ctx, "", "delete", "--wait", "-f", file); err != nil {
			a.Error(err)
		}
	})
	testkit.Value(testCluster.Kubectl(a.Context(), "", "apply", "--server-side", "-f", file))(a)
}

// certificates creates a Secret with certificates of an authority for fencing,
// with names of the storage server.
func (a *addons) certificates(name string, hosts ...string) {
	a.Helper()
	authority := testkit.NewAuthority(a, "fencing")
	cert, key := authority.Issue(a, nil, hosts...)
	secrets := testCluster.Client.CoreV1().Secrets(system)
	a.Cleanup(func() {
		if err := secrets.Delete(context.Background(), name, metav1.DeleteOptions{}); err != nil {
			a.Error(err)
		}
	})
	testkit.Value(secrets.Create(a.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Type: corev1.SecretTypeOpaque,
		Data: map[string][]byte{"tls.crt": cert, "tls.key": key, "ca.crt": authority.PEM},
	}, metav1.CreateOptions{}))(a)
}

func addonsResource(name string) schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: "csiaddons.openshift.io", Version: "v1alpha1", Resource: name}
}

// fenceClass creates a NetworkFenceClass of a driver, with a Secret of the
// releases' namespace if a name is given.
func (a *addons) fenceClass(name, driver, secret string) {
	a.Helper()
	text := fmt.Sprintf("apiVersion: csiaddons.openshift.io/v1alpha1\nkind: NetworkFenceClass\nmetadata: {name: %s}\nspec:\n  provisioner: %s\n", name, driver)
	if secret != "" {
		text += fmt.Sprintf("  parameters: {csiaddons.openshift.io/networkfence-secret-name: %s, csiaddons.openshift.io/networkfence-secret-namespace: %s}\n", secret, system)
	}
	a.Cleanup(func() { a.remove("networkfenceclass", name) })
	testkit.Must(a, testCluster.Apply(a.Context(), text))
}

// remove deletes a cluster-scoped object and waits until it is gone.
func (a *addons) remove(kind, name string) {
	a.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), waitTimeout)
	defer cancel()
	if _, err := testCluster.Kubectl(ctx, "", "delete", kind, name, "--wait", "--ignore-not-found"); err != nil {
		a.Error(err)
	}
}

// csiAddonsNode has the fields of a CSIAddonsNode.
type csiAddonsNode struct {
	Metadata struct{ Annotations map[string]string }
	Spec     struct {
		Driver struct{ Name, Endpoint, NodeID string }
	}
	Status struct {
		State, Message           string
		Capabilities             []string
		NetworkFenceClientStatus []fenceClients
	}
}

type fenceClients struct {
	NetworkFenceClassName string
	ClientDetails         []struct {
		ID    string
		Cidrs []string
	}
}

// CSIAddonsNodes of the pods with the sidecar.
const (
	directNode       = "node-1-cleat-system-daemonset-direct-cleat-csi-node"
	directController = "node-1-cleat-system-deployment-direct-cleat-csi-controller"
	eachNode         = "node-1-cleat-system-daemonset-each-cleat-csi-node"
	storageNode      = "node-1-cleat-system-daemonset-storage-cleat-fence"
)

// into decodes an object that has no Go types here.
func into(o *unstructured.Unstructured, object any) error {
	text, err := o.MarshalJSON()
	if err != nil {
		return err
	}
	return json.Unmarshal(text, object)
}

// connected waits until the manager is connected to a sidecar and check
// succeeds.
func (a *addons) connected(name string, check func(csiAddonsNode) error) csiAddonsNode {
	a.Helper()
	var n csiAddonsNode
	a.until("CSIAddonsNode "+name, func(ctx context.Context) error {
		o, err := testCluster.Dynamic.Resource(addonsResource("csiaddonsnodes")).Namespace(system).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		n = csiAddonsNode{}
		if err := into(o, &n); err != nil {
			return err
		}
		if n.Status.State != "Connected" {
			return fmt.Errorf("state %q: %s", n.Status.State, n.Status.Message)
		}
		return check(n)
	})
	return n
}

// Each deployment announces the documented capabilities, and its node's
// addresses for the classes of its driver.
func testAddonsNodes(t *testing.T) {
	s := &addons{&space{T: t, name: system}}
	const (
		controller, node = "service.CONTROLLER_SERVICE", "service.NODE_SERVICE"
		fences, clients  = "network_fence.NETWORK_FENCE", "network_fence.GET_CLIENTS_TO_FENCE"
	)
	for name, want := range map[string]struct {
		driver, class string
		capabilities  []string
	}{
		directNode:       {"direct.cleat.dev", "direct", []string{clients, node}},
		directController: {"direct.cleat.dev", "", []string{fences, controller}},
		eachNode:         {"each.cleat.dev", "each", []string{clients, fences, controller, node}},
		storageNode:      {"fence.cleat.dev", "", []string{fences, controller}}, // not a client of itself
	} {
		n := s.connected(name, func(n csiAddonsNode) error {
			if want.class != "" && len(n.Status.NetworkFenceClientStatus) != 1 {
				return fmt.Errorf("the clients of classes are %+v", n.Status.NetworkFenceClientStatus)
			}
			return nil
		})
		if slices.Sort(n.Status.Capabilities); !slices.Equal(n.Status.Capabilities, want.capabilities) {
			t.Errorf("%s announces %q, want %q", name, n.Status.Capabilities, want.capabilities)
		}
		if d := n.Spec.Driver; d.Name != want.driver || d.NodeID != "node-1" || !strings.HasPrefix(d.Endpoint, "pod://") || !strings.HasSuffix(d.Endpoint, ".cleat-system:9070") {
			t.Errorf("%s: got driver %+v", name, d)
		}
		if want.class == "" {
			continue
		}
		own := fenceClients{NetworkFenceClassName: want.class}
		own.ClientDetails = append(own.ClientDetails, struct {
			ID    string
			Cidrs []string
		}{"node-1", []string{"10.99.0.1/32"}})
		if diff := cmp.Diff([]fenceClients{own}, n.Status.NetworkFenceClientStatus); diff != "" {
			t.Errorf("%s has other clients (-want +got):\n%s", name, diff)
		}
	}
}

// networkFence creates or changes a NetworkFence and waits for a result with a
// text in its message.
func (a *addons) networkFence(name, class, state, result, message string, blocks ...string) {
	a.Helper()
	cidrs := testkit.Value(json.Marshal(blocks))(a)
	testkit.Must(a, testCluster.Apply(a.Context(), fmt.Sprintf("apiVersion: csiaddons.openshift.io/v1alpha1\nkind: NetworkFence\nmetadata: {name: %s}\nspec: {networkFenceClassName: %s, fenceState: %s, cidrs: %s}\n",
		name, class, state, cidrs)))
	a.until(fmt.Sprintf("NetworkFence %s %s", name, state), func(ctx context.Context) error {
		o, err := testCluster.Dynamic.Resource(addonsResource("networkfences")).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		var got struct {
			Status struct{ Result, Message string }
		}
		if err := into(o, &got); err != nil {
			return err
		}
		if got.Status.Result != result || !strings.Contains(got.Status.Message, message) {
			return fmt.Errorf("got result %q: %s", got.Status.Result, got.Status.Message)
		}
		return nil
	})
}

const (
	isFenced   = "fencing operation successful"
	isUnfenced = "unfencing operation successful"
)

// fenced creates a fence; unfenced removes the fence and its object.
func (a *addons) fenced(name, class string, blocks ...string) {
	a.Helper()
	a.networkFence(name, class, "Fenced", "Succeeded", isFenced, blocks...)
}

func (a *addons) unfenced(name, class string, blocks ...string) {
	a.Helper()
	a.networkFence(name, class, "Unfenced", "Succeeded", isUnfenced, blocks...)
	a.remove("networkfence", name)
}

// A fenced node gets no new volumes and keeps its own; after unfencing it gets
// volumes again.
func testFencedNode(t *testing.T) {
	t.Parallel()
	s := &addons{newSpace(t)}
	s.claim("old", claim{class: "direct-ext4", size: "16Mi"})
	s.run("running", pod{mounts: map[string]string{"/data": "old"}})
	s.Cleanup(func() { s.remove("networkfence", "node") })
	s.fenced("node", "direct", "10.99.0.1/32")
	s.claim("new", claim{class: "direct-ext4", size: "16Mi"})
	s.start("waiting", pod{mounts: map[string]string{"/data": "new"}})
	s.event("waiting", "node node-1 is fenced: its address 10.99.0.1 is in block 10.99.0.1/32")
	s.event("waiting", "it gets no volume until the block is unfenced with UnfenceClusterNetwork (cleat fence rm 10.99.0.1/32)")
	if got := s.exec("running", "echo still >/data/file; sync; cat /data/file"); got != "still" {
		t.Errorf("the running pod reads %q", got)
	}
	p, err := testCluster.Client.CoreV1().Pods(s.name).Get(t.Context(), "waiting", metav1.GetOptions{})
	if err != nil || p.Status.Phase != corev1.PodPending {
		t.Errorf("the waiting pod is %v (%v)", p.Status.Phase, err)
	}
	s.unfenced("node", "direct", "10.99.0.1/32")
	s.running("waiting")
}

// gone waits until a CSI-Addons object in the releases' namespace is deleted.
func (a *addons) gone(name string) {
	a.Helper()
	a.until("deletion of CSIAddonsNode "+name, func(ctx context.Context) error {
		_, err := testCluster.Dynamic.Resource(addonsResource("csiaddonsnodes")).Namespace(system).Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("not deleted (%v)", err)
	})
}
