package diagnosis

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

const selectedNode = "volume.kubernetes.io/selected-node"

// claim explains a claim. followPods: a claim that waits for its first consumer
// is explained by its pod; without it such a claim needs nothing.
func (e *Explainer) claim(ctx context.Context, claim *corev1.PersistentVolumeClaim, followPods bool) Answer {
	object := fmt.Sprintf("claim %s/%s", claim.Namespace, claim.Name)
	switch {
	case claim.DeletionTimestamp != nil:
		return e.deletedClaim(ctx, object, claim)
	case claim.Status.Phase == corev1.ClaimBound:
		return e.boundClaim(ctx, object, claim)
	case claim.Status.Phase == corev1.ClaimLost:
		a := newAnswer(object, "Its PersistentVolume %s was deleted: the claim cannot be used again.", claim.Spec.VolumeName)
		return a
	}
	if claim.Spec.StorageClassName == nil {
		a := newAnswer(object, "It names no storage class, and the cluster has no default one.")
		a.next("kubectl get storageclass")
		return a
	}
	name := *claim.Spec.StorageClassName
	if name == "" || claim.Spec.VolumeName != "" {
		a := newAnswer(object, "It waits for a PersistentVolume that exists%s: no controller creates one for it.", strings.TrimSuffix(" named "+claim.Spec.VolumeName, " named "))
		a.next("kubectl get pv")
		return a
	}
	class, known := get[storagev1.StorageClass](ctx, e, storage("storageclasses"), "", name)
	if known && class == nil {
		a := newAnswer(object, "Its storage class %s does not exist.", name)
		a.explain(find(e.messages, fmt.Sprintf("storageclass.storage.k8s.io %q not found", name)))
		a.next("kubectl get storageclass")
		return a
	}
	if class != nil {
		if d := e.driver(ctx, class.Provisioner); d.known && d.object == nil {
			a := newAnswer(object, "Its class %s is of the driver %s, which is not installed.", name, d.name)
			a.evidence("no CSIDriver %s exists", d.name)
			a.next("kubectl get csidrivers")
			return a
		}
	}
	if a := e.source(ctx, object, claim); a != nil {
		return *a
	}
	return e.pendingClaim(ctx, object, claim, class, followPods)
}

// pendingClaim explains a claim that waits for a volume of its class.
func (e *Explainer) pendingClaim(ctx context.Context, object string, claim *corev1.PersistentVolumeClaim, class *storagev1.StorageClass, followPods bool) Answer {
	node := claim.Annotations[selectedNode]
	waits := class != nil && class.VolumeBindingMode != nil && *class.VolumeBindingMode == storagev1.VolumeBindingWaitForFirstConsumer
	if event := e.warning(ctx, claim, "ProvisioningFailed", "SourceNode"); event != nil {
		a := newAnswer(object, "Its volume could not be created.")
		e.reported(&a, event, e.messages)
		return a
	}
	if waits && node == "" {
		if !followPods {
			return done(object, "Its volume is created on the node of its first pod.")
		}
		return e.firstConsumer(ctx, object, claim)
	}
	if waits && class != nil {
		if a := e.nodeProblem(ctx, node); a != nil {
			a.next("kubectl -n %s annotate pvc %s %s-    # lets the scheduler choose another node", claim.Namespace, claim.Name, selectedNode)
			return a.of(object, "")
		}
		if a := e.registration(ctx, node, e.driver(ctx, class.Provisioner)); a != nil {
			a.next("kubectl -n %s annotate pvc %s %s-    # lets the scheduler choose another node", claim.Namespace, claim.Name, selectedNode)
			return a.of(object, "")
		}
	}
	a := newAnswer(object, "Its provisioner creates the volume; no failure is reported.")
	if class != nil {
		a.next("kubectl get pods -A -o wide -l app.kubernetes.io/name=cleat    # the log of csi-provisioner, of the pod that serves %s", cmp.Or(node, class.Provisioner))
	}
	return a
}

// firstConsumer explains a claim by the pods that use it.
func (e *Explainer) firstConsumer(ctx context.Context, object string, claim *corev1.PersistentVolumeClaim) Answer {
	pods, known := e.users(ctx, claim)
	if !known {
		return newAnswer(object, "Its volume is created on the node of its first pod.")
	}
	if len(pods) == 0 {
		a := newAnswer(object, "Its volume is created on the node of its first pod, and no pod uses it yet. That is expected.")
		a.next("start a pod that uses the claim")
		return a
	}
	return e.pod(ctx, pods[0]).of(object, "")
}

// users returns the pods of a claim that have not ended.
func (e *Explainer) users(ctx context.Context, claim *corev1.PersistentVolumeClaim) (using []*corev1.Pod, known bool) {
	pods, known := list[corev1.Pod](ctx, e, core("pods"), claim.Namespace, metav1.ListOptions{})
	for _, p := range pods {
		if p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed && slices.Contains(claimsOf(p), claim.Name) {
			using = append(using, p)
		}
	}
	return using, known
}

func (e *Explainer) deletedClaim(ctx context.Context, object string, claim *corev1.PersistentVolumeClaim) Answer {
	a := newAnswer(object, "It is deleted when its finalizers are removed: %s.", strings.Join(claim.Finalizers, ", "))
	if pods, _ := e.users(ctx, claim); len(pods) > 0 {
		a.Reason = fmt.Sprintf("It is deleted when no pod uses it any more: pod %s does.", pods[0].Name)
		a.next("kubectl -n %s delete pod %s", claim.Namespace, pods[0].Name)
	}
	return a
}

// boundClaim explains a growth or a change of attributes that is not complete.
func (e *Explainer) boundClaim(ctx context.Context, object string, claim *corev1.PersistentVolumeClaim) Answer {
	messages := first(e.messages, "A claim does not grow")
	conditions := slices.SortedStableFunc(slices.Values(claim.Status.Conditions), func(a, b corev1.PersistentVolumeClaimCondition) int {
		return -compareBool(a.Message != "", b.Message != "") // Resizing stays beside the one that says why
	})
	for _, c := range conditions {
		if c.Status != corev1.ConditionTrue || !isOfChange(c.Type) {
			continue
		}
		a := newAnswer(object, "It is bound, and a change of its volume is not complete.")
		a.evidence("condition %s since %s: %s", c.Type, age(e.now.Sub(c.LastTransitionTime.Time)), c.Message)
		a.explain(find(messages, c.Message))
		if event := e.changeFailed(ctx, claim); event != nil {
			e.reported(&a, event, messages)
		}
		return a
	}
	wanted, has := claim.Spec.Resources.Requests[corev1.ResourceStorage], claim.Status.Capacity[corev1.ResourceStorage]
	if wanted.Cmp(has) > 0 {
		a := newAnswer(object, "It is bound with %s, requests %s, and no component grows it.", has.String(), wanted.String())
		a.evidence("the claim has no condition")
		a.next("kubectl get lease -A | grep resizer    # then the log of csi-resizer of that pod")
		return a
	}
	return done(object, "It is bound to volume %s.", claim.Spec.VolumeName)
}

// isOfChange reports whether a claim's condition is about a growth or a change of
// attributes. From 1.37 on each claim has others.
func isOfChange(t corev1.PersistentVolumeClaimConditionType) bool {
	switch t {
	case corev1.PersistentVolumeClaimResizing, corev1.PersistentVolumeClaimFileSystemResizePending, corev1.PersistentVolumeClaimControllerResizeError,
		corev1.PersistentVolumeClaimNodeResizeError, corev1.PersistentVolumeClaimVolumeModifyingVolume, corev1.PersistentVolumeClaimVolumeModifyVolumeError:
		return true
	}
	return false
}

// changeFailed returns the newest failure of a growth or a change of attributes:
// sidecars report it on the claim, the kubelet on the pod.
func (e *Explainer) changeFailed(ctx context.Context, claim *corev1.PersistentVolumeClaim) *corev1.Event {
	newest := e.warning(ctx, claim, "VolumeResizeFailed", "VolumeModifyFailed")
	pods, _ := e.users(ctx, claim)
	for _, p := range pods {
		if of := e.warning(ctx, p, "VolumeResizeFailed"); of != nil && (newest == nil || eventTime(of).After(eventTime(newest))) {
			newest = of
		}
	}
	return newest
}

// source explains a data source that is not ready, nil if the claim has no
// source or nothing is known against it.
func (e *Explainer) source(ctx context.Context, object string, claim *corev1.PersistentVolumeClaim) *Answer {
	ref := claim.Spec.DataSourceRef
	if ref == nil {
		return nil
	}
	namespace := claim.Namespace
	if ref.Namespace != nil && *ref.Namespace != "" {
		namespace = *ref.Namespace
	}
	switch ref.Kind {
	case "PersistentVolumeClaim":
		from, known := get[corev1.PersistentVolumeClaim](ctx, e, core("persistentvolumeclaims"), namespace, ref.Name)
		if known && from == nil {
			a := newAnswer(object, "Its source, claim %s, does not exist.", ref.Name)
			return &a
		}
		if from != nil && from.Status.Phase != corev1.ClaimBound {
			a := newAnswer(object, "Its source, claim %s, has no volume yet.", ref.Name)
			a.next("start a pod that uses claim %s", ref.Name)
			return &a
		}
	case "VolumeSnapshot":
		return e.sourceSnapshot(ctx, object, namespace, ref.Name)
	}
	return nil
}

func (e *Explainer) sourceSnapshot(ctx context.Context, object, namespace, name string) *Answer {
	s, known := get[unstructured.Unstructured](ctx, e, snapshot("volumesnapshots"), namespace, name)
	if !known {
		return nil
	}
	if s == nil {
		a := newAnswer(object, "Its source, snapshot %s, does not exist.", name)
		a.next("kubectl -n %s get volumesnapshots", namespace)
		return &a
	}
	if ready, _, _ := unstructured.NestedBool(s.Object, "status", "readyToUse"); ready {
		return nil
	}
	a := newAnswer(object, "Its source, snapshot %s, is not ready.", name)
	content, _, _ := unstructured.NestedString(s.Object, "status", "boundVolumeSnapshotContentName")
	failed, _, _ := unstructured.NestedString(s.Object, "status", "error", "message")
	switch {
	case failed != "":
		a.evidence("status of the snapshot: %s", failed)
		a.explain(find(e.messages, failed))
	case content == "":
		a.Reason += " No snapshot-controller has processed it: none runs in this cluster, or it is busy."
		a.next("kubectl get pods -A | grep snapshot-controller    # docs/install.md#prerequisites")
	default:
		a.next("A snapshot is not ready (docs/troubleshooting.md#a-snapshot-is-not-ready)")
	}
	a.next("kubectl -n %s describe volumesnapshot %s", namespace, name)
	return &a
}
