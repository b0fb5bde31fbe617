package ceph

import (
	"testing"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/test/testkit"
)

// The classes of Rook's examples work with another provisioner name. The
// sidecars remove parameters that begin with csi.storage.k8s.io/.
func TestClassesOfRook(t *testing.T) {
	s, err := parseSettings(map[string]string{
		"clusterID": "rook-ceph", "pool": "replicapool", "imageFormat": "2", "imageFeatures": "layering",
	}, "rook-ceph", []string{"replicapool"})
	testkit.Must(t, err)
	if s.pool != "replicapool" || len(s.features) != 1 || s.features[0] != "layering" {
		t.Errorf("settings %+v", s)
	}
	for key, words := range map[string]string{
		"tryOtherMounters": "", "cephLogDir": "", "volumeNamePrefix": "remove it", "stripeUnit": "remove it", "stripeCount": "remove it", "topologyConstrainedPools": "class for each pool",
	} {
		if _, err := parseSettings(map[string]string{key: "true"}, "c", []string{"p"}); words != "" {
			testkit.WantError(t, key, err, errs.Invalid, words)
		} else if err != nil {
			t.Errorf("%s: %v", key, err)
		}
	}
	testkit.Must(t, checkSnapshotParameters(map[string]string{"clusterID": "rook-ceph"}, "rook-ceph"), checkSnapshotParameters(nil, "rook-ceph"))
	for key, words := range map[string]string{
		"clusterID": "which is \"rook-ceph\"", "snapshotNamePrefix": "remove it", "pool": "remove it", "other": "only clusterID",
	} {
		testkit.WantError(t, key, checkSnapshotParameters(map[string]string{key: "x"}, "rook-ceph"), errs.Invalid, words)
	}
}
