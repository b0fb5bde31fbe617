package placement

import (
	"context"
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cleatproject/cleat/internal/kubeobject"
)

// isPending reports whether a claim with a data source has no volume yet.
func isPending(c *corev1.PersistentVolumeClaim) bool {
	return c.DeletionTimestamp == nil && c.Spec.VolumeName == "" && (c.Spec.DataSource != nil || c.Spec.DataSourceRef != nil)
}

// consumers returns the pods that wait for a node and use the claim.
func (p *Controller) consumers(ctx context.Context, claim *corev1.PersistentVolumeClaim) []consumer {
	key := claim.Namespace + "/" + claim.Name
	pods, err := p.pods.GetIndexer().ByIndex(byClaim, key)
	if err != nil {
		return nil // never: the index exists
	}
	var all []consumer
	for _, o := range pods {
		pod, is := o.(*corev1.Pod)
		if !is || pod.DeletionTimestamp != nil || pod.Spec.NodeName != "" || len(pod.Spec.SchedulingGates) > 0 {
			continue
		}
		c := consumer{pod: pod}
		for _, other := range claimsOf(pod) {
			if other != key {
				c.neighbors = append(c.neighbors, p.neighbor(ctx, other))
			}
		}
		all = append(all, c)
	}
	return all
}

// neighbor is best effort: what cannot be read restricts nothing, and the
// scheduler checks it.
func (p *Controller) neighbor(ctx context.Context, key string) neighbor {
	claim, exists, err := get[corev1.PersistentVolumeClaim](p.claims, key)
	if err != nil || !exists {
		return neighbor{name: key}
	}
	n := neighbor{name: claim.Name, node: claim.Annotations[selectedNode]}
	if claim.Spec.VolumeName == "" {
		if n.node == "" && isPending(claim) {
			if s, err := p.sourceOf(ctx, claim); err == nil {
				n.node = s.node
			}
		}
		return n
	}
	n.node = ""
	v, err := kubeobject.Get[corev1.PersistentVolume](ctx, p.config.Client, volumeResource, "", claim.Spec.VolumeName)
	if err == nil && v != nil && v.Spec.NodeAffinity != nil {
		n.affinity = v.Spec.NodeAffinity.Required
	}
	return n
}

// sourceOf returns the data source of a claim of this driver that waits for its
// first consumer. Without a node it is not known, or none of this driver.
func (p *Controller) sourceOf(ctx context.Context, claim *corev1.PersistentVolumeClaim) (source, error) {
	if claim.Spec.StorageClassName == nil {
		return source{}, nil
	}
	class, err := kubeobject.Get[storagev1.StorageClass](ctx, p.config.Client, classResource, "", *claim.Spec.StorageClassName)
	if err != nil || class == nil || class.Provisioner != p.config.Driver ||
		class.VolumeBindingMode == nil || *class.VolumeBindingMode != storagev1.VolumeBindingWaitForFirstConsumer {
		return source{}, err
	}
	of := reference(claim)
	switch {
	case of.group == snapshotGroup && of.kind == "VolumeSnapshot":
		return p.snapshot(ctx, of)
	case of.group == "" && of.kind == "PersistentVolumeClaim":
		return p.sourceClaim(ctx, of)
	}
	return source{}, nil
}

type sourceReference struct{ group, kind, namespace, name string }

func reference(claim *corev1.PersistentVolumeClaim) sourceReference {
	r := sourceReference{namespace: claim.Namespace}
	if ref := claim.Spec.DataSourceRef; ref != nil {
		if ref.APIGroup != nil {
			r.group = *ref.APIGroup
		}
		if ref.Namespace != nil && *ref.Namespace != "" {
			r.namespace = *ref.Namespace
		}
		r.kind, r.name = ref.Kind, ref.Name
		return r
	}
	ref := claim.Spec.DataSource
	if ref.APIGroup != nil {
		r.group = *ref.APIGroup
	}
	r.kind, r.name = ref.Kind, ref.Name
	return r
}

func (p *Controller) snapshot(ctx context.Context, of sourceReference) (source, error) {
	s, err := kubeobject.Get[unstructured.Unstructured](ctx, p.config.Client, snapshotResource, of.namespace, of.name)
	if err != nil || s == nil {
		return source{}, err
	}
	name, _, _ := unstructured.NestedString(s.Object, "status", "boundVolumeSnapshotContentName")
	if name == "" {
		return source{}, nil
	}
	c, err := kubeobject.Get[unstructured.Unstructured](ctx, p.config.Client, contentResource, "", name)
	if err != nil || c == nil {
		return source{}, err
	}
	if driver, _, _ := unstructured.NestedString(c.Object, "spec", "driver"); driver != p.config.Driver {
		return source{}, nil
	}
	return source{text: "snapshot " + of.name, node: c.GetLabels()[managedBy]}, nil
}

func (p *Controller) sourceClaim(ctx context.Context, of sourceReference) (source, error) {
	c, err := kubeobject.Get[corev1.PersistentVolumeClaim](ctx, p.config.Client, claimResource, of.namespace, of.name)
	if err != nil || c == nil || c.Spec.VolumeName == "" {
		return source{}, err
	}
	v, err := kubeobject.Get[corev1.PersistentVolume](ctx, p.config.Client, volumeResource, "", c.Spec.VolumeName)
	if err != nil || v == nil || v.Spec.CSI == nil || v.Spec.CSI.Driver != p.config.Driver || v.Spec.NodeAffinity == nil {
		return source{}, err
	}
	return source{text: "claim " + of.name, node: nodeOf(v.Spec.NodeAffinity.Required)}, nil
}

// node returns nil if it does not exist. The segment of a pool is the node's
// name, as the chart sets it.
func (p *Controller) node(ctx context.Context, name string) (*corev1.Node, error) {
	return kubeobject.Get[corev1.Node](ctx, p.config.Client, nodeResource, "", name)
}

// name sets the node of a claim, if the claim is as it was read.
func (p *Controller) name(ctx context.Context, claim *corev1.PersistentVolumeClaim, node string) error {
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"resourceVersion": claim.ResourceVersion, "uid": claim.UID,
		"annotations": map[string]string{selectedNode: node},
	}})
	if err != nil {
		return err
	}
	_, err = p.config.Client.Resource(claimResource).Namespace(claim.Namespace).Patch(ctx, claim.Name, types.MergePatchType, body, metav1.PatchOptions{})
	if err != nil {
		return fmt.Errorf("set the selected node %s: %w", node, err)
	}
	return nil
}
