package kubernetes

import (
	"context"
	"errors"
	"strings"

	"github.com/cleatproject/cleat/test/testkit"
)

// topologyChanged changes a value of csi.topology. The kubelet rejects the
// driver, since the node has the old value as a label, and the rollout stops
// until the old value is restored.
func (s *twoNodes) topologyChanged() {
	changed := farRelease
	changed.values = strings.Replace(farRelease.values, "zone: a", "zone: b", 1)
	testkit.Must(s, changed.install(s.Context(), testCluster, "--wait=hookOnly"))
	s.until("the kubelet's rejection in the driver's log", func(ctx context.Context) error {
		log, err := testCluster.Kubectl(ctx, "", "-n", system, "logs", "daemonset/far-cleat-csi-node", "-c", "driver", "--tail=20")
		if err == nil && !strings.Contains(log, "topology value collision") {
			err = errors.New(log)
		}
		return err
	})
	if err := podsReady(s.Context(), farRelease.name); err == nil {
		s.Error("the pods of the release are ready with a zone that differs from their node's")
	}
	testkit.Must(s, farRelease.install(s.Context(), testCluster))
}
