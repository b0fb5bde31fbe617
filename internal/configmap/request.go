package configmap

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/store"
)

const (
	stateKey  = "state"
	resource  = "configmaps"
	managedBy = "app.kubernetes.io/managed-by"
)

// configMap has the fields that a write must send back. The module of
// Kubernetes' types would add megabytes to the program.
type configMap struct {
	APIVersion string            `json:"apiVersion"`
	Kind       string            `json:"kind"`
	Metadata   map[string]any    `json:"metadata"`
	Data       map[string]string `json:"data,omitempty"`
	BinaryData map[string][]byte `json:"binaryData,omitempty"`
}

// version is "" if the ConfigMap does not exist.
func (m configMap) version() string {
	version, _ := m.Metadata["resourceVersion"].(string)
	return version
}

func newClient(access *rest.Config) (rest.Interface, error) {
	scheme := runtime.NewScheme() // of the API server's errors
	v1 := schema.GroupVersion{Version: "v1"}
	metav1.AddToGroupVersion(scheme, v1)
	access.APIPath, access.GroupVersion = "/api", &v1
	access.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	// client-go's default of 5 requests per second would delay volumes. The
	// requests are limited by the calls that need them, and by the API server.
	access.QPS = -1
	return rest.RESTClientFor(access)
}

func (o *Object) get(ctx context.Context) (found configMap, exists bool, err error) {
	found, err = o.do(ctx, o.client.Get().Name(o.config.Name))
	if apierrors.IsNotFound(err) {
		return configMap{}, false, nil
	}
	return found, err == nil, o.explain(ctx, "read", err)
}

// put creates the ConfigMap, or replaces the one of the same version.
func (o *Object) put(ctx context.Context, m configMap, state []byte) (configMap, error) {
	m.BinaryData = maps.Clone(m.BinaryData)
	if m.BinaryData == nil {
		m.BinaryData = map[string][]byte{}
	}
	m.BinaryData[stateKey] = state
	// client-go repeats a request if the server asks for it with an error, but
	// the repeat of a change that was made looks like a conflict.
	request := o.client.Put().Name(o.config.Name)
	exists := m.version() != ""
	if !exists {
		request = o.client.Post()
		m.APIVersion, m.Kind = "v1", "ConfigMap"
		m.Metadata = map[string]any{"namespace": o.config.Namespace, "name": o.config.Name, "labels": map[string]string{managedBy: "cleat"}}
	}
	body, err := json.Marshal(m)
	if err != nil {
		return configMap{}, err
	}
	written, err := o.do(ctx, request.MaxRetries(0).SetHeader("Content-Type", runtime.ContentTypeJSON).Body(body))
	switch {
	case apierrors.IsConflict(err), apierrors.IsAlreadyExists(err), exists && apierrors.IsNotFound(err):
		return configMap{}, fmt.Errorf("%s: %w (%w)", o, store.ErrChanged, err)
	case apierrors.IsNotFound(err):
		return configMap{}, errs.Errorf(errs.Precondition, "create %s: the namespace does not exist: %w", o, err)
	}
	return written, o.explain(ctx, "write", err)
}

// do sends a request; also the API server ends it after the timeout.
func (o *Object) do(ctx context.Context, r *rest.Request) (configMap, error) {
	result := r.Namespace(o.config.Namespace).Resource(resource).Timeout(o.config.Timeout).SetHeader("Accept", runtime.ContentTypeJSON).Do(ctx)
	if err := result.Error(); err != nil {
		return configMap{}, err
	}
	body, err := result.Raw()
	if err != nil {
		return configMap{}, err
	}
	var m configMap
	if err := json.Unmarshal(body, &m); err != nil {
		return configMap{}, fmt.Errorf("the API server's answer: %w", err)
	}
	// The API server keeps those that are not sent.
	delete(m.Metadata, "managedFields")
	return m, nil
}

// explain gives an error its kind, and says what to do.
func (o *Object) explain(ctx context.Context, verb string, err error) error {
	status, answered := errors.AsType[*apierrors.StatusError](err)
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return fmt.Errorf("%s %s: %w: %w", verb, o, ctx.Err(), err)
	case apierrors.IsForbidden(err):
		return errs.Errorf(errs.Denied, "%s %s: %w; the service account needs get, update and watch of this ConfigMap, and create of ConfigMaps in its namespace", verb, o, err)
	case apierrors.IsUnauthorized(err):
		return errs.Errorf(errs.Denied, "%s %s: %w; check the token of the service account or kubeconfig", verb, o, err)
	case answered && status.Status().Code < http.StatusInternalServerError && !apierrors.IsTooManyRequests(err):
		return fmt.Errorf("%s %s: %w", verb, o, err)
	}
	return errs.Errorf(errs.Unavailable, "%s %s: the API server does not respond: %w", verb, o, err)
}
