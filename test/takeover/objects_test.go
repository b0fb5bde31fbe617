package takeover

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"
)

// resourceOf has the resources of the kinds that tests create.
var resourceOf = map[string]string{
	"Namespace": "namespaces", "Node": "nodes", "Pod": "pods", "PersistentVolume": "persistentvolumes", "PersistentVolumeClaim": "persistentvolumeclaims",
	"VolumeAttachment": "volumeattachments", "CSIDriver": "csidrivers", "NetworkFenceClass": "networkfenceclasses", "Secret": "secrets", "CustomResourceDefinition": "customresourcedefinitions", "ClusterRole": "clusterroles",
	"ClusterRoleBinding": "clusterrolebindings", "Role": "roles", "RoleBinding": "rolebindings", "ServiceAccount": "serviceaccounts",
	"NodeHealthCheck": "nodehealthchecks", "StorageFenceRemediationTemplate": "storagefenceremediationtemplates",
}

// apply creates the objects of a YAML stream, and their status; those of other
// kinds are skipped. It repeats what the API server does not serve yet.
func apply(ctx context.Context, text []byte) error {
	client, err := api.Client("")
	if err != nil {
		return err
	}
	var left []*unstructured.Unstructured
	for d := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(text))); ; {
		one, err := d.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		u := &unstructured.Unstructured{}
		if err := yaml.Unmarshal(one, &u.Object); err != nil {
			return err
		}
		if resourceOf[u.GetKind()] != "" {
			left = append(left, u)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		var failed error
		left = slices.DeleteFunc(left, func(u *unstructured.Unstructured) bool {
			err := create(ctx, client, u)
			failed = errors.Join(failed, err)
			return err == nil
		})
		if len(left) == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("objects not created: %w", failed)
		case <-tick.C:
		}
	}
}

func create(ctx context.Context, client dynamic.Interface, u *unstructured.Unstructured) error {
	gv, err := schema.ParseGroupVersion(u.GetAPIVersion())
	if err != nil {
		return err
	}
	objects := client.Resource(gv.WithResource(resourceOf[u.GetKind()])).Namespace(u.GetNamespace())
	status := u.Object["status"]
	made, err := objects.Create(ctx, u, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	if err != nil || status == nil {
		return err
	}
	made.Object["status"] = status
	_, err = objects.UpdateStatus(ctx, made, metav1.UpdateOptions{})
	return err
}
