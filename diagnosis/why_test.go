package diagnosis

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic/fake"
	clienttesting "k8s.io/client-go/testing"
	"sigs.k8s.io/yaml"

	"github.com/cleatproject/cleat/test/testkit"
)

// now is ten minutes after the times in the objects.
var now = time.Date(2026, 11, 27, 12, 10, 0, 0, time.UTC)

// The cluster of all cases: a driver without attachments on node-1, one with them
// on both nodes, and a claim of each.
const common = `
apiVersion: v1
kind: Node
metadata: {name: node-1}
status:
  addresses: [{type: InternalIP, address: 192.0.2.1}]
  conditions: [{type: Ready, status: "True"}]
---
apiVersion: storage.k8s.io/v1
kind: CSIDriver
metadata: {name: csi.cleat.dev}
spec: {attachRequired: false}
---
apiVersion: storage.k8s.io/v1
kind: CSIDriver
metadata: {name: spdk.csi.cleat.dev}
spec: {attachRequired: true}
---
apiVersion: storage.k8s.io/v1
kind: CSINode
metadata: {name: node-1}
spec: {drivers: [{name: csi.cleat.dev, nodeID: node-1}, {name: spdk.csi.cleat.dev, nodeID: node-1}]}
---
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: cleat}
provisioner: csi.cleat.dev
volumeBindingMode: WaitForFirstConsumer
---
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: spdk}
provisioner: spdk.csi.cleat.dev
volumeBindingMode: Immediate
---
apiVersion: v1
kind: PersistentVolume
metadata: {name: pvc-1}
spec: {capacity: {storage: 1Gi}, csi: {driver: csi.cleat.dev, volumeHandle: v1}, claimRef: {namespace: shop, name: bound}, nodeAffinity: {required: {nodeSelectorTerms: [{matchExpressions: [{key: topology.cleat.dev/node, operator: In, values: [node-1]}]}]}}}
---
apiVersion: v1
kind: PersistentVolume
metadata: {name: pvc-2}
spec: {capacity: {storage: 1Gi}, csi: {driver: spdk.csi.cleat.dev, volumeHandle: v2}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: bound, namespace: shop}
spec: {storageClassName: cleat, volumeName: pvc-1, resources: {requests: {storage: 1Gi}}}
status: {phase: Bound, capacity: {storage: 1Gi}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: remote, namespace: shop}
spec: {storageClassName: spdk, volumeName: pvc-2, resources: {requests: {storage: 1Gi}}}
status: {phase: Bound, capacity: {storage: 1Gi}}
`

// pending is a claim of class cleat without a volume.
const pending = `
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data, namespace: shop}
spec: {storageClassName: cleat, resources: {requests: {storage: 1Gi}}}
status: {phase: Pending}
`

// podOf is a pod without a node that uses a claim; its status follows.
func podOf(claim, rest string) string {
	return "\n---\napiVersion: v1\nkind: Pod\nmetadata: {name: db, namespace: shop, uid: u1}\nspec: {" + rest +
		"volumes: [{name: v, persistentVolumeClaim: {claimName: " + claim + "}}]}\nstatus: "
}

// eventOf is a warning for an object.
func eventOf(name, reason, message string) string {
	return "\n---\napiVersion: v1\nkind: Event\nmetadata: {name: e, namespace: shop}\ntype: Warning\nreason: " + reason +
		"\ninvolvedObject: {name: " + name + "}\nsource: {component: kubelet}\nlastTimestamp: \"2026-11-27T12:09:00Z\"\nmessage: '" + message + "'\n"
}

func testClient(t *testing.T, text string) *fake.FakeDynamicClient {
	t.Helper()
	kinds := map[schema.GroupVersionResource]string{
		core("pods"): "PodList", core("nodes"): "NodeList", core("events"): "EventList", core("persistentvolumes"): "PersistentVolumeList",
		core("persistentvolumeclaims"): "PersistentVolumeClaimList", storage("csinodes"): "CSINodeList", storage("csidrivers"): "CSIDriverList",
		storage("storageclasses"): "StorageClassList", storage("csistoragecapacities"): "CSIStorageCapacityList", storage("volumeattachments"): "VolumeAttachmentList", snapshot("volumesnapshots"): "VolumeSnapshotList",
		resource("csiaddons.openshift.io", "v1alpha1", "networkfences"):           "NetworkFenceList",
		resource("remediation.cleat.dev", "v1alpha1", "storagefenceremediations"): "StorageFenceRemediationList",
	}
	c := fake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), kinds)
	for _, one := range strings.Split(text, "\n---\n") {
		u := &unstructured.Unstructured{}
		testkit.Must(t, yaml.Unmarshal([]byte(one), &u.Object))
		plural, _ := meta.UnsafeGuessKindToResource(schema.FromAPIVersionAndKind(u.GetAPIVersion(), u.GetKind()))
		err := c.Tracker().Create(plural, u, u.GetNamespace())
		if apierrors.IsAlreadyExists(err) {
			err = c.Tracker().Update(plural, u, u.GetNamespace())
		}
		testkit.Must(t, err)
	}
	return c
}

const (
	scheduled = "nodeName: node-1, "
	creating  = "{phase: Pending, containerStatuses: [{name: c, state: {waiting: {reason: ContainerCreating}}}]}"
)

func driverPod(status string) string {
	return "\n---\napiVersion: v1\nkind: Pod\nmetadata: {name: cleat-csi-node-x7, namespace: cleat-system, labels: {app.kubernetes.io/component: csi-node}}\n" +
		"spec: {nodeName: node-1, containers: [{name: driver, args: [csi, --driver-name=csi.cleat.dev]}]}\nstatus: " + status
}

// besideSidecars is the driver's pod of most releases: the driver starts before the
// sidecars.
func besideSidecars(status string) string {
	return strings.Replace(driverPod(status), "containers: [{name: driver", "containers: [{name: csi-provisioner}], initContainers: [{restartPolicy: Always, name: driver", 1)
}

func unscheduled(message string) string {
	return "{phase: Pending, conditions: [{type: PodScheduled, status: \"False\", reason: Unschedulable, message: '" + message + "'}]}"
}

const unregistered = "\n---\napiVersion: storage.k8s.io/v1\nkind: CSINode\nmetadata: {name: node-1}\nspec: {drivers: []}"

// The commonest failures of docs/troubleshooting.md: each answer names the cause,
// and has the command or the page that helps.
func TestWhy(t *testing.T) {
	for name, c := range map[string]struct {
		objects      string
		object       string // default pod/db
		reason, next string // contained
		evidence     string // contained, if set
		ready        bool   // it waits for nothing
	}{
		"no pod yet":            {objects: pending, object: "pvc/data", reason: "no pod uses it yet. That is expected", next: "start a pod"},
		"misspelt class":        {objects: strings.ReplaceAll(pending, "cleat,", "cleet,"), object: "pvc/data", reason: "storage class cleet does not exist", next: "kubectl get storageclass"},
		"pod, misspelt class":   {objects: strings.ReplaceAll(pending, "cleat,", "cleet,") + podOf("data", "") + unscheduled("x"), reason: "waits for claim shop/data. Its storage class cleet", next: "kubectl get storageclass"},
		"no default class":      {objects: strings.ReplaceAll(pending, "storageClassName: cleat, ", ""), object: "pvc/data", reason: "no storage class", next: "kubectl get storageclass"},
		"no claim":              {objects: podOf("data", "")[5:] + unscheduled("x"), reason: "claim data does not exist", next: "get pvc"},
		"driver not installed":  {objects: strings.ReplaceAll(pending, "cleat,", "far,") + "\n---\napiVersion: storage.k8s.io/v1\nkind: StorageClass\nmetadata: {name: far}\nprovisioner: far.example.com", object: "pvc/data", reason: "driver far.example.com, which is not installed", next: "kubectl get csidrivers"},
		"no capacity":           {objects: pending + podOf("data", "") + unscheduled("0/1 nodes are available: 1 node(s) did not have enough free storage."), reason: "No node has a pool with this free capacity", next: "day2.md#a-full-pool", evidence: "condition PodScheduled"},
		"claim, no capacity":    {objects: pending + podOf("data", "") + unscheduled("1 node(s) did not have enough free storage."), object: "pvc/data", reason: "waits for pod shop/db. The scheduler finds no node", next: "csistoragecapacities"},
		"node of volume gone":   {objects: podOf("bound", "")[5:] + unscheduled("1 node(s) didn''t match PersistentVolume''s node affinity") + "\n---\napiVersion: v1\nkind: Node\nmetadata: {name: node-1}\nstatus: {conditions: [{type: Ready, status: Unknown, message: Kubelet stopped posting node status., lastTransitionTime: \"2026-11-27T12:00:00Z\"}]}", reason: "not ready since 10m", next: "day2.md#a-node-is-lost", evidence: "volume pvc-1 of claim bound is where topology.cleat.dev/node is node-1"},
		"too many volumes":      {objects: podOf("bound", "")[5:] + unscheduled("1 node(s) exceed max volume count"), reason: "csi.maxVolumes is reached", next: "get csinode"},
		"devices withdrawn":     {objects: podOf("bound", "")[5:] + unscheduled("1 Insufficient example.com/fast") + "\n---\napiVersion: v1\nkind: Node\nmetadata: {name: node-1}\nstatus: {allocatable: {example.com/fast: \"0\"}}", reason: "Every example.com/fast is withdrawn", next: "cleat sriov status", evidence: "is 0 on node-1"},
		"devices in use":        {objects: podOf("bound", "")[5:] + unscheduled("0/1 nodes are available: 1 Insufficient example.com/fast. preemption: none") + "\n---\napiVersion: v1\nkind: Node\nmetadata: {name: node-1}\nstatus: {allocatable: {example.com/fast: \"4\"}}", reason: "Pods have all of example.com/fast", next: "describe nodes"},
		"no such device":        {objects: podOf("bound", "")[5:] + unscheduled("1 Insufficient example.com/fast"), reason: "No node has example.com/fast", next: "cleat sriov explain --resource fast"},
		"refused by the driver": {objects: pending + eventOf("data", "ProvisioningFailed", "rpc error: code = InvalidArgument desc = parameter sise is not known; did you mean size?"), object: "pvc/data", reason: "misspelt parameter of the class", next: "parameters cannot be changed", evidence: "event ProvisioningFailed, 60s ago, by kubelet"},
		"selected node without driver": {objects: strings.ReplaceAll(pending, "namespace: shop", "namespace: shop, annotations: {volume.kubernetes.io/selected-node: node-1}") + unregistered, object: "pvc/data",
			reason: "not registered with the kubelet", next: "annotate pvc data volume.kubernetes.io/selected-node-", evidence: "no pod of a cleat release"},
		"snapshot is missing": {objects: strings.ReplaceAll(pending, "resources", "dataSourceRef: {apiGroup: snapshot.storage.k8s.io, kind: VolumeSnapshot, name: s}, resources"), object: "pvc/data", reason: "snapshot s, does not exist", next: "get volumesnapshots"},
		"snapshot not ready": {objects: strings.ReplaceAll(pending, "resources", "dataSourceRef: {apiGroup: snapshot.storage.k8s.io, kind: VolumeSnapshot, name: s}, resources") +
			"\n---\napiVersion: snapshot.storage.k8s.io/v1\nkind: VolumeSnapshot\nmetadata: {name: s, namespace: shop}\nstatus: {boundVolumeSnapshotContentName: c, error: {message: the pool has less than its reserve of 5%}}", object: "pvc/data", reason: "The pool is full", next: "delete volumes or snapshots first"},
		"driver not registered":    {objects: podOf("bound", scheduled)[5:] + creating + unregistered + driverPod("{phase: Pending, containerStatuses: [{name: driver, state: {waiting: {reason: ImagePullBackOff, message: Back-off pulling image}}}]}"), reason: "The image is not on this node", next: "describe pod cleat-csi-node-x7", evidence: "container driver: ImagePullBackOff"},
		"driver beside sidecars":   {objects: podOf("bound", scheduled)[5:] + creating + unregistered + besideSidecars("{phase: Pending, initContainerStatuses: [{name: driver, state: {waiting: {reason: ErrImageNeverPull, message: not present with pull policy of Never}}}], containerStatuses: [{name: csi-provisioner, state: {waiting: {reason: PodInitializing}}}]}"), reason: "The image is not on this node", next: "describe pod cleat-csi-node-x7", evidence: "container driver: ErrImageNeverPull"},
		"driver crashes":           {objects: podOf("bound", scheduled)[5:] + creating + unregistered + driverPod("{phase: Running, containerStatuses: [{name: driver, state: {waiting: {reason: CrashLoopBackOff, message: back-off 5m}}}]}"), reason: "not registered", next: "logs cleat-csi-node-x7 -c driver --previous", evidence: "CrashLoopBackOff"},
		"mount refused":            {objects: podOf("bound", scheduled)[5:] + creating + eventOf("db", "FailedMount", "MountVolume.MountDevice failed for volume \"pvc-1\" : rpc error: the kernel does not support the file system xfs"), reason: "module is missing or not loaded", next: "modprobe as the message says", evidence: "event FailedMount, 60s ago"},
		"node is fenced":           {objects: podOf("remote", scheduled)[5:] + creating + "\n---\napiVersion: storage.k8s.io/v1\nkind: VolumeAttachment\nmetadata: {name: csi-1}\nspec: {attacher: spdk.csi.cleat.dev, nodeName: node-1, source: {persistentVolumeName: pvc-2}}\nstatus: {attached: false, attachError: {time: \"2026-11-27T12:09:00Z\", message: \"client node-1 is fenced: 192.0.2.0/24; it gets no volume until the block is unfenced with UnfenceClusterNetwork\"}}\n---\napiVersion: csiaddons.openshift.io/v1alpha1\nkind: NetworkFence\nmetadata: {name: lost}\nspec: {fenceState: Fenced, cidrs: [192.0.2.1/32]}\nstatus: {result: Succeeded}", reason: "The node was fenced", next: "patch networkfence lost", evidence: "NetworkFence lost fences 192.0.2.1"},
		"node is not unfenced yet": {objects: podOf("remote", scheduled)[5:] + creating + "\n---\napiVersion: storage.k8s.io/v1\nkind: VolumeAttachment\nmetadata: {name: csi-1}\nspec: {attacher: spdk.csi.cleat.dev, nodeName: node-1, source: {persistentVolumeName: pvc-2}}\nstatus: {attached: false, attachError: {time: \"2026-11-27T12:09:00Z\", message: \"client node-1 is fenced: 192.0.2.0/24; it gets no volume until the block is unfenced with UnfenceClusterNetwork\"}}\n---\napiVersion: csiaddons.openshift.io/v1alpha1\nkind: NetworkFence\nmetadata: {name: lost}\nspec: {fenceState: Unfenced, cidrs: [192.0.2.1/32]}\nstatus: {result: Succeeded, message: fencing operation successful}", reason: "The node was fenced", next: "describe networkfence lost", evidence: "NetworkFence lost has not unfenced 192.0.2.1"},
		"attached elsewhere":       {objects: podOf("remote", scheduled)[5:] + creating + "\n---\napiVersion: storage.k8s.io/v1\nkind: VolumeAttachment\nmetadata: {name: csi-1}\nspec: {attacher: spdk.csi.cleat.dev, nodeName: node-2, source: {persistentVolumeName: pvc-2}}\nstatus: {attached: true}", reason: "attached to node node-2, and must be detached there first. The node does not exist any more", next: "day2.md#a-node-is-lost"},
		"controller is away":       {objects: podOf("remote", scheduled)[5:] + creating + "\n---\napiVersion: storage.k8s.io/v1\nkind: VolumeAttachment\nmetadata: {name: csi-1}\nspec: {attacher: spdk.csi.cleat.dev, nodeName: node-1, source: {persistentVolumeName: pvc-2}}", reason: "csi-attacher has not attached it", next: "csi-controller", evidence: "no status"},
		"image of the pod":         {objects: podOf("bound", scheduled)[5:] + "{phase: Pending, containerStatuses: [{name: c, state: {waiting: {reason: ErrImagePull, message: not found}}}]}", reason: "Its volumes are mounted. The image of container c is not on node node-1, and cannot be pulled", next: "describe pod db", evidence: "ErrImagePull: not found"},
		"terminating, node lost":   {objects: strings.Replace(podOf("bound", scheduled)[5:], "uid: u1", "deletionTimestamp: \"2026-11-27T12:00:00Z\"", 1) + "{phase: Running}\n---\napiVersion: v1\nkind: Node\nmetadata: {name: node-1}\nstatus: {conditions: [{type: Ready, status: Unknown, lastTransitionTime: \"2026-11-27T12:00:00Z\"}]}", reason: "can still write to storage on the network", next: "day2.md#a-node-is-lost"},
		"terminating, has ended":   {objects: strings.Replace(podOf("bound", scheduled)[5:], "uid: u1", "deletionTimestamp: \"2026-11-27T12:00:00Z\", finalizers: [example.com/hold]", 1) + "{phase: Failed}", reason: "finalizers are removed: example.com/hold", next: "describe pod db"},
		"terminating, no driver":   {objects: strings.Replace(podOf("bound", scheduled)[5:], "uid: u1", "deletionTimestamp: \"2026-11-27T12:00:00Z\"", 1) + "{phase: Running}" + unregistered, reason: "cannot unmount without it", evidence: "CSINode node-1 does not list csi.cleat.dev", next: "csi-node"},
		"growth needs a pod":       {objects: "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: bound, namespace: shop}\nspec: {volumeName: pvc-1}\nstatus: {phase: Bound, conditions: [{type: Resizing, status: \"True\"}, {type: FileSystemResizePending, status: \"True\", lastTransitionTime: \"2026-11-27T12:00:00Z\", message: Waiting for user to (re-)start a pod to finish file system resize of volume on node.}]}", object: "pvc/bound", reason: "Expected, while no pod uses the claim", next: "start a pod", evidence: "condition FileSystemResizePending since 10m"},
		"growth fails on the node": {objects: podOf("bound", scheduled)[5:] + "{phase: Running}" + eventOf("db", "VolumeResizeFailed", "rpc error: pool /p cannot promise 9 bytes more to a thin volume") + "---\napiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: bound, namespace: shop}\nspec: {volumeName: pvc-1}\nstatus: {phase: Bound, conditions: [{type: FileSystemResizePending, status: \"True\"}]}", object: "pvc/bound", reason: "The pool does not have this capacity", next: "grow the pool", evidence: "event VolumeResizeFailed, 60s ago"},
		"claim in use":             {objects: "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: bound, namespace: shop, deletionTimestamp: \"2026-11-27T12:00:00Z\", finalizers: [kubernetes.io/pvc-protection]}" + podOf("bound", scheduled) + "{phase: Running}", object: "pvc/bound", reason: "pod db does", next: "delete pod db"},
		"bound claim":              {objects: podOf("bound", scheduled)[5:] + creating, object: "pvc/bound", reason: "bound to volume pvc-1", ready: true},
		"unused claim":             {objects: "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: bound, namespace: shop}\nspec: {volumeName: pvc-1}\nstatus: {phase: Bound, conditions: [{type: Unused, status: \"True\", reason: NoPodsUsingPVC}]}", object: "pvc/bound", reason: "bound to volume pvc-1", ready: true},
		"running pod":              {objects: podOf("bound", scheduled)[5:] + "{phase: Running, conditions: [{type: Ready, status: \"True\"}]}", reason: "runs on node node-1", ready: true},
		"withdrawn at admission":   {objects: podOf("bound", scheduled)[5:] + "{phase: Failed, reason: UnexpectedAdmissionError, message: none}", reason: "its owner creates another", ready: true},
	} {
		t.Run(name, func(t *testing.T) {
			if c.object == "" {
				c.object = "pod/db"
			}
			kind, of, _ := strings.Cut(c.object, "/")
			e := New(testClient(t, common+"\n---\n"+c.objects), now)
			a := testkit.Value(e.Why(t.Context(), kind, "shop", of))(t)
			t.Logf("%s: %s\nread: %q\nnext: %q", a.Object, a.Reason, a.Evidence, a.Next)
			if a.Waiting == c.ready || !strings.Contains(a.Reason, c.reason) || len(a.NotRead) > 0 {
				t.Errorf("waiting %t, notRead %q, want reason %q", a.Waiting, a.NotRead, c.reason)
			}
			if !strings.Contains(strings.Join(a.Next, "\n"), c.next) || !strings.Contains(strings.Join(a.Evidence, "\n"), c.evidence) {
				t.Errorf("want next %q, evidence %q", c.next, c.evidence)
			}
		})
	}
}

// Nothing is concluded from what the user cannot read: without one kind of
// object an answer is the same or a weaker one, and says what was not read.
func TestRights(t *testing.T) {
	objects := common + "\n---\n" + podOf("bound", scheduled)[5:] + creating + unregistered
	all := testkit.Value(New(testClient(t, objects), now).Why(t.Context(), "pod", "shop", "db"))(t)
	if !strings.Contains(all.Reason, "not registered") {
		t.Fatalf("with all rights: %q", all.Reason)
	}
	for _, plural := range []string{"nodes", "csinodes", "csidrivers", "persistentvolumeclaims", "persistentvolumes", "events"} {
		c := testClient(t, objects)
		c.PrependReactor("*", plural, func(clienttesting.Action) (bool, runtime.Object, error) {
			return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: plural}, "", errors.New("no"))
		})
		a := testkit.Value(New(c, now).Why(t.Context(), "pod", "shop", "db"))(t)
		if strings.Contains(a.Reason, "does not exist") || strings.Contains(strings.Join(a.Evidence, ""), "no CSIDriver") || !a.Waiting {
			t.Errorf("without %s: %q %q", plural, a.Reason, a.Evidence)
		}
		if asked := a.Reason != all.Reason; asked && !slices.ContainsFunc(a.NotRead, func(u string) bool { return strings.HasPrefix(u, plural+":") }) {
			t.Errorf("without %s the answer is another one (%q), and does not say why: %q", plural, a.Reason, a.NotRead)
		}
	}
	c := testClient(t, common)
	c.PrependReactor("get", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "db", errors.New("no"))
	})
	if a, err := New(c, now).Why(t.Context(), "pod", "shop", "db"); err == nil || !apierrors.IsForbidden(err) {
		t.Errorf("pod without the right: %v, %v", a, err)
	}
	if _, err := New(testClient(t, common), now).Why(t.Context(), "pod", "shop", "none"); err == nil || !strings.Contains(err.Error(), "does not exist in namespace shop") {
		t.Errorf("pod that does not exist: %v", err)
	}
}

// pool is what csi-provisioner writes of a class on a node.
func pool(name, class, node, free string) string {
	return fmt.Sprintf("\n---\napiVersion: storage.k8s.io/v1\nkind: CSIStorageCapacity\nmetadata: {name: c%s, namespace: cleat-system}\nstorageClassName: %s\ncapacity: %q\nnodeTopology: {matchLabels: {topology.cleat.dev/node: %s}}", name, class, free, node)
}

// remediation is one of cleat takeover; an empty node is in its name.
func remediation(name, node, reason, message, blocked, succeeded string) string {
	text := "\n---\napiVersion: remediation.cleat.dev/v1alpha1\nkind: StorageFenceRemediation\nmetadata: {name: " + name + ", namespace: cleat-system, annotations: {"
	if node != "" {
		text += "remediation.medik8s.io/node-name: " + node
	}
	return text + fmt.Sprintf("}}\nstatus: {conditions: [{type: Processing, status: 'False', reason: %s, message: %s}, {type: Blocked, status: %q}, {type: Succeeded, status: %q}]}", reason, message, blocked, succeeded)
}

// What is wrong comes first.
func TestStatusAndVolumes(t *testing.T) {
	objects := common + driverPod("{phase: Running}") + unregistered + podOf("bound", scheduled) + "{phase: Running}" +
		"\n---\napiVersion: csiaddons.openshift.io/v1alpha1\nkind: NetworkFence\nmetadata: {name: old}\nspec: {fenceState: Fenced, cidrs: [192.0.2.9/32]}\nstatus: {result: Succeeded}" +
		"\n---\napiVersion: csiaddons.openshift.io/v1alpha1\nkind: NetworkFence\nmetadata: {name: released}\nspec: {fenceState: Unfenced, cidrs: [192.0.2.8/32]}\nstatus: {result: Succeeded, message: unfencing operation successful}" +
		"\n---\napiVersion: csiaddons.openshift.io/v1alpha1\nkind: NetworkFence\nmetadata: {name: releasing}\nspec: {fenceState: Unfenced, cidrs: [192.0.2.7/32]}\nstatus: {result: Succeeded, message: fencing operation successful}" +
		pool("1", "cleat", "node-1", "0") + pool("2", "cleat", "node-2", "5Gi") + pool("3", "other", "node-1", "0") +
		remediation("node-7-x2f", "node-7", "TakenOver", "the fences stay", "False", "True") + remediation("node-8", "", "NoClientRecord", "storage-a", "True", "Unknown")
	for _, pod := range []string{driverPod("{phase: Running}"), besideSidecars("{phase: Running}")} {
		testStatusAndVolumes(t, strings.Replace(objects, driverPod("{phase: Running}"), pod, 1))
	}
}

func testStatusAndVolumes(t *testing.T, objects string) {
	t.Helper()
	all, notRead := New(testClient(t, objects), now).Status(t.Context())
	var got []string
	for _, f := range all {
		got = append(got, fmt.Sprint(f.Problem, " ", f.Node, " ", f.Object, ": ", f.State))
	}
	want := []string{
		"true  networkfence releasing: Unfenced 192.0.2.7/32: no result yet: before: fencing operation successful",
		"true node-1 pod cleat-system/cleat-csi-node-x7: Running, csi.cleat.dev is not registered",
		"true node-1 pool of csi.cleat.dev for class cleat: free: 0: full, or not writable",
		"true node-8 storagefenceremediation cleat-system/node-8: NoClientRecord: storage-a",
		"false  networkfence old: Fenced 192.0.2.9/32: Succeeded",
		"false  networkfence released: Unfenced 192.0.2.8/32: Succeeded",
		"false node-2 pool of csi.cleat.dev for class cleat: free: 5Gi",
		"false node-7 storagefenceremediation cleat-system/node-7-x2f: TakenOver: the fences stay",
	}
	if !slices.Equal(got, want) || len(notRead) > 0 {
		t.Errorf("status:\n%s\nnotRead %q", strings.Join(got, "\n"), notRead)
	}
	volumes, notRead := New(testClient(t, objects), now).Volumes(t.Context())
	v := Volume{Name: "pvc-1", Claim: "shop/bound", Size: "1Gi", Driver: "csi.cleat.dev", Nodes: []string{"node-1"}, Pods: []string{"db"}}
	if len(volumes) != 1 || len(notRead) > 0 || !slices.Equal(volumes[0].Pods, v.Pods) || !slices.Equal(volumes[0].Nodes, v.Nodes) || volumes[0].Claim != v.Claim || volumes[0].Size != v.Size {
		t.Errorf("volumes: %+v, notRead %q", volumes, notRead)
	}
}

// An old event of an object with the same name, which has another UID, is not one
// of this object; of several the newest counts.
func TestEventsOfOthers(t *testing.T) {
	text := strings.Replace(eventOf("db", "FailedMount", "is fenced: x"), "{name: db}", "{name: db, uid: other}", 1)
	e := New(testClient(t, common+"\n---\n"+podOf("bound", scheduled)[5:]+creating+text), now)
	a := testkit.Value(e.Why(t.Context(), "pod", "shop", "db"))(t)
	if !slices.Contains(a.Evidence, "no event reports a failure") {
		t.Errorf("evidence %q", a.Evidence)
	}
	o := &metav1.ObjectMeta{Name: "db", Namespace: "shop", UID: "other"}
	if found := e.warning(t.Context(), o, "FailedMount"); found == nil || found.Message != "is fenced: x" {
		t.Errorf("event of its own object: %v", found)
	}
}

// Every message of the page is found by its own text, with a cause or advice.
func TestMessagesOfThePage(t *testing.T) {
	all := messages()
	if len(all) < 70 {
		t.Fatalf("found %d messages", len(all))
	}
	who := map[string]int{}
	for _, m := range all {
		who[m.who]++
		for _, text := range m.texts {
			found := find(all, "prefix "+strings.ReplaceAll(text, "…", "something")+" suffix")
			if found == nil || found.cause == "" && found.advice == "" {
				t.Errorf("%q: %+v", text, found)
			}
			if found != nil && strings.ContainsAny(found.cause+found.advice, "`[") && strings.Contains(found.advice, "](") {
				t.Errorf("%q: the text has markup: %q", text, found.advice)
			}
		}
	}
	if len(who) < 8 {
		t.Errorf("components: %v", slices.Sorted(maps.Keys(who)))
	}
}
