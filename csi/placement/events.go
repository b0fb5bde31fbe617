package placement

import (
	"context"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cleatproject/cleat/internal/kubeobject"
)

const component = "cleat-csi-placement"

// event records an event of a claim. Its name is derived from its content, so that
// repetitions are counted in one object.
func (p *Controller) event(ctx context.Context, claim *corev1.PersistentVolumeClaim, kind, reason, text string) {
	hash := fnv.New64a()
	fmt.Fprintf(hash, "%s\n%s\n%s", claim.UID, reason, text)
	now := metav1.NewTime(time.Now())
	e := &corev1.Event{
		TypeMeta:       metav1.TypeMeta{APIVersion: "v1", Kind: "Event"},
		ObjectMeta:     metav1.ObjectMeta{Namespace: claim.Namespace, Name: fmt.Sprintf("%.200s.%x", claim.Name, hash.Sum64())},
		InvolvedObject: corev1.ObjectReference{APIVersion: "v1", Kind: "PersistentVolumeClaim", Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID, ResourceVersion: claim.ResourceVersion},
		Type:           kind, Reason: reason, Message: text, Count: 1, FirstTimestamp: now, LastTimestamp: now,
		Source: corev1.EventSource{Component: component}, ReportingController: component,
	}
	if err := p.writeEvent(ctx, e); err != nil {
		p.config.Logger.WarnContext(ctx, "event not written", "claim", claim.Namespace+"/"+claim.Name, "reason", reason, "err", err)
	}
}

func (p *Controller) writeEvent(ctx context.Context, e *corev1.Event) error {
	events := p.config.Client.Resource(eventResource).Namespace(e.Namespace)
	found, err := kubeobject.Get[corev1.Event](ctx, p.config.Client, eventResource, e.Namespace, e.Name)
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
