package kubernetes

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
)

// restores creates claims from a snapshot and from a claim, with pods that the
// scheduler first places on the wrong node. The provisioner rejects that node,
// and the volumes are created once the scheduler selects the source's node: by
// itself, or by the documented node selector.
func (s *twoNodes) restores() {
	s.claim("source", claim{class: "pair-ext4", size: "32Mi"})
	s.run("source", pod{mounts: map[string]string{"/data": "source"}, change: on(testCluster.Node)})
	s.exec("source", "echo kept >/data/a; sync")
	s.snapshot("source", "pair", "source")
	made := map[string]*corev1.TypedObjectReference{"clone-0": claimSource("source"), "clone-1": claimSource("source")}
	for i := range 4 {
		made[fmt.Sprintf("restored-%d", i)] = snapshotSource("source")
	}
	for name, from := range made {
		s.claim(name, claim{class: "pair-ext4", size: "32Mi", from: from})
		s.start(name, pod{mounts: map[string]string{"/data": name}, change: s.preferAdded})
	}
	for name := range made {
		s.event(name, "rpc error: code = ")
	}

	s.claim("pinned", claim{class: "pair-ext4", size: "32Mi", from: snapshotSource("source")})
	s.start("pinned", pod{mounts: map[string]string{"/data": "pinned"}, change: func(p *corev1.Pod) {
		s.preferAdded(p)
		p.Spec.NodeSelector = map[string]string{"topology.cleat.dev/node": testCluster.Node}
	}})
	made["pinned"] = nil
	s.kubectl("cordon", s.added.Name)
	defer s.kubectl("uncordon", s.added.Name)
	for name := range made {
		s.running(name)
		s.reads(name, "cat /data/a", "kept")
		if node := s.nodeOf(name); node != testCluster.Node {
			s.Errorf("pod %s runs on %s, want %s of its volume's source", name, node, testCluster.Node)
		}
	}
}

// preferAdded makes the scheduler prefer the added node.
func (s *twoNodes) preferAdded(p *corev1.Pod) {
	anywhere(p)
	p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []corev1.PreferredSchedulingTerm{{
		Weight: 100, Preference: corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{
			{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{s.added.Name}}}}}}}}
}
