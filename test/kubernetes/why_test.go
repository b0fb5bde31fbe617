package kubernetes

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/cleatproject/cleat/test/testkit"
)

// noSuchImage is in a registry that does not answer.
const noSuchImage = "localhost:1/cleat"

// absent is a driver whose image no node has.
var absent = release{name: "absent", values: `
csi:
  driverName: absent.cleat.dev
  pool: {image: 64MiB}
  storageClasses:
  - {name: absent, fsType: ext4}
`}

// Failures of docs/troubleshooting.md that no other test provokes: kubectl cleat
// why has the cause, and what helps. test/matrix/matrix.md lists all.
func TestWhy(t *testing.T) {
	t.Parallel()
	t.Cleanup(func() { // after the namespace is deleted
		if err := absent.uninstall(context.Background(), testCluster); err != nil {
			t.Error(err)
		}
	})
	testkit.Must(t, absent.install(t.Context(), testCluster, "--wait=hookOnly", "--set", "image.repository="+noSuchImage, "--set", "image.pullPolicy=IfNotPresent"))
	s := newSpace(t)
	s.waiting()
	for _, c := range []struct {
		object string
		texts  []string // in the answer: what it read, the cause, what helps
	}{
		{"pvc/unused", []string{"no pod uses it yet. That is expected", "start a pod that uses the claim"}},
		{"pod/misspelt", []string{"Its storage class cleet does not exist. A misspelt class", "kubectl get storageclass"}},
		{"pod/shared", []string{"pod has unbound immediate PersistentVolumeClaims", "use a SINGLE_NODE mode", "ReadWriteMany or ReadOnlyMany", "ReadWriteOnce or ReadWriteOncePod"}},
		{"pvc/early", []string{"snapshot early, is not ready", "The claim has no volume", "start its first pod"}},
		{"pvc/wrong", []string{"snapshot wrong, is not ready", "A misspelt class", "kubectl get volumesnapshotclass"}},
		{"pvc/nowhere", []string{"It waits for pod " + s.name + "/nowhere", "node(s) did not have enough free storage", "No node has a pool with this free capacity", "get csistoragecapacities"}},
		{"pvc/placed", []string{"The driver is not registered with the kubelet", "The image is not on this node", "annotate pvc placed volume.kubernetes.io/selected-node-"}},
		{"pod/inline", []string{"It waits for driver absent.cleat.dev on node node-1. The driver is not registered", "The image is not on this node", "import it", "describe pod absent-cleat-csi-node-"}},
		{"pod/image", []string{"The image of container c is not on node node-1, and cannot be pulled", "describe pod image"}},
		{"pod/held", []string{"It is deleted when its finalizers are removed: example.com/hold", "describe pod held"}},
		{"pod/slow", []string{"more to end (grace period)", "describe pod slow"}},
		{"pvc/used", []string{"It is deleted when no pod uses it any more: pod slow does", "delete pod slow"}},
	} {
		s.why(c.object, c.texts...)
	}
}

// waiting creates objects that wait, and deletes those that are to wait for their
// end.
func (s *space) waiting() {
	s.Helper()
	other := func(image string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			c := &p.Spec.Containers[0]
			c.Image, c.ImagePullPolicy = image, corev1.PullIfNotPresent
		}
	}
	s.start("image", pod{change: other(noSuchImage)})
	s.start("inline", pod{change: inline("absent.cleat.dev", map[string]map[string]string{"data": nil})})
	s.claim("used", claim{class: "local-ext4", size: "16Mi"})
	s.start("slow", pod{mounts: map[string]string{"/data": "used"}, command: "trap '' TERM; until [ -e /tmp/end ]; do sleep 1; done"})

	s.claim("unused", claim{class: "local-ext4", size: "16Mi"})
	s.createSnapshot("early", "local", "unused")
	s.claim("early", claim{class: "local-ext4", size: "16Mi", from: snapshotSource("early")})
	s.createSnapshot("wrong", "locel", "unused")
	s.claim("wrong", claim{class: "local-ext4", size: "16Mi", from: snapshotSource("wrong")})
	s.claim("misspelt", claim{class: "cleet", size: "16Mi"})
	s.start("misspelt", pod{mounts: map[string]string{"/data": "misspelt"}})
	s.claim("shared", claim{class: s.class(perNodeDriver, nil, immediate), size: "16Mi", modes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}})
	s.start("shared", pod{mounts: map[string]string{"/data": "shared"}})
	s.claim("placed", claim{class: "absent", size: "16Mi", node: testCluster.Node})
	s.claim("nowhere", claim{class: "absent", size: "16Mi"})
	s.start("nowhere", pod{mounts: map[string]string{"/data": "nowhere"}})

	s.Cleanup(func() { // the deletion of the namespace needs this
		for _, args := range [][]string{
			{"delete", "volumesnapshot", "early", "wrong", "--wait"},
			// snapshot-controller leaves its finalizer if it could not create a content.
			{"patch", "pvc", "unused", "--type=merge", "-p", `{"metadata":{"finalizers":null}}`},
			{"patch", "pod", "held", "--type=merge", "-p", `{"metadata":{"finalizers":null}}`}, {"exec", "slow", "--", "/bin/sh", "-c", ">/tmp/end"},
		} {
			if _, err := testCluster.Kubectl(context.Background(), "", append([]string{"-n", s.name}, args...)...); err != nil {
				s.Error(err)
			}
		}
	})
	s.start("held", pod{change: func(p *corev1.Pod) { p.Finalizers = []string{"example.com/hold"} }})
	s.kubectl("delete", "pod", "held", "--wait=false")
	s.running("slow")
	s.kubectl("delete", "pod", "slow", "--grace-period=3600", "--wait=false")
	s.kubectl("delete", "pvc", "used", "--wait=false")
}
