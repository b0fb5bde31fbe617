package kubernetes

import (
	"strings"
	"testing"

	"github.com/cleatproject/cleat/test/testkit"
)

// A cluster has one snapshot-controller and one set of CRDs: a release that would
// add a second one is refused, and also one that finds CRDs of others.
func TestSnapshotControllerOfOthers(t *testing.T) {
	refused := func(name, want string) {
		t.Helper()
		out, err := testCluster.Helm(t.Context(), "upgrade", "--install", name, chart, "--namespace", system, "--dry-run=server",
			"--set", "csi.enabled=false,snapshotController.enabled=true")
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("release %s: want an error with %q, got %v\n%s", name, want, err, out)
		}
	}
	refused("second", "Deployment cleat-system/local-cleat-snapshot-controller is a snapshot-controller already")
	if out, err := testCluster.Helm(t.Context(), "upgrade", "local", chart, "--namespace", system, "--dry-run=server", "--reset-then-reuse-values"); err != nil {
		t.Errorf("the release that has it: %v\n%s", err, out)
	}
	label := func(value string) {
		testkit.Value(testCluster.Kubectl(t.Context(), "", "label", "--overwrite", "crd", "volumesnapshots.snapshot.storage.k8s.io", "app.kubernetes.io/part-of"+value))(t)
	}
	label("-")
	refused("local", "the CRD volumesnapshots.snapshot.storage.k8s.io exists and is not of this chart")
	label("=cleat")
}
