//go:build soak

package kubernetes

import (
	"context"
	"fmt"
	"os"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cleatproject/cleat/test/kubernetes/cluster"
	"github.com/cleatproject/cleat/test/kubernetes/external"
	"github.com/cleatproject/cleat/test/testkit"
)

// Kubernetes' storage specs that need two nodes. Their pods do not tolerate the
// taint of the added node, so the taint is removed and the test runs alone.
func TestTwoNodesExternal(t *testing.T) {
	s := newTwoNodes(t, pairRelease)
	definitions := testkit.Value(external.Definitions("external", pairRelease.name))(t)
	program := suiteProgram(t, definitions)
	importSuiteImages(t, program, testCluster.Import, s.added.Import)
	s.sh("kubectl taint node " + s.added.Name + " " + cluster.Added + "-")
	var specs []external.Spec
	for _, name := range []string{
		"[Testpattern: Dynamic PV (delayed binding)] topology should provision a volume and schedule a pod with AllowedTopologies",
		"[Testpattern: Dynamic PV (delayed binding)] topology should fail to schedule a pod which has topologies that conflict with AllowedTopologies",
		"[Testpattern: Dynamic PV (default fs)] provisioning should provision correct filesystem size when restoring snapshot to larger size pvc [Feature:VolumeSnapshotDataSource]",
	} {
		specs = append(specs, external.Spec{Driver: pairDriver, Name: name})
	}
	for _, r := range program.Run(t.Context(), specs, len(specs), 1, os.Stdout) {
		if r.State != external.Passed {
			t.Errorf("%s: %s: %s\n%s", r.Name, r.State, r.Message, r.Location)
		}
	}
	s.until("deletion of the specs' volumes", func(ctx context.Context) error {
		all, err := testCluster.Client.CoreV1().PersistentVolumes().List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, v := range all.Items {
			if v.Spec.CSI != nil && v.Spec.CSI.Driver == pairDriver {
				return fmt.Errorf("volume %s is %s", v.Name, v.Status.Phase)
			}
		}
		return nil
	})
}
