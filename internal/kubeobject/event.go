package kubeobject

import (
	"context"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
)

// Involved is a namespaced object that events are about.
type Involved interface {
	metav1.Object
	GroupVersionKind() schema.GroupVersionKind
}

// WriteEvent records an event of an object. Its name is derived from its content,
// so that repetitions are counted in one object. It needs get, create and patch of
// events in the object's namespace.
func WriteEvent(ctx context.Context, client dynamic.Interface, component string, of Involved, kind, reason, text string) error {
	const longest = 1024 // the limit of the API server
	if len(text) > longest {
		text = strings.ToValidUTF8(text[:longest-3], "") + "..."
	}
	hash := fnv.New64a()
	fmt.Fprintf(hash, "%s\n%s\n%s", of.GetUID(), reason, text)
	now := metav1.NewTime(time.Now())
	apiVersion, objectKind := of.GroupVersionKind().ToAPIVersionAndKind()
	e := &corev1.Event{
		TypeMeta:       metav1.TypeMeta{APIVersion: "v1", Kind: "Event"},
		ObjectMeta:     metav1.ObjectMeta{Namespace: of.GetNamespace(), Name: fmt.Sprintf("%.200s.%x", of.GetName(), hash.Sum64())},
		InvolvedObject: corev1.ObjectReference{APIVersion: apiVersion, Kind: objectKind, Namespace: of.GetNamespace(), Name: of.GetName(), UID: of.GetUID(), ResourceVersion: of.GetResourceVersion()},
		Type:           kind, Reason: reason, Message: text, Count: 1, FirstTimestamp: now, LastTimestamp: now,
		Source: corev1.EventSource{Component: component}, ReportingController: component,
	}
	resource := schema.GroupVersionResource{Version: "v1", Resource: "events"}
	events := client.Resource(resource).Namespace(e.Namespace)
	found, err := Get[corev1.Event](ctx, client, resource, e.Namespace, e.Name)
	if err != nil {
		return err
	}
	if found != nil {
		change, err := json.Marshal(map[string]any{"count": found.Count + 1, "lastTimestamp": e.LastTimestamp})
		if err != nil {
			return err
		}
		if _, err = events.Patch(ctx, e.Name, types.MergePatchType, change, metav1.PatchOptions{}); !apierrors.IsNotFound(err) {
			return err
		}
	}
	o, err := runtime.DefaultUnstructuredConverter.ToUnstructured(e)
	if err != nil {
		return err
	}
	_, err = events.Create(ctx, &unstructured.Unstructured{Object: o}, metav1.CreateOptions{})
	return err
}
