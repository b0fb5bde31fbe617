package diagnosis

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// Labels and arguments of the chart's pods.
const (
	componentLabel = "app.kubernetes.io/component"
	nodeComponent  = "csi-node"
	driverArgument = "--driver-name="
)

// nodeProblem explains why no pod can start or end on the node, nil if nothing is
// known against it.
func (e *Explainer) nodeProblem(ctx context.Context, name string) *Answer {
	node, known := get[corev1.Node](ctx, e, core("nodes"), "", name)
	object := "node " + name
	if !known {
		return nil
	}
	if node == nil {
		a := newAnswer(object, "The node does not exist any more.")
		a.next("if its machine is off for good: A node is lost (docs/day2.md#a-node-is-lost)")
		return &a
	}
	for _, c := range node.Status.Conditions {
		if c.Type != corev1.NodeReady || c.Status == corev1.ConditionTrue {
			continue
		}
		a := newAnswer(object, "The node is not ready since %s. Nothing on it starts or ends, and its pods can still write to storage on the network.",
			age(e.now.Sub(c.LastTransitionTime.Time)))
		a.evidence("condition Ready of node %s: %s, %s: %s", name, c.Status, c.Reason, c.Message)
		a.next("kubectl describe node %s", name)
		a.next("if it does not come back: A node is lost (docs/day2.md#a-node-is-lost)")
		return &a
	}
	return nil
}

// registration explains why the kubelet of a node cannot call a driver, nil if it
// can or that is not known.
func (e *Explainer) registration(ctx context.Context, node string, d driver) *Answer {
	object := fmt.Sprintf("driver %s on node %s", d.name, node)
	csi, known := get[storagev1.CSINode](ctx, e, storage("csinodes"), "", node)
	if !known || csi != nil && slices.ContainsFunc(csi.Spec.Drivers, func(of storagev1.CSINodeDriver) bool { return of.Name == d.name }) {
		return nil
	}
	a := newAnswer(object, "The driver is not registered with the kubelet of that node.")
	if csi == nil {
		a.evidence("no CSINode %s exists: the kubelet of that node knows no driver", node)
	} else {
		a.evidence("CSINode %s does not list %s", node, d.name)
	}
	if d.known && d.object == nil {
		a.evidence("no CSIDriver %s exists: the driver is not installed, or has another name", d.name)
		a.next("kubectl get csidrivers")
	}
	e.driverPod(ctx, &a, node, d.name)
	return &a
}

// driverPod adds the state of the driver's pod on a node.
func (e *Explainer) driverPod(ctx context.Context, a *Answer, node, driver string) {
	pods, known := list[corev1.Pod](ctx, e, core("pods"), "", metav1.ListOptions{
		LabelSelector: componentLabel + "=" + nodeComponent, FieldSelector: "spec.nodeName=" + node,
	})
	if !known {
		return
	}
	pods = slices.DeleteFunc(pods, func(p *corev1.Pod) bool { return p.Spec.NodeName != node || !runsDriver(p, driver) })
	if len(pods) == 0 {
		a.evidence("no pod of a cleat release with this driver runs on node %s", node)
		a.next("kubectl get pods -A -o wide -l %s=%s    # taints, nodeSelector and csi.node.tolerations decide where it runs", componentLabel, nodeComponent)
		return
	}
	for _, p := range pods {
		state, container := podState(p)
		a.evidence("pod %s/%s on that node: %s", p.Namespace, p.Name, state)
		if container == "" {
			a.next("kubectl -n %s exec %s -c driver -- cleat csi status", p.Namespace, p.Name)
			continue
		}
		if !strings.Contains(state, "CrashLoopBackOff") {
			a.explain(find(e.messages, state))
		}
		a.next("%s", lookAt(p, container, state))
	}
}

// lookAt returns the command that says more about a container that does not run:
// one that never started has no log.
func lookAt(p *corev1.Pod, container, state string) string {
	logs := fmt.Sprintf("kubectl -n %s logs %s -c %s", p.Namespace, p.Name, container)
	switch {
	case strings.Contains(state, "CrashLoopBackOff"):
		return logs + " --previous"
	case strings.Contains(state, "ended with code"):
		return logs
	}
	return fmt.Sprintf("kubectl -n %s describe pod %s", p.Namespace, p.Name)
}

func runsDriver(p *corev1.Pod, driver string) bool {
	return slices.ContainsFunc(containersOf(p), func(c corev1.Container) bool { return slices.Contains(c.Args, driverArgument+driver) })
}

// containersOf has the init containers too: a server that starts before its
// sidecars is one of them.
func containersOf(p *corev1.Pod) []corev1.Container {
	return slices.Concat(p.Spec.InitContainers, p.Spec.Containers)
}

// podState describes a pod as one line, and names the container that does not
// run; "" if all do.
func podState(p *corev1.Pod) (state, container string) {
	for _, c := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
		if w := c.State.Waiting; w != nil && w.Reason != "PodInitializing" {
			return strings.TrimSuffix(fmt.Sprintf("container %s: %s: %s", c.Name, w.Reason, w.Message), ": "), c.Name
		}
		if t := c.State.Terminated; t != nil && t.ExitCode != 0 {
			return fmt.Sprintf("container %s ended with code %d: %s %s", c.Name, t.ExitCode, t.Reason, t.Message), c.Name
		}
	}
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady && c.Status != corev1.ConditionTrue {
			return fmt.Sprintf("%s, not ready: %s", p.Status.Phase, c.Message), ""
		}
	}
	return string(p.Status.Phase), ""
}

// fences adds the NetworkFences that hold an address of a node.
func (e *Explainer) fences(ctx context.Context, a *Answer, name string) {
	node, known := get[corev1.Node](ctx, e, core("nodes"), "", name)
	if !known || node == nil {
		return
	}
	all, _ := list[unstructured.Unstructured](ctx, e, resource("csiaddons.openshift.io", "v1alpha1", "networkfences"), "", metav1.ListOptions{})
	for _, f := range all {
		cidrs, _, _ := unstructured.NestedStringSlice(f.Object, "spec", "cidrs")
		state, result, text := fenceResult(f)
		for _, address := range node.Status.Addresses {
			switch {
			case !covered(cidrs, address.Address), state == "Unfenced" && result == "Succeeded":
				continue
			case state == "Unfenced":
				a.evidence("NetworkFence %s has not unfenced %s of node %s yet (result %q, %s)", f.GetName(), address.Address, name, result, text)
				a.next("kubectl describe networkfence %s", f.GetName())
				continue
			}
			a.evidence("NetworkFence %s fences %s of node %s (result %q)", f.GetName(), address.Address, name, result)
			a.next("after node %s was restarted: kubectl patch networkfence %s --type merge -p '{\"spec\":{\"fenceState\":\"Unfenced\"}}'", name, f.GetName())
		}
	}
}

func covered(cidrs []string, address string) bool {
	ip, err := netip.ParseAddr(address)
	if err != nil {
		return false
	}
	return slices.ContainsFunc(cidrs, func(c string) bool {
		p, err := netip.ParsePrefix(c)
		return err == nil && p.Contains(ip)
	})
}
