package placement

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/cache"

	"github.com/cleatproject/cleat/internal/kubeobject"
)

var (
	claimResource    = schema.GroupVersionResource{Version: "v1", Resource: "persistentvolumeclaims"}
	podResource      = schema.GroupVersionResource{Version: "v1", Resource: "pods"}
	volumeResource   = schema.GroupVersionResource{Version: "v1", Resource: "persistentvolumes"}
	nodeResource     = schema.GroupVersionResource{Version: "v1", Resource: "nodes"}
	classResource    = schema.GroupVersionResource{Group: "storage.k8s.io", Version: "v1", Resource: "storageclasses"}
	snapshotResource = schema.GroupVersionResource{Group: snapshotGroup, Version: "v1", Resource: "volumesnapshots"}
	contentResource  = schema.GroupVersionResource{Group: snapshotGroup, Version: "v1", Resource: "volumesnapshotcontents"}
)

const (
	snapshotGroup = "snapshot.storage.k8s.io"
	selectedNode  = "volume.kubernetes.io/selected-node"
	managedBy     = "snapshot.storage.kubernetes.io/managed-by"
	byClaim       = "claim"
)

// newInformer keeps the objects that a field selector selects, as T.
func newInformer[T any](client dynamic.Interface, of schema.GroupVersionResource, selector string, indexers cache.Indexers) (cache.SharedIndexInformer, error) {
	objects := client.Resource(of)
	lists := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.FieldSelector = selector
			return objects.List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.FieldSelector = selector
			return objects.Watch(ctx, o)
		},
	}
	i := cache.NewSharedIndexInformer(cache.ToListWatcherWithWatchListSemantics(lists, client), &unstructured.Unstructured{}, 0, indexers)
	err := i.SetTransform(func(o any) (any, error) {
		if u, is := o.(*unstructured.Unstructured); is {
			u.SetManagedFields(nil)
			return kubeobject.Convert[T](u)
		}
		return o, nil
	})
	if err != nil {
		return nil, fmt.Errorf("watch %s: %w", of.Resource, err)
	}
	return i, nil
}

func get[T any](from cache.SharedIndexInformer, key string) (*T, bool, error) {
	o, exists, err := from.GetStore().GetByKey(key)
	if err != nil || !exists {
		return nil, false, err
	}
	t, is := o.(*T)
	if !is {
		return nil, false, fmt.Errorf("%s is cached as %T", key, o)
	}
	return t, true, nil
}

// keysOf returns the claim, or those of a pod.
func keysOf(o any) []string {
	if gone, is := o.(cache.DeletedFinalStateUnknown); is {
		o = gone.Obj
	}
	switch of := o.(type) {
	case *corev1.PersistentVolumeClaim:
		return []string{of.Namespace + "/" + of.Name}
	case *corev1.Pod:
		return claimsOf(of)
	}
	return nil
}

func indexByClaim(o any) ([]string, error) { return keysOf(o), nil }

// claimsOf returns the keys of a pod's claims, with those of its generic
// ephemeral volumes.
func claimsOf(pod *corev1.Pod) []string {
	var keys []string
	for _, v := range pod.Spec.Volumes {
		switch {
		case v.PersistentVolumeClaim != nil:
			keys = append(keys, pod.Namespace+"/"+v.PersistentVolumeClaim.ClaimName)
		case v.Ephemeral != nil:
			keys = append(keys, pod.Namespace+"/"+pod.Name+"-"+v.Name)
		}
	}
	return keys
}
