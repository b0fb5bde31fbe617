package kubernetes

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/retry"

	"github.com/cleatproject/cleat/test/testkit"
)

const (
	selectedNode = "volume.kubernetes.io/selected-node"
	provisioner  = "volume.kubernetes.io/storage-provisioner"
	localDriver  = "csi.cleat.dev"
	otherNode    = "node-of-others"
)

// rights has the objects on which tokens of the driver's pods are tried. All
// requests are dry runs.
type rights struct {
	*space
	names map[string]string // volume names
}

// A node's token can write only the volumes and claims of its node, although all
// nodes share a service account with access to all of them.
func TestNodeTokenIsConfinedToItsNode(t *testing.T) {
	t.Parallel()
	r := &rights{space: newSpace(t), names: map[string]string{}}
	r.prepare()
	inForce(r.space, "local-cleat-volumes-of-nodes", "local-cleat-claims-of-nodes", "local-cleat-csi-placement")
	own, noNode, placement := as(t, testCluster.Node), as(t, ""), asAccount(t, "local-placement", "")
	const selects = `{"metadata":{"annotations":{"` + selectedNode + `":"` + otherNode + `"}}}`
	const ok = ""
	for _, test := range []struct {
		what   string
		client kubernetes.Interface
		do     func(context.Context, kubernetes.Interface) error
		denied string // part of the message, or ok
	}{
		{"create a volume of this node", own, r.create(volume(localDriver, testCluster.Node)), ok},
		{"create a volume of another node", own, r.create(volume(localDriver, otherNode)), "no node affinity to topology.cleat.dev/node=" + testCluster.Node},
		{"create a volume of this node or another", own, r.create(volume(localDriver, testCluster.Node, otherNode)), "no node affinity to topology.cleat.dev/node=" + testCluster.Node},
		{"create a volume of no node", own, r.create(volume(localDriver)), "no node affinity to topology.cleat.dev/node=" + testCluster.Node},
		{"create a volume of another driver", own, r.create(volume("other.example.com", testCluster.Node)), "is not of driver " + localDriver},
		{"create a volume of no driver", own, r.create(hostPath()), "is not of driver " + localDriver},
		{"create a volume without a token of a node", noNode, r.create(volume(localDriver, testCluster.Node)), "bound to a pod on a node"},
		{"delete a volume of this node", own, r.remove("own"), ok},
		{"delete a volume of another node", own, r.remove("others"), "no node affinity to topology.cleat.dev/node=" + testCluster.Node},
		{"delete a volume of another driver", own, r.remove("foreign"), "is not of driver " + localDriver},
		{"delete a volume without a token of a node", noNode, r.remove("own"), "bound to a pod on a node"},
		{"protect a volume of this node", own, r.patchVolume("own", `{"metadata":{"finalizers":["external-provisioner.volume.kubernetes.io/finalizer"]}}`), ok},
		{"protect a volume of another node", own, r.patchVolume("others", `{"metadata":{"finalizers":["external-provisioner.volume.kubernetes.io/finalizer"]}}`), "can change only the capacity"},
		{"grow a volume of another node", own, r.patchVolume("others", `{"metadata":{"annotations":{"volume.alpha.kubernetes.io/pre-resize-capacity":"1Gi"}},"spec":{"capacity":{"storage":"2Gi"}}}`), ok},
		{"grow a volume of another driver", own, r.patchVolume("foreign", `{"spec":{"capacity":{"storage":"2Gi"}}}`), "is not of driver " + localDriver},
		{"give a volume of another node to a claim", own, r.patchVolume("others", `{"spec":{"claimRef":{"namespace":"default","name":"mine"}}}`), "can change only the capacity"},
		{"have a volume of another node deleted", own, r.patchVolume("others", `{"spec":{"persistentVolumeReclaimPolicy":"Delete"}}`), "can change only the capacity"},
		{"annotate a volume of another node", own, r.patchVolume("others", `{"metadata":{"annotations":{"a":"b"}}}`), "can change only the capacity"},
		{"take a claim that has no node", own, r.updateClaim("waiting", choose(testCluster.Node)), ok},
		{"give a claim to another node", own, r.updateClaim("waiting", choose(otherNode)), "is for node \"\" and would be for \"" + otherNode + "\""},
		{"return a claim of this node", own, r.updateClaim("own", choose("")), ok},
		{"return a claim without a token of a node", noNode, r.updateClaim("own", choose("")), "bound to a pod on a node"},
		{"return a claim of another node", own, r.updateClaim("others", choose("")), "is for node \"" + otherNode + "\""},
		{"take a claim of another node", own, r.updateClaim("others", choose(testCluster.Node)), "is for node \"" + otherNode + "\""},
		{"take a claim of another driver", own, r.updateClaim("foreign", choose(testCluster.Node)), "claims of driver " + localDriver},
		{"protect the source of a clone on another node", own, r.updateClaim("others", finalize("provisioner.storage.kubernetes.io/cloning-protection")), ok},
		{"hold a claim of this node", own, r.updateClaim("own", finalize("example.com/hold")), "can change only the annotation"},
		{"label a claim of this node", own, r.updateClaim("own", func(c *corev1.PersistentVolumeClaim) { c.Labels = map[string]string{"a": "b"} }), "can change only the annotation"},
		{"annotate a claim of this node", own, r.updateClaim("own", func(c *corev1.PersistentVolumeClaim) { c.Annotations["a"] = "b" }), "can change only the annotation"},
		{"select the node of a restore", placement, r.patchClaim("restored", selects), ok},
		{"select the node of a claim without a source", placement, r.patchClaim("waiting", selects), "or no data source"},
		{"select another node for a restore", placement, r.patchClaim("restoring", selects), "has a node or a volume"},
		{"annotate a restore", placement, r.patchClaim("restored", `{"metadata":{"annotations":{"a":"b"}}}`), "can set only the annotation"},
		{"hold a restore", placement, r.patchClaim("restored", `{"metadata":{"finalizers":["example.com/hold"]}}`), "can set only the annotation"},
		{"remove an annotation from a claim of this node", own, r.updateClaim("own", func(c *corev1.PersistentVolumeClaim) { delete(c.Annotations, provisioner) }), "can change only the annotation"},
	} {
		err := test.do(t.Context(), test.client)
		switch {
		case test.denied == ok && err != nil:
			t.Errorf("%s is denied: %v", test.what, err)
		case test.denied != ok && (err == nil || !strings.Contains(err.Error(), test.denied)):
			t.Errorf("%s: got error %v, want a denial with %q", test.what, err, test.denied)
		}
	}
}

// as returns a client with the token of a driver's pod on a node, or of no
// node.
func as(t *testing.T, node string) kubernetes.Interface {
	t.Helper()
	return asAccount(t, "local-cleat-csi-node", node)
}

func asAccount(t *testing.T, account, node string) kubernetes.Interface {
	t.Helper()
	config := rest.CopyConfig(testCluster.Config)
	config.Impersonate = rest.ImpersonationConfig{
		UserName: "system:serviceaccount:" + system + ":" + account,
		Groups:   []string{"system:serviceaccounts", "system:serviceaccounts:" + system, "system:authenticated"},
	}
	if node != "" {
		config.Impersonate.Extra = map[string][]string{"authentication.kubernetes.io/node-name": {node}}
	}
	client := testkit.Value(kubernetes.NewForConfig(config))(t)
	return client
}

// volume returns a volume without a driver; each node is a term of its
// affinity.
func volume(driver string, nodes ...string) *corev1.PersistentVolume {
	v := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "rights-"},
		Spec: corev1.PersistentVolumeSpec{
			StorageClassName: "rights", AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
			Capacity:                      corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")},
			PersistentVolumeSource:        corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: driver, VolumeHandle: "none"}},
		},
	}
	for _, node := range nodes {
		if v.Spec.NodeAffinity == nil {
			v.Spec.NodeAffinity = &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{}}
		}
		v.Spec.NodeAffinity.Required.NodeSelectorTerms = append(v.Spec.NodeAffinity.Required.NodeSelectorTerms, corev1.NodeSelectorTerm{
			MatchExpressions: []corev1.NodeSelectorRequirement{
				{Key: "zone", Operator: corev1.NodeSelectorOpIn, Values: []string{"a"}},
				{Key: "topology.cleat.dev/node", Operator: corev1.NodeSelectorOpIn, Values: []string{node}},
			},
		})
	}
	return v
}

func hostPath() *corev1.PersistentVolume {
	v := volume(localDriver, testCluster.Node)
	v.Spec.PersistentVolumeSource = corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/"}}
	return v
}

// prepare creates volumes that match no claim, and claims of a missing class.
func (r *rights) prepare() {
	r.Helper()
	for name, v := range map[string]*corev1.PersistentVolume{"own": volume(localDriver, testCluster.Node), "others": volume(localDriver, otherNode), "foreign": volume("other.example.com", testCluster.Node)} {
		made := testkit.Value(testCluster.Client.CoreV1().PersistentVolumes().Create(r.Context(), v, metav1.CreateOptions{}))(r)
		r.names[name] = made.Name
		r.Cleanup(func() {
			if err := testCluster.Client.CoreV1().PersistentVolumes().Delete(context.Background(), made.Name, metav1.DeleteOptions{}); err != nil {
				r.Error(err)
			}
		})
	}
	for name, annotations := range map[string]map[string]string{
		"waiting": {provisioner: localDriver},
		"own":     {provisioner: localDriver, selectedNode: testCluster.Node},
		"others":  {provisioner: localDriver, selectedNode: otherNode},
		"foreign": {provisioner: "other.example.com"},

		"restored":  {provisioner: localDriver},
		"restoring": {provisioner: localDriver, selectedNode: testCluster.Node},
	} {
		c := claim{class: "no-such-class", size: "1Gi"}
		if strings.HasPrefix(name, "restor") {
			c.from = snapshotSource("none")
		}
		r.claim(name, c)
		patch := testkit.Value(json.Marshal(map[string]any{"metadata": map[string]any{"annotations": annotations}}))(r)
		testkit.Value(testCluster.Client.CoreV1().PersistentVolumeClaims(r.name).Patch(r.Context(), name, types.MergePatchType, patch, metav1.PatchOptions{}))(r)
	}
}

// inForce waits until the API server has processed policies without warnings.
func inForce(s *space, names ...string) {
	s.Helper()
	for _, name := range names {
		var p *admissionv1.ValidatingAdmissionPolicy
		s.until("the policy "+name, func(ctx context.Context) (err error) {
			p, err = testCluster.Client.AdmissionregistrationV1().ValidatingAdmissionPolicies().Get(ctx, system+"-"+name, metav1.GetOptions{})
			if err == nil && p.Status.ObservedGeneration != p.Generation {
				err = fmt.Errorf("generation %d, observed %d", p.Generation, p.Status.ObservedGeneration)
			}
			return err
		})
		if p.Status.TypeChecking != nil {
			for _, w := range p.Status.TypeChecking.ExpressionWarnings {
				s.Errorf("%s, %s: %s", name, w.FieldRef, w.Warning)
			}
		}
	}
}

var dryRun = []string{metav1.DryRunAll}

func (r *rights) create(v *corev1.PersistentVolume) func(context.Context, kubernetes.Interface) error {
	return func(ctx context.Context, c kubernetes.Interface) error {
		_, err := c.CoreV1().PersistentVolumes().Create(ctx, v, metav1.CreateOptions{DryRun: dryRun})
		return err
	}
}

func (r *rights) remove(name string) func(context.Context, kubernetes.Interface) error {
	return func(ctx context.Context, c kubernetes.Interface) error {
		return c.CoreV1().PersistentVolumes().Delete(ctx, r.names[name], metav1.DeleteOptions{DryRun: dryRun})
	}
}

func (r *rights) patchVolume(name, patch string) func(context.Context, kubernetes.Interface) error {
	return func(ctx context.Context, c kubernetes.Interface) error {
		_, err := c.CoreV1().PersistentVolumes().Patch(ctx, r.names[name], types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{DryRun: dryRun})
		return err
	}
}

func (r *rights) patchClaim(name, patch string) func(context.Context, kubernetes.Interface) error {
	return func(ctx context.Context, c kubernetes.Interface) error {
		_, err := c.CoreV1().PersistentVolumeClaims(r.name).Patch(ctx, name, types.MergePatchType, []byte(patch), metav1.PatchOptions{DryRun: dryRun})
		return err
	}
}

// updateClaim reads and updates a claim, like csi-provisioner. The controller manager
// can have changed it meanwhile.
func (r *rights) updateClaim(name string, change func(*corev1.PersistentVolumeClaim)) func(context.Context, kubernetes.Interface) error {
	return func(ctx context.Context, c kubernetes.Interface) error {
		return retry.RetryOnConflict(retry.DefaultRetry, func() error {
			claim, err := c.CoreV1().PersistentVolumeClaims(r.name).Get(ctx, name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			change(claim)
			_, err = c.CoreV1().PersistentVolumeClaims(r.name).Update(ctx, claim, metav1.UpdateOptions{DryRun: dryRun})
			return err
		})
	}
}

// choose sets the selected node of a claim; "" removes it.
func choose(node string) func(*corev1.PersistentVolumeClaim) {
	return func(c *corev1.PersistentVolumeClaim) {
		if node == "" {
			delete(c.Annotations, selectedNode)
			return
		}
		c.Annotations[selectedNode] = node
	}
}

func finalize(name string) func(*corev1.PersistentVolumeClaim) {
	return func(c *corev1.PersistentVolumeClaim) { c.Finalizers = append(c.Finalizers, name) }
}
