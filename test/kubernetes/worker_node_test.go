package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cleatproject/cleat/test/kubernetes/cluster"
	"github.com/cleatproject/cleat/test/testkit"
)

// pairRelease is a driver with a pool on each of two nodes.
var pairRelease = release{name: "pair", bothNodes: true, values: `
csi:
  driverName: pair.cleat.dev
  pool: {image: 1GiB, overprovisionRatio: 100}
  snapshots: {enabled: true}
  storageClasses:
  - {name: pair-ext4, fsType: ext4}
  - {name: pair-xfs, fsType: xfs}
  - {name: pair-thick, fsType: xfs, parameters: {provisioning: thick}}
  volumeSnapshotClasses:
  - {name: pair}
`}

const pairDriver = "pair.cleat.dev"

// twoNodes is a namespace in a cluster with two nodes, both with the driver of
// pairRelease.
type twoNodes struct {
	*reader
	added *cluster.Node
}

// newTwoNodes adds the node and installs the releases. The cleanup removes them
// and checks that nothing is left on the node.
func newTwoNodes(t *testing.T, releases ...release) *twoNodes {
	t.Helper()
	began := time.Now()
	added, err := testCluster.AddNode(t.Context())
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), waitTimeout)
		defer cancel()
		if err := added.Remove(ctx); err != nil {
			t.Error(err)
		}
	})
	testkit.Must(t, err)
	t.Logf("%s is ready after %.1f s", added.Name, time.Since(began).Seconds())
	for _, archive := range []string{"cleat.tar", "others.tar"} {
		testkit.Must(t, added.Import(t.Context(), filepath.Join(testCluster.Dir, archive)))
	}
	t.Logf("images imported after %.1f s", time.Since(began).Seconds())
	for _, r := range releases {
		t.Cleanup(func() {
			ctx, cancel := context.WithTimeout(context.Background(), waitTimeout)
			defer cancel()
			if t.Failed() {
				t.Log(describePods(ctx, testCluster, system))
			}
			if err := errors.Join(r.uninstall(ctx, testCluster), checkNothingLeftOn(added)); err != nil {
				t.Error(err)
			}
		})
		testkit.Must(t, r.install(t.Context(), testCluster))
	}
	t.Logf("the drivers run after %.1f s", time.Since(began).Seconds())
	return &twoNodes{reader: newReader(t), added: added}
}

// with returns the same namespace for a subtest.
func (s *twoNodes) with(t *testing.T) *twoNodes {
	r := *s.reader
	r.space = &space{T: t, name: s.name}
	return &twoNodes{reader: &r, added: s.added}
}

// checkNothingLeftOn returns an error if volumes or mounts of drivers are left
// on a node.
func checkNothingLeftOn(n *cluster.Node) error {
	failed := []error{poolsEmpty(n.Path("/"))}
	mounts, err := os.ReadFile(n.Path("/proc/1/mountinfo"))
	failed = append(failed, err)
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, " /var/lib/kubelet/plugins/") {
			failed = append(failed, fmt.Errorf("left-over mount on %s: %s", n.Name, line))
		}
	}
	return errors.Join(failed...)
}

// anywhere allows a pod on both nodes.
func anywhere(p *corev1.Pod) {
	p.Spec.Tolerations = append(p.Spec.Tolerations, corev1.Toleration{Key: cluster.Added, Operator: corev1.TolerationOpExists})
}

// on allows a pod only on one node.
func on(node string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		anywhere(p)
		p.Spec.NodeSelector = map[string]string{corev1.LabelHostname: node}
	}
}

// nodeOf returns the node of a pod.
func (s *space) nodeOf(name string) string {
	s.Helper()
	p := testkit.Value(testCluster.Client.CoreV1().Pods(s.name).Get(s.Context(), name, metav1.GetOptions{}))(s)
	return p.Spec.NodeName
}
