package diagnosis

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/cleatproject/cleat/internal/kubeobject"
)

// resource returns a resource of the API server.
func resource(group, version, plural string) schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: group, Version: version, Resource: plural}
}

func core(plural string) schema.GroupVersionResource { return resource("", "v1", plural) }
func storage(plural string) schema.GroupVersionResource {
	return resource("storage.k8s.io", "v1", plural)
}
func snapshot(plural string) schema.GroupVersionResource {
	return resource("snapshot.storage.k8s.io", "v1", plural)
}

// Explainer answers one question from the API server.
type Explainer struct {
	client   dynamic.Interface
	now      time.Time
	messages []message
	notRead  []string
}

// New makes no API call. now is compared with the times of events and conditions.
func New(client dynamic.Interface, now time.Time) *Explainer {
	return &Explainer{client: client, now: now, messages: messages()}
}

// Why explains what a pod or a claim waits for. kind is one of pod and pvc, or
// another name that kubectl has for them. The error is one of the object itself;
// other objects that cannot be read are in NotRead.
func (e *Explainer) Why(ctx context.Context, kind, namespace, name string) (Answer, error) {
	var a Answer
	switch strings.ToLower(kind) {
	case "pod", "pods", "po":
		pod, err := kubeobject.Get[corev1.Pod](ctx, e.client, core("pods"), namespace, name)
		if err != nil {
			return a, err
		}
		if pod == nil {
			return a, fmt.Errorf("pod %s does not exist in namespace %s", name, namespace)
		}
		a = e.pod(ctx, pod)
	case "pvc", "persistentvolumeclaim", "persistentvolumeclaims":
		claim, err := kubeobject.Get[corev1.PersistentVolumeClaim](ctx, e.client, core("persistentvolumeclaims"), namespace, name)
		if err != nil {
			return a, err
		}
		if claim == nil {
			return a, fmt.Errorf("claim %s does not exist in namespace %s", name, namespace)
		}
		a = e.claim(ctx, claim, true)
	default:
		return a, fmt.Errorf("%q is neither pod nor pvc", kind)
	}
	if a.Waiting && len(a.Next) == 0 {
		a.next("kubectl -n %s describe %s %s", namespace, kind, name)
	}
	a.NotRead = append(a.NotRead, e.notRead...)
	return a, nil
}

// get reads an object that decides. known is false if it could not be read; nil
// and known: it does not exist.
func get[T any](ctx context.Context, e *Explainer, of schema.GroupVersionResource, namespace, name string) (object *T, known bool) {
	object, err := kubeobject.Get[T](ctx, e.client, of, namespace, name)
	return object, e.note(err, of)
}

// list returns none of a resource that the cluster does not have.
func list[T any](ctx context.Context, e *Explainer, of schema.GroupVersionResource, namespace string, o metav1.ListOptions) (objects []*T, known bool) {
	objects, err := kubeobject.List[T](ctx, e.client, of, namespace, o)
	if apierrors.IsNotFound(err) {
		return nil, true
	}
	return objects, e.note(err, of)
}

// note records what could not be read, once for each resource.
func (e *Explainer) note(err error, of schema.GroupVersionResource) bool {
	if err == nil {
		return true
	}
	text := err.Error()
	if apierrors.IsForbidden(err) {
		text = of.Resource + ": you have no right to read them"
	}
	if !slices.Contains(e.notRead, text) {
		e.notRead = append(e.notRead, text)
	}
	return false
}

// warning returns the newest event of type Warning of an object, nil without one.
// Only reasons with one of the prefixes count.
func (e *Explainer) warning(ctx context.Context, o metav1.Object, reasons ...string) *corev1.Event {
	events, _ := list[corev1.Event](ctx, e, core("events"), cmp.Or(o.GetNamespace(), metav1.NamespaceDefault),
		metav1.ListOptions{FieldSelector: "involvedObject.name=" + o.GetName()})
	var newest *corev1.Event
	for _, event := range events {
		of := event.InvolvedObject
		if event.Type != corev1.EventTypeWarning || of.Name != o.GetName() || of.UID != "" && of.UID != o.GetUID() ||
			!slices.ContainsFunc(reasons, func(r string) bool { return strings.HasPrefix(event.Reason, r) }) {
			continue
		}
		if newest == nil || eventTime(event).After(eventTime(newest)) {
			newest = event
		}
	}
	return newest
}

func eventTime(e *corev1.Event) time.Time {
	t := e.EventTime.Time
	if e.Series != nil {
		t = e.Series.LastObservedTime.Time
	}
	if e.LastTimestamp.After(t) {
		t = e.LastTimestamp.Time
	}
	return t
}

// reported adds the event to an answer, with what the page says of its message.
func (e *Explainer) reported(a *Answer, event *corev1.Event, messages []message) {
	who := cmp.Or(event.ReportingController, event.Source.Component, "a component")
	a.evidence("event %s, %s ago, by %s: %s", event.Reason, age(e.now.Sub(eventTime(event))), who, event.Message)
	a.explain(find(messages, event.Message))
}

// driver is a CSI driver as the cluster knows it.
type driver struct {
	name   string
	object *storagev1.CSIDriver
	known  bool // the API server answered
	attach bool // volumes are attached by a VolumeAttachment
}

func (e *Explainer) driver(ctx context.Context, name string) driver {
	d := driver{name: name, attach: true}
	d.object, d.known = get[storagev1.CSIDriver](ctx, e, storage("csidrivers"), "", name)
	if d.object != nil && d.object.Spec.AttachRequired != nil {
		d.attach = *d.object.Spec.AttachRequired
	}
	return d
}
