package kubernetes

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// restores creates claims from a snapshot and from a claim, with pods that the
// scheduler prefers to place on the wrong node, or on the one with the most free
// capacity (from Kubernetes 1.37 on). All run on the source's node, without a
// node selector.
func (s *twoNodes) restores() {
	s.claim("source", claim{class: "pair-ext4", size: "32Mi"})
	s.run("source", pod{mounts: map[string]string{"/data": "source"}, change: on(testCluster.Node)})
	s.exec("source", "echo kept >/data/a; sync")
	s.snapshot("source", "pair", "source")
	s.claim("unequal", claim{class: "pair-thick", size: "300Mi"}) // the source's node has less free capacity
	s.run("unequal", pod{mounts: map[string]string{"/data": "unequal"}, change: on(testCluster.Node)})

	began := time.Now()
	for i := range 10 {
		name, from, change := fmt.Sprintf("restored-%d", i), snapshotSource("source"), anywhere
		if i%2 == 0 {
			change = s.preferAdded
		}
		if i >= 8 {
			from = claimSource("source")
		}
		s.claim(name, claim{class: "pair-ext4", size: "32Mi", from: from})
		s.start(name, pod{mounts: map[string]string{"/data": name}, change: change})
	}
	for i := range 10 {
		name := fmt.Sprintf("restored-%d", i)
		s.running(name)
		s.reads(name, "cat /data/a", "kept")
		if node := s.nodeOf(name); node != testCluster.Node {
			s.Errorf("pod %s runs on %s, want %s of its volume's source", name, node, testCluster.Node)
		}
	}
	s.Logf("ten restores and clones run after %.1f s", time.Since(began).Seconds())

	// The source's node is cordoned: an event says so, and nothing is placed
	// elsewhere.
	s.kubectl("cordon", testCluster.Node)
	s.Cleanup(func() { // other tests need the node
		if _, err := testCluster.Kubectl(context.Background(), "", "uncordon", testCluster.Node); err != nil {
			s.Error(err)
		}
	})
	s.claim("waits", claim{class: "pair-ext4", size: "32Mi", from: snapshotSource("source")})
	s.start("waits", pod{mounts: map[string]string{"/data": "waits"}, change: anywhere})
	s.event("waits", "snapshot source is on node "+testCluster.Node+", which is cordoned")
	s.kubectl("uncordon", testCluster.Node)
	s.running("waits")
	s.reads("waits", "cat /data/a", "kept")
}

// preferAdded makes the scheduler prefer the added node.
func (s *twoNodes) preferAdded(p *corev1.Pod) {
	anywhere(p)
	p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []corev1.PreferredSchedulingTerm{{
		Weight: 100, Preference: corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{
			{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{s.added.Name}}}}}}}}
}
