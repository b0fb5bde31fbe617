package takeover

import (
	"context"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/kubeobject"
)

// Start creates the remediation of a node, as an administrator does without
// NodeHealthCheck, unless one exists, and returns it. NotFound: the node does not
// exist.
func Start(ctx context.Context, client dynamic.Interface, namespace, node string) (*Remediation, error) {
	found, err := Of(ctx, client, namespace, node)
	if err != nil {
		return nil, err
	}
	if len(found) > 0 {
		return found[0], nil
	}
	n, err := kubeobject.Get[unstructuredObject](ctx, client, nodeResource, "", node)
	if err != nil {
		return nil, err
	}
	if n == nil {
		return nil, errs.Errorf(errs.NotFound, "node %s does not exist", node)
	}
	u := &unstructuredObject{Object: map[string]any{"apiVersion": Group + "/" + Version, "kind": Kind}}
	u.SetName(node)
	created, err := client.Resource(Resource).Namespace(namespace).Create(ctx, u, metav1.CreateOptions{})
	if apierrors.IsNotFound(err) {
		return nil, errs.Errorf(errs.Precondition, "namespace %s does not exist, in which the chart runs the controller: %w", namespace, err)
	}
	if err != nil {
		return nil, err
	}
	return decode(created)
}

// Release confirms that the machine of a node, and DPUs of it, are off. It names
// the record that is in the status now, so that a machine that is written down
// later is not confirmed.
//
// Errors: NotFound; Precondition if nothing is fenced, or no such DPU is recorded.
func Release(ctx context.Context, client dynamic.Interface, namespace, node string, dpus []string) (*Remediation, error) {
	found, err := Of(ctx, client, namespace, node)
	if err != nil {
		return nil, err
	}
	for _, r := range found {
		if r.Status.Record == nil || r.Status.Intent == nil || r.Status.Release != nil {
			continue
		}
		known := map[string]bool{}
		var names []string
		for _, m := range r.Status.Record.Machines {
			known[m.Name] = true
			names = append(names, m.Name)
		}
		off := append([]string{node}, dpus...)
		for _, name := range off {
			if !known[name] {
				return nil, errs.Errorf(errs.Precondition, "%q is no machine of this takeover: it recorded %s", name, strings.Join(names, ", "))
			}
		}
		u, err := client.Resource(Resource).Namespace(namespace).Get(ctx, r.Name, metav1.GetOptions{})
		if err != nil {
			return nil, err
		}
		if u.GetResourceVersion() != r.ResourceVersion {
			return nil, errs.Errorf(errs.Busy, "%s %s is being changed: repeat the command", Kind, r.Name)
		}
		spec, err := encode(Spec{Off: &Off{Record: r.Status.Record.Digest, Machines: off}})
		if err != nil {
			return nil, err
		}
		u.Object["spec"] = spec
		updated, err := client.Resource(Resource).Namespace(namespace).Update(ctx, u, metav1.UpdateOptions{})
		if err != nil {
			return nil, err
		}
		released, err := decode(updated)
		if err == nil && released.Spec.Off == nil {
			err = errs.Errorf(errs.Precondition, "the API server dropped the confirmation: the CustomResourceDefinition is of another release")
		}
		return released, err
	}
	if len(found) == 0 {
		return nil, errs.Errorf(errs.NotFound, "node %s has no %s in namespace %s", node, Kind, namespace)
	}
	return nil, errs.Errorf(errs.Precondition, "the takeover of node %s has fenced nothing, or is released already", node)
}
