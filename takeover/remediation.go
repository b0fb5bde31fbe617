package takeover

import (
	"context"
	"encoding/json"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/kubeobject"
	"github.com/cleatproject/cleat/takeover/plan"
)

// Remediation is the object StorageFenceRemediation.
type Remediation struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              Spec        `json:"spec,omitzero"`
	Status            plan.Status `json:"status,omitzero"`
}

// Spec is what an administrator adds to a remediation.
type Spec struct {
	Off *Off `json:"poweredOff,omitempty"`
}

// Off confirms that machines are off, or were rebooted.
type Off struct {
	Record   string   `json:"record"` // digest of the record that the administrator was shown
	Machines []string `json:"machines"`
}

// Node returns the name of the node that the remediation is for: the recorded one, as
// others can change the annotation.
func (r *Remediation) Node() string {
	if record := r.Status.Record; record != nil && len(record.Machines) > 0 {
		return record.Machines[0].Name
	}
	if name := r.Annotations[nodeNameAnnotation]; name != "" {
		return name
	}
	return r.Name
}

// Of returns the remediations of a node, none of other nodes.
func Of(ctx context.Context, client dynamic.Interface, namespace, node string) ([]*Remediation, error) {
	all, err := list(ctx, client, namespace)
	if err != nil {
		return nil, err
	}
	var found []*Remediation
	for _, r := range all {
		if r.Node() == node {
			found = append(found, r)
		}
	}
	return found, nil
}

func list(ctx context.Context, client dynamic.Interface, namespace string) ([]*Remediation, error) {
	objects, err := kubeobject.List[unstructuredObject](ctx, client, Resource, namespace, metav1.ListOptions{})
	if apierrors.IsNotFound(err) {
		return nil, notInstalled(err)
	}
	if err != nil {
		return nil, err
	}
	all := make([]*Remediation, len(objects))
	for i, u := range objects {
		if all[i], err = decode(u); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// notInstalled is the error of a request for remediations that the API server
// does not know.
func notInstalled(err error) error {
	return errs.Errorf(errs.Precondition, "the cluster has no CustomResourceDefinition of %s, which the chart installs with takeover.enabled: %w", Kind, err)
}

// decode uses the JSON of package plan, which the converter of unstructured
// objects does not know: addresses are texts there.
func decode(u *unstructuredObject) (*Remediation, error) {
	text, err := u.MarshalJSON()
	if err != nil {
		return nil, err
	}
	r := new(Remediation)
	if err := json.Unmarshal(text, r); err != nil {
		return nil, fmt.Errorf("%s %s: %w", Kind, u.GetName(), err)
	}
	return r, nil
}

// encode is the inverse of decode.
func encode(value any) (o map[string]any, err error) {
	text, err := json.Marshal(value)
	if err != nil {
		return nil, err
	}
	return o, json.Unmarshal(text, &o)
}

func (r *Remediation) observed() plan.Remediation {
	_, paused := r.Annotations[pausedAnnotation]
	_, timedOut := r.Annotations[timedOutAnnotation]
	p := plan.Remediation{
		Name: r.Name, UID: string(r.UID), Created: r.CreationTimestamp.Time, Node: r.Node(), Deleting: r.DeletionTimestamp != nil,
		Paused: paused, TimedOut: timedOut, Status: r.Status,
	}
	for _, f := range r.Finalizers {
		p.Finalizer = p.Finalizer || f == finalizer
	}
	if off := r.Spec.Off; off != nil {
		p.Off = &plan.Off{Record: off.Record, Machines: off.Machines}
	}
	return p
}
