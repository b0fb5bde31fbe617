package takeover

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/cleatproject/cleat/internal/kubeobject"
	"github.com/cleatproject/cleat/takeover"
	"github.com/cleatproject/cleat/test/testkit"
)

// The API server is gone in the middle of a takeover, and answers nothing in the
// middle of the release, both for longer than the Lease: the controller stops to lead,
// and nothing is fenced, tainted or lifted until the API server is back.
//
// Ten minutes add nothing to that. The Lease is tried at a constant interval, a fifth
// of its duration; the pauses of passes start again with each leader; and a token
// of a ServiceAccount is valid for longer than its kubelet's renewal needs.
func TestAPIServerOutage(t *testing.T) {
	s := newSite(t)
	h, w := s.watch(), s.writer(1)
	testkit.Must(t, s.service.Kill()) // so that the takeover stays before the certificate
	controller := s.controller()
	testkit.Value(s.run("start"))(t)
	s.awaitReason("SourceUnavailable")

	awaitNext := func(texts ...string) {
		t.Helper()
		for _, text := range texts {
			controller.WaitFor(t, text)
			controller.Log.Reset()
		}
	}
	controller.Log.Reset()
	api.Halt()
	awaitNext("not leading any more")
	s.serve() // a controller that remembered something would fence and taint now
	awaitNext("lease not read or written", "lease not read or written", "lease not read or written")
	testkit.Must(t, w.Await(testkit.Context(t), 20)) // writes on: it is not fenced
	// What the controller writes now is seen by the history.
	testkit.Must(t, controller.Signal(unix.SIGSTOP))
	testkit.Must(t, api.Serve(t.Context()))
	s.awaitWatched(h)
	testkit.Must(t, controller.Signal(unix.SIGCONT))
	s.awaitReason("TakenOver")

	testkit.Must(t, s.service.Kill()) // so that the fence stays for now
	s.reboot()
	s.awaitReason("Releasing")
	controller.Log.Reset()
	testkit.Must(t, api.Signal(unix.SIGSTOP))
	awaitNext("not leading any more")
	s.serve()
	awaitNext("lease not read or written", "lease not read or written")
	held := testkit.Value(s.service.List(t.Context(), nil))(t)
	testkit.Must(t, api.Signal(unix.SIGCONT))
	if len(held) != 1 {
		t.Errorf("without the API server, the fences are %v", held)
	}
	s.awaitReason("Released")
	s.check(h, w)
	s.checkReturned()
}

// awaitWatched changes both objects until the history has a change of each.
func (s *site) awaitWatched(h *history) {
	s.t.Helper()
	for _, of := range []dynamic.ResourceInterface{s.client.Resource(nodes), s.client.Resource(takeover.Resource).Namespace(namespace)} {
		version := ""
		testkit.EventuallyNil(s.t, "an object is changed", func() error {
			u, err := of.Get(testkit.Context(s.t), s.node(), metav1.GetOptions{})
			if err != nil {
				return err
			}
			u.SetLabels(map[string]string{"test.example.com/watched": u.GetResourceVersion()})
			if u, err = of.Update(testkit.Context(s.t), u, metav1.UpdateOptions{}); err == nil {
				version = u.GetResourceVersion()
			}
			return err
		})
		testkit.Eventually(s.t, "the history has version "+version, func() bool { return h.has(version) })
	}
}

// Each right is removed in turn. The log says which one is missing, and nothing
// goes on without it; when it is back, the controller continues by itself.
func TestMissingRights(t *testing.T) {
	s := newSite(t)
	h, w := s.watch(), s.writer(1)
	const cluster, own = "ClusterRole", "Role"
	testkit.Value(s.run("start"))(t)
	for _, c := range []struct{ role, group, resource, verb string }{
		{own, "coordination.k8s.io", "leases", "get"},
		{own, "coordination.k8s.io", "leases", "update"},
		{own, takeover.Group, "storagefenceremediations", "list"},
		{own, takeover.Group, "storagefenceremediations", "get"},
		{own, takeover.Group, "storagefenceremediations/status", "update"},
		{own, takeover.Group, "storagefenceremediations", "update"}, // the finalizer
		{cluster, "", "nodes", "list"},
		{cluster, "discovery.k8s.io", "endpointslices", "get"},
		{cluster, "", "pods", "list"},
		{cluster, "", "persistentvolumeclaims", "get"},
		{cluster, "", "persistentvolumes", "get"},
		{cluster, "storage.k8s.io", "csidrivers", "get"},
		{cluster, "storage.k8s.io", "volumeattachments", "list"},
		{cluster, "", "nodes", "update"}, // claims the node
		{cluster, "", "pods", "delete"},
	} {
		restore := s.forbid(c.role, c.group, c.resource, c.verb)
		p := s.controller()
		name, sub, _ := strings.Cut(c.resource, "/")
		if sub != "" {
			name += "/" + sub
		}
		p.WaitFor(t, fmt.Sprintf("cannot %s resource \\\"%s\\\" in API group \\\"%s\\\"", c.verb, name, c.group))
		r, n := s.remediation(), s.nodeObject()
		if c.resource == "pods" && c.verb == "delete" { // all but the last step
			if r.Status.Certificate == nil || taintOf(n) == "" || len(s.podsLeft()) != 2 {
				t.Errorf("without %s of %s: %+v", c.verb, c.resource, r.Status)
			}
		} else if r.Status.Intent != nil || taintOf(n) != "" || n.Spec.Unschedulable {
			t.Errorf("without %s of %s the node was cordoned or fenced: %+v", c.verb, c.resource, r.Status)
		}
		p.Kill()
		restore()
	}
	s.controller()
	s.awaitReason("TakenOver")
	s.check(h, w)
	s.reboot()
	s.awaitReason("Released")
	s.checkReturned()
}

// forbid removes a verb of a resource from the controller's rights, and returns
// what restores it.
func (s *site) forbid(kind, group, resource, verb string) (restore func()) {
	s.t.Helper()
	ctx := testkit.Context(s.t)
	of := schema.GroupVersionResource{Group: rbacv1.GroupName, Version: "v1", Resource: strings.ToLower(kind) + "s"}
	in := ""
	if kind == "Role" {
		in = namespace
	}
	var role *rbacv1.Role // a ClusterRole has the same rules
	for _, r := range testkit.Value(kubeobject.List[rbacv1.Role](ctx, s.client, of, in, metav1.ListOptions{}))(s.t) {
		if r.Labels["app.kubernetes.io/component"] == "takeover" && !strings.HasSuffix(r.Name, "-requests") {
			role = r
		}
	}
	if role == nil {
		s.t.Fatalf("no %s of the controller", kind)
	}
	write := func(rules []rbacv1.PolicyRule) {
		s.t.Helper()
		u := testkit.Value(s.client.Resource(of).Namespace(in).Get(testkit.Context(s.t), role.Name, metav1.GetOptions{}))(s.t)
		list := testkit.Value(runtime.DefaultUnstructuredConverter.ToUnstructured(&rbacv1.Role{Rules: rules}))(s.t)
		u.Object["rules"] = list["rules"]
		testkit.Value(s.client.Resource(of).Namespace(in).Update(testkit.Context(s.t), u, metav1.UpdateOptions{}))(s.t)
	}
	var left []rbacv1.PolicyRule
	names := []string{""}
	for _, rule := range role.Rules {
		rule = *rule.DeepCopy()
		if slices.Contains(rule.APIGroups, group) && slices.Contains(rule.Resources, resource) {
			if slices.Contains(rule.Verbs, verb) && len(rule.ResourceNames) > 0 {
				names = rule.ResourceNames
			}
			rule.Verbs = slices.DeleteFunc(rule.Verbs, func(v string) bool { return v == verb })
		}
		if len(rule.Verbs) > 0 {
			left = append(left, rule)
		}
	}
	awaitAllowed := func(want bool) {
		s.t.Helper()
		testkit.EventuallyNil(s.t, fmt.Sprintf("%s of %s is allowed: %t", verb, resource, want), func() error {
			is, err := s.isAllowed(in, group, resource, verb, names[0])
			if err == nil && is != want {
				err = fmt.Errorf("it is %t", is)
			}
			return err
		})
	}
	awaitAllowed(true)
	write(left)
	awaitAllowed(false)
	return func() {
		s.t.Helper()
		write(role.Rules)
		awaitAllowed(true)
	}
}

// isAllowed asks the API server for a right of the controller.
func (s *site) isAllowed(in, group, resource, verb, name string) (bool, error) {
	resource, sub, _ := strings.Cut(resource, "/")
	review := testkit.Value(runtime.DefaultUnstructuredConverter.ToUnstructured(&authorizationv1.SubjectAccessReview{
		TypeMeta: metav1.TypeMeta{APIVersion: "authorization.k8s.io/v1", Kind: "SubjectAccessReview"},
		Spec: authorizationv1.SubjectAccessReviewSpec{User: account, ResourceAttributes: &authorizationv1.ResourceAttributes{
			Namespace: in, Verb: verb, Group: group, Resource: resource, Subresource: sub, Name: name,
		}},
	}))(s.t)
	of := schema.GroupVersionResource{Group: "authorization.k8s.io", Version: "v1", Resource: "subjectaccessreviews"}
	u, err := s.client.Resource(of).Create(testkit.Context(s.t), &unstructured.Unstructured{Object: review}, metav1.CreateOptions{})
	if err != nil {
		return false, err
	}
	allowed, _, err := unstructured.NestedBool(u.Object, "status", "allowed")
	return allowed, err
}

// Without the CustomResourceDefinitions the controller says what is missing, and
// begins when they are installed.
func TestDefinitionsMissing(t *testing.T) {
	s := newSite(t)
	definitions := s.client.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
	s.removeRemediations()
	testkit.Must(t, definitions.Delete(testkit.Context(t), takeover.Resource.GroupResource().String(), metav1.DeleteOptions{}))
	t.Cleanup(func() { testkit.Must(t, install(context.Background())) }) // for other tests
	testkit.Eventually(t, "the definition is gone", func() bool {
		_, err := definitions.Get(testkit.Context(t), takeover.Resource.GroupResource().String(), metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	})
	p := s.controller()
	p.WaitFor(t, "no CustomResourceDefinition of StorageFenceRemediation")
	if _, err := s.run("start"); err == nil || !strings.Contains(err.Error(), "takeover.enabled") {
		t.Errorf("start without the definition: %v", err)
	}
	testkit.Must(t, install(testkit.Context(t)))
	testkit.EventuallyNil(t, "the definition is served", func() error { _, err := s.run("start"); return err })
	s.awaitReason("TakenOver")
}

// removeRemediations removes those of earlier tests, whose fences are gone with their
// services.
func (s *site) removeRemediations() {
	s.t.Helper()
	ctx := testkit.Context(s.t)
	testkit.EventuallyNil(s.t, "no remediation is left", func() error {
		list, err := s.client.Resource(takeover.Resource).List(ctx, metav1.ListOptions{})
		if err != nil || len(list.Items) == 0 {
			return err
		}
		for i := range list.Items {
			u := &list.Items[i]
			objects := s.client.Resource(takeover.Resource).Namespace(u.GetNamespace())
			u.SetFinalizers(nil)
			if _, err = objects.Update(ctx, u, metav1.UpdateOptions{}); err == nil {
				err = objects.Delete(ctx, u.GetName(), metav1.DeleteOptions{})
			}
			if err != nil && !apierrors.IsNotFound(err) {
				return err
			}
		}
		return fmt.Errorf("%d were left", len(list.Items))
	})
}
