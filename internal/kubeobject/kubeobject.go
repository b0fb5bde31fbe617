// Package kubeobject reads objects of the API server as Kubernetes' own types,
// with a dynamic client: a typed one links every version of every group.
package kubeobject

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
)

// Get reads an object, nil if it does not exist or the API server does not have
// its resource. namespace "": a resource of the cluster.
func Get[T any](ctx context.Context, client dynamic.Interface, of schema.GroupVersionResource, namespace, name string) (*T, error) {
	u, err := client.Resource(of).Namespace(namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read %s %s: %w", of.Resource, name, err)
	}
	return Convert[T](u)
}

// List reads the objects that the options select. That the API server does not
// have their resource is an error, apierrors.IsNotFound. namespace "": of all
// namespaces, or of the cluster.
func List[T any](ctx context.Context, client dynamic.Interface, of schema.GroupVersionResource, namespace string, o metav1.ListOptions) ([]*T, error) {
	list, err := client.Resource(of).Namespace(namespace).List(ctx, o)
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", of.Resource, err)
	}
	all := make([]*T, 0, len(list.Items))
	for i := range list.Items {
		one, err := Convert[T](&list.Items[i])
		if err != nil {
			return nil, err
		}
		all = append(all, one)
	}
	return all, nil
}

// Convert returns the object as T, which can be unstructured.Unstructured.
func Convert[T any](u *unstructured.Unstructured) (*T, error) {
	if same, is := any(u).(*T); is {
		return same, nil
	}
	t := new(T)
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, t); err != nil {
		return nil, fmt.Errorf("%s %s: %w", u.GetKind(), u.GetName(), err)
	}
	return t, nil
}
