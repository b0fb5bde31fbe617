package placement

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/klog/v2"
)

// NodeKey is the topology key of the pool of a node.
const NodeKey = "topology.cleat.dev/node"

// source is a data source.
type source struct {
	text string // "snapshot monday", for events
	node string // that has it; "": not known yet
}

// neighbor is another claim of a pod, which restricts its nodes.
type neighbor struct {
	name     string
	node     string               // selected, or of its source; "": any
	affinity *corev1.NodeSelector // of its volume
}

// consumer is a pod that waits for a node, with its other claims.
type consumer struct {
	pod       *corev1.Pod
	neighbors []neighbor
}

// obstacle returns why the node of a source cannot be named for any of the pods;
// "" if one of them can run there. A nil node does not exist.
func obstacle(s source, node *corev1.Node, consumers []consumer) string {
	if node == nil {
		return fmt.Sprintf("%s is on node %s, which does not exist", s.text, s.node)
	}
	var first string
	for _, c := range consumers {
		why := c.excluded(node)
		if why == "" {
			return ""
		}
		first = cmp.Or(first, why)
	}
	return fmt.Sprintf("%s is on node %s, %s", s.text, s.node, first)
}

// excluded returns why the pod cannot run on a node, "" if it can, as far as its
// constraints and volumes go.
func (c consumer) excluded(node *corev1.Node) string {
	pod := klog.KObj(c.pod)
	// The gate of comparison operators: an unknown operator tolerates nothing.
	taint, tainted := corev1helpers.FindMatchingUntoleratedTaint(klog.Background(), node.Spec.Taints, c.pod.Spec.Tolerations,
		func(t *corev1.Taint) bool { return t.Effect != corev1.TaintEffectPreferNoSchedule }, true)
	switch {
	case tainted && taint.Key == corev1.TaintNodeUnschedulable:
		return "which is cordoned"
	case tainted && slices.Contains([]string{corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable}, taint.Key):
		return "which is not ready"
	case tainted:
		return fmt.Sprintf("whose taint %s pod %s does not tolerate", taint.ToString(), pod)
	}
	if fits, err := nodeaffinity.GetRequiredNodeAffinity(c.pod).Match(node); err != nil || !fits {
		return fmt.Sprintf("which the node selector or node affinity of pod %s excludes%s", pod, suffix(err))
	}
	for _, n := range c.neighbors {
		if n.node != "" && n.node != node.Name {
			return fmt.Sprintf("but claim %s of pod %s needs node %s", n.name, pod, n.node)
		}
		if n.affinity == nil {
			continue
		}
		if fits, err := nodeaffinity.NewLazyErrorNodeSelector(n.affinity).Match(node); err != nil || !fits {
			return fmt.Sprintf("but the volume of claim %s of pod %s %s%s", n.name, pod, elsewhere(n.affinity), suffix(err))
		}
	}
	return ""
}

func suffix(err error) string {
	if err == nil {
		return ""
	}
	return fmt.Sprintf(" (%v)", err)
}

// elsewhere names the node of a volume in a pool.
func elsewhere(s *corev1.NodeSelector) string {
	if node := nodeOf(s); node != "" {
		return "is on node " + node
	}
	return "has a node affinity that excludes it"
}

// nodeOf returns the node that each term of a volume's affinity names, else "".
func nodeOf(s *corev1.NodeSelector) string {
	if s == nil || len(s.NodeSelectorTerms) == 0 {
		return ""
	}
	var nodes []string
	for _, t := range s.NodeSelectorTerms {
		at := slices.IndexFunc(t.MatchExpressions, func(r corev1.NodeSelectorRequirement) bool {
			return r.Key == NodeKey && r.Operator == corev1.NodeSelectorOpIn && len(r.Values) == 1
		})
		if at < 0 {
			return ""
		}
		nodes = append(nodes, t.MatchExpressions[at].Values[0])
	}
	if nodes = slices.Compact(nodes); len(nodes) > 1 {
		return ""
	}
	return strings.TrimSpace(nodes[0])
}
