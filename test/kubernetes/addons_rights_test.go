package kubernetes

import (
	"context"
	"crypto/tls"
	"slices"
	"strings"
	"testing"

	"github.com/csi-addons/spec/lib/go/identity"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/cleatproject/cleat/test/testkit"
)

// Each sidecar's service account is allowed exactly what it needs. right is
// "verb group/resource name", with @NAMESPACE if not in the releases'
// namespace.
func testAddonsRights(t *testing.T) {
	for account, own := range map[string]struct{ lease, secret string }{
		"direct-cleat-csi-node":       {"direct-cleat-dev-csi-addons", "direct-cleat-csi-addons"},
		"direct-cleat-csi-controller": {"direct-cleat-dev-csi-addons", "direct-cleat-csi-addons"},
		"each-cleat-csi-node":         {"each-cleat-dev-csi-addons", "each-cleat-csi-addons"},
		"storage-cleat-fence":         {"fence-cleat-dev-csi-addons", "storage-cleat-fence-addons"},
	} {
		rights := map[string]bool{
			"create authentication.k8s.io/tokenreviews":         true,
			"get csiaddons.openshift.io/csiaddonsnodes":         true,
			"watch csiaddons.openshift.io/csiaddonsnodes":       true,
			"create csiaddons.openshift.io/csiaddonsnodes":      true,
			"update csiaddons.openshift.io/csiaddonsnodes":      true,
			"delete csiaddons.openshift.io/csiaddonsnodes":      false,
			"get csiaddons.openshift.io/csiaddonsnodes@default": false,
			"get csiaddons.openshift.io/networkfences":          false,
			"update csiaddons.openshift.io/networkfences":       false,
			"get /pods":                         true,
			"list /pods":                        false,
			"create /pods":                      false,
			"create /pods/exec":                 false,
			"get /pods@default":                 false,
			"get apps/replicasets":              true,
			"update apps/daemonsets":            false,
			"create /events":                    true,
			"create coordination.k8s.io/leases": true,
			"update coordination.k8s.io/leases " + own.lease:   true,
			"update coordination.k8s.io/leases other":          false,
			"get /secrets " + own.secret:                       true,
			"get /secrets fencing":                             false,
			"list /secrets":                                    false,
			"update /secrets " + own.secret:                    false,
			"get /secrets@default":                             false,
			"get /configmaps":                                  false,
			"create authorization.k8s.io/subjectaccessreviews": false,
			"impersonate /users":                               false,
		}
		if account == "direct-cleat-csi-controller" { // the resizer in the same pod lists all pods
			delete(rights, "list /pods")
			delete(rights, "get /pods@default")
		}
		if account == "storage-cleat-fence" || account == "direct-cleat-csi-node" { // no storage sidecars
			for _, none := range []string{"get /persistentvolumes", "get /persistentvolumeclaims", "get /nodes", "get storage.k8s.io/csinodes"} {
				rights[none] = false
			}
		}
		for right, want := range rights {
			if got := isAllowed(t, account, right); got != want {
				t.Errorf("%s %s: got allowed %t", account, right, got)
			}
		}
	}
}

// isAllowed asks the API server about a permission.
func isAllowed(t *testing.T, account, right string) bool {
	t.Helper()
	words := strings.Fields(right)
	what, namespace, elsewhere := strings.Cut(words[1], "@")
	if !elsewhere {
		namespace = system
	}
	group, resource, _ := strings.Cut(what, "/")
	resource, sub, _ := strings.Cut(resource, "/")
	a := &authorizationv1.ResourceAttributes{Verb: words[0], Group: group, Resource: resource, Subresource: sub, Namespace: namespace}
	if len(words) > 2 {
		a.Name = words[2]
	}
	r := testkit.Value(testCluster.Client.AuthorizationV1().SubjectAccessReviews().Create(t.Context(), &authorizationv1.SubjectAccessReview{
		Spec: authorizationv1.SubjectAccessReviewSpec{
			User: "system:serviceaccount:" + system + ":" + account, ResourceAttributes: a,
			Groups: []string{"system:serviceaccounts", "system:serviceaccounts:" + system, "system:authenticated"},
		},
	}, metav1.CreateOptions{}))(t)
	return r.Status.Allowed
}

// No sidecar was denied any request.
func testAddonsComplaints(t *testing.T) {
	s := &space{T: t, name: system}
	for _, r := range []release{directRelease, eachRelease, storageRelease} {
		s.noDenials(r, "Listening for CSI-Addons requests", notPlacement, "--container=csi-addons")
	}
}

// The processes' capabilities according to the kernel.
func testAddonsProcesses(t *testing.T) {
	s := &space{T: t, name: system}
	for _, test := range []struct {
		words []string
		count int
		caps  string
	}{
		{[]string{"csi-addons-sidecar", "--namespace=" + system}, 4, "0000000000000000"},
		// CAP_DAC_READ_SEARCH (2), CAP_NET_ADMIN (12), CAP_SYS_PTRACE (19)
		{[]string{"cleat", "fence", "serve", "--name=fence.cleat.dev"}, 1, "0000000000081004"},
	} {
		for _, pid := range s.processesOf(test.count, test.words...) {
			fields := kernelStatus(t, pid)
			for key, want := range map[string]string{
				"Uid": "0 0 0 0", "CapEff": test.caps, "CapPrm": test.caps, "CapBnd": test.caps, "CapAmb": "0000000000000000",
				"NoNewPrivs": "1", "Seccomp": "2",
			} {
				if fields[key] != want {
					t.Errorf("%s has %s %s, want %s", test.words[0], key, fields[key], want)
				}
			}
			if !hasReadOnlyRoot(t, pid) {
				t.Errorf("%s has a writable root file system", test.words[0])
			}
		}
	}
}

// The sidecar accepts calls with any token of the cluster, and none without. A
// NetworkPolicy therefore limits its port to the manager; nothing in this
// cluster enforces the policy.
func testAddonsTokens(t *testing.T) {
	s := &addons{newSpace(t)}
	pods, err := testCluster.Client.CoreV1().Pods(system).List(t.Context(), metav1.ListOptions{LabelSelector: "app.kubernetes.io/instance=direct"})
	if err != nil || len(pods.Items) != 2 {
		t.Fatalf("got %d pods of the release (%v)", len(pods.Items), err)
	}
	account := testkit.Value(testCluster.Client.CoreV1().ServiceAccounts(s.name).CreateToken(t.Context(), "default", &authenticationv1.TokenRequest{}, metav1.CreateOptions{}))(t)
	policies := testkit.Value(testCluster.Client.NetworkingV1().NetworkPolicies(system).List(t.Context(), metav1.ListOptions{LabelSelector: "app.kubernetes.io/instance=direct"}))(t)
	for _, p := range pods.Items {
		address := p.Status.PodIP + ":9070"
		for token, want := range map[string]codes.Code{"": codes.Unauthenticated, "Bearer " + strings.Repeat("x", 20): codes.Unauthenticated, "Bearer " + account.Status.Token: codes.OK} {
			if got := callSidecar(t.Context(), address, token); status.Code(got) != want {
				t.Errorf("token of %d bytes: got %v, want %v", len(token), got, want)
			}
		}
		ports := openPorts(t, policies.Items, labels.Set(p.Labels))
		if !slices.Equal(ports, []string{"9070 from " + managerNamespace}) {
			t.Errorf("%s has open ports %q", p.Name, ports)
		}
	}
	manager, err := testCluster.Client.CoreV1().Namespaces().Get(t.Context(), managerNamespace, metav1.GetOptions{})
	if err != nil || manager.Labels["kubernetes.io/metadata.name"] != managerNamespace {
		t.Errorf("the manager's namespace has labels %v (%v)", manager.Labels, err)
	}
}

// openPorts returns the ports that policies open for pods, and for which
// sources.
func openPorts(t *testing.T, policies []networkingv1.NetworkPolicy, pod labels.Set) (ports []string) {
	t.Helper()
	selected := false
	for _, p := range policies {
		selector := testkit.Value(metav1.LabelSelectorAsSelector(&p.Spec.PodSelector))(t)
		if !selector.Matches(pod) {
			continue
		}
		selected = true
		for _, rule := range p.Spec.Ingress {
			for _, port := range rule.Ports {
				for _, from := range rule.From {
					ports = append(ports, port.Port.String()+" from "+from.NamespaceSelector.MatchLabels["kubernetes.io/metadata.name"])
				}
			}
		}
	}
	if !selected {
		t.Errorf("no policy selects the pod with %v", pod)
	}
	return ports
}

// callSidecar calls a sidecar like its manager, which does not verify the
// certificate either.
func callSidecar(ctx context.Context, address, authorization string) error {
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{InsecureSkipVerify: true})))
	if err != nil {
		return err
	}
	defer conn.Close()
	if authorization != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", authorization)
	}
	ctx, cancel := context.WithTimeout(ctx, waitTimeout)
	defer cancel()
	_, err = identity.NewIdentityClient(conn).GetCapabilities(ctx, &identity.GetCapabilitiesRequest{}, grpc.WaitForReady(true)) // it can be restarting
	return err
}
