package kubernetes

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"strconv"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/configmap"
	"github.com/cleatproject/cleat/internal/store"
	"github.com/cleatproject/cleat/internal/store/storetest"
	"github.com/cleatproject/cleat/test/testkit"
)

// TestStateInConfigMap: the API server gives what store.Object promises, to a
// service account with the rules in the package's documentation.
func TestStateInConfigMap(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	kubeconfig := s.stateAccount("state")
	open := func(name string) *configmap.Object {
		return testkit.Value(configmap.New(configmap.Config{Kubeconfig: kubeconfig, Namespace: s.name, Name: name}))(s)
	}
	configMaps := testCluster.Client.CoreV1().ConfigMaps(s.name)
	storetest.Run(t, store.ErrChanged, func(t *testing.T) func() storetest.Handle {
		t.Cleanup(func() { s.kubectl("delete", "configmap", "state") })
		return func() storetest.Handle { return open("state") }
	})

	// The API server accepts what the limit allows.
	o := open("state")
	random := make([]byte, 940_000)
	testkit.Value(rand.Read(random))(t)
	value := map[string][]byte{"a/x": []byte(strconv.Quote(hex.EncodeToString(random)))}
	testkit.Must(t, o.WriteState(t.Context(), 0, value, nil))
	m := testkit.Value(configMaps.Get(t.Context(), "state", metav1.GetOptions{}))(t)
	if n := len(m.BinaryData["state"]); n < 900_000 {
		t.Errorf("the state has %d bytes, want nearly the limit", n)
	}

	// Labels of others are kept; the next write reads them first. A watch shows
	// whether the state of the last read or write still counts.
	var watching sync.WaitGroup
	ctx, stop := context.WithCancel(t.Context())
	watching.Go(func() {
		o.Watch(ctx, func(err error) {
			if errs.KindOf(err) != errs.Unavailable { // as while the cache of the API server lacks the version that was read
				t.Errorf("watch: %v", err)
			}
		})
	})
	defer watching.Wait()
	defer stop()
	isRecent := func() bool { _, ok := o.RecentState(); return ok }
	generation, _, err := o.ReadState(t.Context())
	testkit.Must(t, err)
	testkit.Eventually(t, "the watch shows the version that was read", isRecent)
	s.kubectl("label", "configmap", "state", "team=storage")
	testkit.Eventually(t, "the watch shows the change", func() bool { return !isRecent() })
	testkit.WantError(t, "write after a change", o.WriteState(t.Context(), generation, nil, []string{"a/x"}), store.ErrChanged)
	testkit.Must(t, o.WriteState(t.Context(), generation, nil, []string{"a/x"}))
	m = testkit.Value(configMaps.Get(t.Context(), "state", metav1.GetOptions{}))(t)
	if m.Labels["team"] != "storage" || m.Labels["app.kubernetes.io/managed-by"] != "cleat" {
		t.Errorf("labels %v", m.Labels)
	}

	s.kubectl("delete", "configmap", "state")
	generation, _, err = open("state").ReadState(t.Context())
	if err != nil || generation != 0 {
		t.Errorf("deleted: generation %d, %v", generation, err)
	}
	testkit.WantError(t, "deleted", o.WriteState(t.Context(), generation+1, value, nil), store.ErrChanged)
	s.kubectl("create", "configmap", "state", "--from-literal=key=value")
	testkit.WantError(t, "another program's", testkit.Err(store.OpenShared(t.Context(), "state", o, store.Options{Role: "engine", Version: 1})), errs.Precondition, "another program")
	testkit.WantError(t, "another name", open("other").WriteState(t.Context(), 0, value, nil), errs.Denied, "get, update and watch")
}

// stateAccount creates a service account for the ConfigMap of a name and
// returns a kubeconfig for it.
func (s *space) stateAccount(name string) string {
	s.Helper()
	s.apply(fmt.Sprintf(`apiVersion: v1
kind: ServiceAccount
metadata: {name: %[1]s}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: %[1]s}
rules:
- {apiGroups: [""], resources: [configmaps], verbs: [create]}
- {apiGroups: [""], resources: [configmaps], resourceNames: [%[1]s], verbs: [get, update, watch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: %[1]s}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: %[1]s}
subjects: [{kind: ServiceAccount, name: %[1]s, namespace: %[2]s}]
`, name, s.name))
	config := testkit.Value(clientcmd.LoadFromFile(testCluster.Kubeconfig))(s)
	for _, user := range config.AuthInfos {
		user.Impersonate = "system:serviceaccount:" + s.name + ":" + name
	}
	path := s.TempDir() + "/kubeconfig"
	testkit.Must(s, clientcmd.WriteToFile(*config, path))
	return path
}
