//go:build nodehealthcheck

package takeover

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/cleatproject/cleat/test/fence/rig"
	"github.com/cleatproject/cleat/test/testkit"
)

// nodeHealthCheckVariable names a checkout of github.com/medik8s/node-healthcheck-operator
// with its program built there (go build -o manager ./cmd). Module proxies do not
// serve it, so CI does not run these tests:
//
//	CLEAT_TEST_NODE_HEALTHCHECK=DIRECTORY go test -tags nodehealthcheck -run NodeHealthCheck ./test/takeover
const nodeHealthCheckVariable = "CLEAT_TEST_NODE_HEALTHCHECK"

// NodeHealthCheck's own program, unmodified and with its rights, asks for the
// takeover of a node that is NotReady, and deletes the remediation when the node is
// Ready.
func TestNodeHealthCheck(t *testing.T) {
	s := newSite(t)
	s.startNodeHealthCheck("remediationTemplate: {" + templateReference + "}")
	h, w := s.watch(), s.writer(1)
	s.controller()
	s.awaitReason("TakenOver")
	r := s.remediation()
	if owner := r.OwnerReferences; len(owner) != 1 || owner[0].Kind != "NodeHealthCheck" {
		t.Errorf("owners of the remediation: %+v", owner)
	}
	s.check(h, w)

	s.reboot()
	testkit.Eventually(t, "NodeHealthCheck has deleted the remediation, and it is gone", func() bool { return s.remediation() == nil })
	s.checkReturned()
}

// NodeHealthCheck ends a remediation that takes longer than its time-out: no taint
// is set from then on.
func TestNodeHealthCheckTimeOut(t *testing.T) {
	s := newSite(t)
	s.startNodeHealthCheck("escalatingRemediations: [{order: 1, timeout: 60s, remediationTemplate: {" + templateReference + "}}]")
	w := s.writer(1)
	testkit.Must(t, s.service.Kill()) // so that the takeover waits
	s.controller()
	s.awaitReason("SourceUnavailable")
	s.awaitTimeOut()
	s.awaitReason("TimedOut")
	s.serve()
	testkit.Must(t, w.Await(testkit.Context(t), 20))
	if n := s.nodeObject(); taintOf(n) != "" || len(s.podsLeft()) != 2 || !strings.HasPrefix(s.reason(), "TimedOut:") {
		t.Errorf("after the time-out the node is tainted or lost its pods: %+v", n.Spec)
	}
}

// awaitTimeOut waits for the annotation by which NodeHealthCheck ends a remediation,
// for longer than the time-out that it allows.
func (s *site) awaitTimeOut() {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), 5*time.Minute)
	defer cancel()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for s.remediation().Annotations["remediation.medik8s.io/nhc-timed-out"] == "" {
		select {
		case <-tick.C:
		case <-ctx.Done():
			s.t.Fatal("NodeHealthCheck has not ended the remediation")
		}
	}
}

const templateReference = "apiVersion: remediation.cleat.dev/v1alpha1, kind: StorageFenceRemediationTemplate, name: cleat, namespace: " + namespace

// startNodeHealthCheck runs the operator, with a health check for the site's nodes.
func (s *site) startNodeHealthCheck(remediations string) {
	s.t.Helper()
	source := os.Getenv(nodeHealthCheckVariable)
	if source == "" {
		s.t.Fatalf("%s is not set", nodeHealthCheckVariable)
	}
	for _, file := range []string{"config/crd/bases/remediation.medik8s.io_nodehealthchecks.yaml", "config/rbac/role.yaml"} {
		testkit.Must(s.t, apply(s.t.Context(), testkit.Value(os.ReadFile(filepath.Join(source, file)))(s.t)))
	}
	// A cluster aggregates the roles that the chart labels for the operator.
	text := ""
	for _, role := range []string{"manager-role", s.requestsRole()} {
		text += fmt.Sprintf(`
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: test-%[1]s}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: %[1]s}
subjects: [{kind: User, apiGroup: rbac.authorization.k8s.io, name: %[2]q}]
`, role, healthCheckAccount)
	}
	text += fmt.Sprintf(`
---
apiVersion: remediation.cleat.dev/v1alpha1
kind: StorageFenceRemediationTemplate
metadata: {name: cleat, namespace: %s}
spec: {template: {spec: {}}}
---
apiVersion: remediation.medik8s.io/v1alpha1
kind: NodeHealthCheck
metadata: {name: %s}
spec:
  minHealthy: 1
  selector: {matchLabels: {test.example.com/site: %[2]s}}
  unhealthyConditions: [{type: Ready, status: Unknown, duration: 1s}]
  %s
`, namespace, s.name, remediations)
	testkit.Must(s.t, apply(s.t.Context(), []byte(text)))
	checks := s.client.Resource(schema.GroupVersionResource{Group: "remediation.medik8s.io", Version: "v1alpha1", Resource: "nodehealthchecks"})
	s.t.Cleanup(func() { testkit.Must(s.t, checks.Delete(testkit.Context(s.t), s.name, metav1.DeleteOptions{})) })

	dir := rig.Dir(s.t)
	certificates := filepath.Join(dir, "k8s-webhook-server", "serving-certs") // of a webhook that is not registered
	files := s.authority.Files(s.t, nil, "127.0.0.1")
	testkit.Must(s.t, os.MkdirAll(certificates, 0o700))
	testkit.Must(s.t, os.Symlink(files.Cert, filepath.Join(certificates, "tls.crt")))
	testkit.Must(s.t, os.Symlink(files.Key, filepath.Join(certificates, "tls.key")))
	cmd := exec.Command(filepath.Join(source, "manager"), "--leader-elect=false", "--metrics-bind-address=0", "--health-probe-bind-address=0")
	cmd.Env = append(os.Environ(), "KUBECONFIG="+testkit.Value(api.Kubeconfig(healthCheckAccount))(s.t), "TMPDIR="+dir, "DEPLOYMENT_NAMESPACE="+namespace)
	testkit.Start(s.t, cmd)
}

// requestsRole is the chart's role for what asks for takeovers.
func (s *site) requestsRole() string {
	s.t.Helper()
	roles := s.client.Resource(schema.GroupVersionResource{Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "clusterroles"})
	list := testkit.Value(roles.List(testkit.Context(s.t), metav1.ListOptions{LabelSelector: "rbac.ext-remediation/aggregate-to-ext-remediation=true"}))(s.t)
	if len(list.Items) != 1 {
		s.t.Fatalf("%d roles are labelled for NodeHealthCheck", len(list.Items))
	}
	return list.Items[0].GetName()
}
