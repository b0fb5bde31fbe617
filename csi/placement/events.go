package placement

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
)

// eventSink writes events. ctx is that of Run: the interface has none.
type eventSink struct {
	ctx    context.Context
	client dynamic.Interface
}

// Create implements record.EventSink.
func (s *eventSink) Create(e *corev1.Event) (*corev1.Event, error) {
	o, err := runtime.DefaultUnstructuredConverter.ToUnstructured(e)
	if err != nil {
		return nil, err
	}
	u := &unstructured.Unstructured{Object: o}
	u.SetAPIVersion("v1")
	u.SetKind("Event")
	return s.written(s.client.Resource(eventResource).Namespace(e.Namespace).Create(s.ctx, u, metav1.CreateOptions{}))
}

// Update implements record.EventSink.
func (s *eventSink) Update(e *corev1.Event) (*corev1.Event, error) {
	return nil, fmt.Errorf("event %s: events are only created and patched", e.Name)
}

// Patch implements record.EventSink.
func (s *eventSink) Patch(e *corev1.Event, change []byte) (*corev1.Event, error) {
	return s.written(s.client.Resource(eventResource).Namespace(e.Namespace).Patch(s.ctx, e.Name, types.StrategicMergePatchType, change, metav1.PatchOptions{}))
}

func (s *eventSink) written(u *unstructured.Unstructured, err error) (*corev1.Event, error) {
	if err != nil {
		return nil, err
	}
	return convert[corev1.Event](u)
}
