package takeover

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/takeover/plan"
)

// act performs actions at the same time and joins their errors. All can be
// repeated.
func (c *Controller) act(ctx context.Context, o *observation, actions []plan.Action) error {
	failed := make([]error, len(actions))
	var running sync.WaitGroup
	for i, a := range actions {
		running.Go(func() { failed[i] = c.actOne(ctx, o, a) })
	}
	running.Wait()
	return errors.Join(failed...)
}

func (c *Controller) actOne(ctx context.Context, o *observation, action plan.Action) error {
	owner := o.Remediation.UID
	switch a := action.(type) {
	case plan.AddFinalizer:
		u := o.remediation.DeepCopy()
		u.SetFinalizers(append(u.GetFinalizers(), finalizer))
		return c.updateRemediation(ctx, u)
	case plan.RemoveFinalizer:
		u := o.remediation.DeepCopy()
		u.SetFinalizers(slices.DeleteFunc(u.GetFinalizers(), func(f string) bool { return f == finalizer }))
		return c.updateRemediation(ctx, u)
	case plan.ClaimNode:
		return c.updateNode(ctx, o, func(n *unstructuredObject) error { return claim(n, a.Claim) })
	case plan.TaintNode:
		return c.updateNode(ctx, o, func(n *unstructuredObject) error { return taint(n, a.Value) })
	case plan.LeaveNode:
		return c.updateNode(ctx, o, func(n *unstructuredObject) error { return leave(n, a, plan.TaintValue(owner)) })
	case plan.DeletePods:
		return c.deletePods(ctx, a.Pods)
	case plan.Fence:
		return c.callBackend(ctx, "fence", a.Backend, func(ctx context.Context, b Backend) error { return b.Fence(ctx, owner, a.Addresses) })
	case plan.Unfence:
		return c.callBackend(ctx, "unfence", a.Backend, func(ctx context.Context, b Backend) error { return b.Unfence(ctx, owner, a.Addresses) })
	case plan.Forget:
		return c.callBackend(ctx, "forget the fences", a.Backend, func(ctx context.Context, b Backend) error { return b.Forget(ctx, owner, a.Addresses) })
	}
	return errs.Errorf(errs.Internal, "unknown action %T", action)
}

func (c *Controller) callBackend(ctx context.Context, what, name string, call func(context.Context, Backend) error) error {
	b := c.config.Backends[name]
	if b == nil {
		return errs.Errorf(errs.Precondition, "backend %q is not configured", name)
	}
	ctx, cancel := context.WithTimeout(ctx, fenceTimeout)
	defer cancel()
	if err := call(ctx, b); err != nil {
		return fmt.Errorf("%s at backend %s: %w", what, name, err)
	}
	return nil
}

// updateRemediation writes the object with the resourceVersion that was observed.
func (c *Controller) updateRemediation(ctx context.Context, u *unstructuredObject) error {
	_, err := c.config.Client.Resource(Resource).Namespace(c.config.Namespace).Update(ctx, u, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) { // its finalizer was removed
		return nil
	}
	return err
}

// updateNode writes the Node with the resourceVersion that was observed.
func (c *Controller) updateNode(ctx context.Context, o *observation, change func(*unstructuredObject) error) error {
	if o.node == nil {
		return errs.Errorf(errs.Internal, "the node was not observed")
	}
	n := o.node.DeepCopy()
	if err := change(n); err != nil {
		return err
	}
	_, err := c.config.Client.Resource(nodeResource).Update(ctx, n, metav1.UpdateOptions{})
	return err
}

func claim(n *unstructuredObject, of plan.Claim) error {
	if err := annotate(n, of); err != nil {
		return err
	}
	return unstructured.SetNestedField(n.Object, true, "spec", "unschedulable")
}

func annotate(n *unstructuredObject, of plan.Claim) error {
	text, err := json.Marshal(of)
	if err != nil {
		return err
	}
	annotations := n.GetAnnotations()
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[claimAnnotation] = string(text)
	n.SetAnnotations(annotations)
	return nil
}

func taint(n *unstructuredObject, value string) error {
	taints, _, err := unstructured.NestedSlice(n.Object, "spec", "taints")
	if err != nil {
		return err
	}
	taints = append(taints, map[string]any{"key": outOfService, "value": value, "effect": "NoExecute"})
	return unstructured.SetNestedSlice(n.Object, taints, "spec", "taints")
}

func leave(n *unstructuredObject, a plan.LeaveNode, value string) error {
	if a.RemoveTaint {
		taints, _, err := unstructured.NestedSlice(n.Object, "spec", "taints")
		if err != nil {
			return err
		}
		taints = slices.DeleteFunc(taints, func(t any) bool {
			one, _ := t.(map[string]any)
			return one["key"] == outOfService && one["value"] == value
		})
		if err := unstructured.SetNestedSlice(n.Object, taints, "spec", "taints"); err != nil {
			return err
		}
	}
	if err := annotate(n, a.Claim); err != nil {
		return err
	}
	if a.Uncordon {
		unstructured.RemoveNestedField(n.Object, "spec", "unschedulable")
	}
	return nil
}

// deletePods does not wait for a kubelet that is gone.
func (c *Controller) deletePods(ctx context.Context, pods []plan.Pod) error {
	var failed []error
	for _, p := range pods {
		uid, now := types.UID(p.UID), int64(0)
		err := c.config.Client.Resource(podResource).Namespace(p.Namespace).Delete(ctx, p.Name,
			metav1.DeleteOptions{GracePeriodSeconds: &now, Preconditions: &metav1.Preconditions{UID: &uid}})
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) { // a conflict: another pod of that name
			failed = append(failed, fmt.Errorf("delete pod %s/%s: %w", p.Namespace, p.Name, err))
		}
	}
	return errors.Join(failed...)
}

// writeStatus writes the status with the resourceVersion that was observed.
func (c *Controller) writeStatus(ctx context.Context, o *observation, s plan.Status) error {
	u := o.remediation.DeepCopy()
	status, err := encode(s)
	if err != nil {
		return err
	}
	u.Object["status"] = status
	_, err = c.config.Client.Resource(Resource).Namespace(c.config.Namespace).UpdateStatus(ctx, u, metav1.UpdateOptions{})
	return err
}
