package placement

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func inPool(nodes ...string) *corev1.NodeSelector {
	s := &corev1.NodeSelector{}
	for _, n := range nodes {
		s.NodeSelectorTerms = append(s.NodeSelectorTerms, corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{
			{Key: "zone", Operator: corev1.NodeSelectorOpExists}, {Key: NodeKey, Operator: corev1.NodeSelectorOpIn, Values: []string{n}}}})
	}
	return s
}

func testNode(change ...func(*corev1.Node)) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a", Labels: map[string]string{NodeKey: "a", "zone": "z1", "disk": "fast"}}}
	for _, c := range change {
		c(n)
	}
	return n
}

func tainted(key string, effect corev1.TaintEffect) func(*corev1.Node) {
	return func(n *corev1.Node) { n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: key, Effect: effect}) }
}

func testPod(name string, change ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "apps"}}
	for _, c := range change {
		c(p)
	}
	return p
}

func TestObstacle(t *testing.T) {
	selects := func(key, value string) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{key: value} }
	}
	tolerates := func(p *corev1.Pod) { p.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}} }
	plain := []consumer{{pod: testPod("p")}}
	besides := func(n neighbor) []consumer { return []consumer{{pod: testPod("p"), neighbors: []neighbor{n}}} }
	for name, c := range map[string]struct {
		node      *corev1.Node
		consumers []consumer
		want      string
	}{
		"free":                   {testNode(), plain, ""},
		"prefers not":            {testNode(tainted("busy", corev1.TaintEffectPreferNoSchedule)), plain, ""},
		"gone":                   {nil, plain, "snapshot s is on node a, which does not exist"},
		"cordoned":               {testNode(tainted(corev1.TaintNodeUnschedulable, corev1.TaintEffectNoSchedule)), plain, "snapshot s is on node a, which is cordoned"},
		"not ready":              {testNode(tainted(corev1.TaintNodeNotReady, corev1.TaintEffectNoSchedule)), plain, "snapshot s is on node a, which is not ready"},
		"unreachable":            {testNode(tainted(corev1.TaintNodeUnreachable, corev1.TaintEffectNoExecute)), plain, "snapshot s is on node a, which is not ready"},
		"taint":                  {testNode(tainted("gpu", corev1.TaintEffectNoSchedule)), plain, "snapshot s is on node a, whose taint gpu:NoSchedule pod apps/p does not tolerate"},
		"tolerated":              {testNode(tainted("gpu", corev1.TaintEffectNoSchedule)), []consumer{{pod: testPod("p", tolerates)}}, ""},
		"selector":               {testNode(), []consumer{{pod: testPod("p", selects("disk", "slow"))}}, "snapshot s is on node a, which the node selector or node affinity of pod apps/p excludes"},
		"one of two can":         {testNode(), []consumer{{pod: testPod("q", selects("disk", "slow"))}, {pod: testPod("p")}}, ""},
		"claim selected here":    {testNode(), besides(neighbor{name: "d", node: "a"}), ""},
		"claim elsewhere":        {testNode(), besides(neighbor{name: "d", node: "b"}), "snapshot s is on node a, but claim d of pod apps/p needs node b"},
		"volume here":            {testNode(), besides(neighbor{name: "d", affinity: inPool("a")}), ""},
		"volume elsewhere":       {testNode(), besides(neighbor{name: "d", affinity: inPool("b")}), "snapshot s is on node a, but the volume of claim d of pod apps/p is on node b"},
		"volume in another zone": {testNode(), besides(neighbor{name: "d", affinity: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "zone", Operator: corev1.NodeSelectorOpIn, Values: []string{"z2"}}}}}}}), "snapshot s is on node a, but the volume of claim d of pod apps/p has a node affinity that excludes it"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := obstacle(source{text: "snapshot s", node: "a"}, c.node, c.consumers); got != c.want {
				t.Errorf("got  %q\nwant %q", got, c.want)
			}
		})
	}
}

func TestNodeOf(t *testing.T) {
	for name, c := range map[string]struct {
		of   *corev1.NodeSelector
		want string
	}{
		"none":       {nil, ""},
		"no terms":   {&corev1.NodeSelector{}, ""},
		"one":        {inPool("a"), "a"},
		"same twice": {inPool("a", "a"), "a"},
		"two":        {inPool("a", "b"), ""},
		"two, mixed": {inPool("a", "b", "a"), ""},
		"other key":  {&corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "zone", Operator: corev1.NodeSelectorOpIn, Values: []string{"a"}}}}}}, ""},
	} {
		if got := nodeOf(c.of); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}
