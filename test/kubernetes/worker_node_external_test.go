//go:build soak

package kubernetes

import (
	"os"
	"testing"

	"github.com/cleatproject/cleat/test/kubernetes/cluster"
	"github.com/cleatproject/cleat/test/kubernetes/external"
)

// Kubernetes' own specs of storage that need two nodes. The pods of the specs do
// not tolerate the taint of the added node, so that it goes, and the test is alone.
func TestTwoNodesExternal(t *testing.T) {
	s := newTwoNodes(t, pairRelease)
	definitions, err := external.Definitions("external", pairRelease.name)
	if err != nil {
		t.Fatal(err)
	}
	program := suiteProgram(t, definitions)
	importSuiteImages(t, program, the.Import, s.added.Import)
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
}
