package diagnosis

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// Finding is the state of one part of cleat in the cluster.
type Finding struct {
	Object  string `json:"object"`         // such as "pod cleat-system/cleat-csi-node-x7"
	Node    string `json:"node,omitempty"` // on which it runs, or which it concerns
	State   string `json:"state"`          // one line
	Problem bool   `json:"problem"`        // the state is not as it must be
	Next    string `json:"next,omitempty"` // a command that says more
}

// Status returns the state of every pod of a cleat release, of drivers on their
// nodes, of pools, fences, takeovers of lost nodes and withdrawn devices: what is wrong first. The second
// result is what could not be read.
func (e *Explainer) Status(ctx context.Context) ([]Finding, []string) {
	pods := e.releasePods(ctx)
	var all []Finding
	plugins, drivers := map[string]bool{}, map[string]bool{} // nodes with a device plugin; names
	for _, p := range pods {
		all = append(all, e.podFinding(ctx, p))
		drivers[driverOf(p)] = true
		if p.Labels[componentLabel] == "sriov-plugin" {
			plugins[p.Spec.NodeName] = true
		}
	}
	all = append(all, e.poolFindings(ctx, drivers)...)
	all = append(all, e.fenceFindings(ctx)...)
	all = append(all, e.takeoverFindings(ctx)...)
	all = append(all, e.withdrawn(ctx, plugins)...)
	slices.SortStableFunc(all, func(a, b Finding) int {
		return cmp.Or(-compareBool(a.Problem, b.Problem), strings.Compare(a.Node, b.Node), strings.Compare(a.Object, b.Object))
	})
	return all, e.notRead
}

func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return 1
	}
	return -1
}

// releasePods returns the pods that run a server of cleat.
func (e *Explainer) releasePods(ctx context.Context) []*corev1.Pod {
	pods, _ := list[corev1.Pod](ctx, e, core("pods"), "", metav1.ListOptions{
		LabelSelector: componentLabel + " in (csi-node,csi-controller,csi-placement,fence,dpu,sriov-plugin,sriov-daemon,takeover)",
	})
	return slices.DeleteFunc(pods, func(p *corev1.Pod) bool {
		return !slices.ContainsFunc(containersOf(p), func(c corev1.Container) bool {
			return len(c.Args) > 0 && slices.Contains([]string{"csi", "fence", "dpu", "sriov", "takeover"}, c.Args[0])
		})
	})
}

func driverOf(p *corev1.Pod) string {
	for _, c := range containersOf(p) {
		for _, arg := range c.Args {
			if name, is := strings.CutPrefix(arg, driverArgument); is {
				return name
			}
		}
	}
	return ""
}

func (e *Explainer) podFinding(ctx context.Context, p *corev1.Pod) Finding {
	f := Finding{Object: fmt.Sprintf("pod %s/%s", p.Namespace, p.Name), Node: p.Spec.NodeName}
	state, container := podState(p)
	f.State = state
	switch {
	case p.Spec.NodeName == "":
		f.Problem, f.Next = true, fmt.Sprintf("kubectl cleat why -n %s pod/%s", p.Namespace, p.Name)
		return f
	case container != "":
		f.Problem, f.Next = true, lookAt(p, container, state)
		return f
	case state != string(corev1.PodRunning):
		f.Problem, f.Next = true, fmt.Sprintf("kubectl -n %s describe pod %s", p.Namespace, p.Name)
		return f
	}
	name := driverOf(p)
	if p.Labels[componentLabel] != nodeComponent || name == "" {
		return f
	}
	csi, known := get[storagev1.CSINode](ctx, e, storage("csinodes"), "", p.Spec.NodeName)
	switch registered := csi != nil && slices.ContainsFunc(csi.Spec.Drivers, func(d storagev1.CSINodeDriver) bool { return d.Name == name }); {
	case !known:
		f.State += ", registration not known"
	case registered:
		f.State += ", " + name + " is registered"
	default:
		f.State += ", " + name + " is not registered"
		f.Problem, f.Next = true, fmt.Sprintf("kubectl -n %s exec %s -c driver -- cleat csi status", p.Namespace, p.Name)
	}
	return f
}

// poolFindings returns the capacity that the scheduler knows of each pool with
// volumes on nodes: csi-provisioner writes what GetCapacity answers, for each class.
func (e *Explainer) poolFindings(ctx context.Context, drivers map[string]bool) []Finding {
	classes, _ := list[storagev1.StorageClass](ctx, e, storage("storageclasses"), "", metav1.ListOptions{})
	capacities, _ := list[storagev1.CSIStorageCapacity](ctx, e, storage("csistoragecapacities"), "", metav1.ListOptions{})
	var all []Finding
	for _, c := range capacities {
		i := slices.IndexFunc(classes, func(class *storagev1.StorageClass) bool { return class.Name == c.StorageClassName })
		if i < 0 || !drivers[classes[i].Provisioner] || c.NodeTopology == nil || len(c.NodeTopology.MatchLabels) != 1 {
			continue
		}
		f := Finding{Object: "pool of " + classes[i].Provisioner + " for class " + c.StorageClassName, State: "free capacity not known yet"}
		for _, node := range c.NodeTopology.MatchLabels {
			f.Node = node
		}
		if c.Capacity != nil {
			f.State = "free: " + c.Capacity.String()
			if f.Problem = c.Capacity.IsZero(); f.Problem {
				f.State, f.Next = "free: 0: full, or not writable", "kubectl get pods -A -o wide -l "+componentLabel+"="+nodeComponent+"    # then its log"
			}
		}
		all = append(all, f)
	}
	return all
}

// fenceFindings: a fence in force is no fault, and is shown.
func (e *Explainer) fenceFindings(ctx context.Context) []Finding {
	fences, _ := list[unstructured.Unstructured](ctx, e, resource("csiaddons.openshift.io", "v1alpha1", "networkfences"), "", metav1.ListOptions{})
	var all []Finding
	for _, n := range fences {
		cidrs, _, _ := unstructured.NestedStringSlice(n.Object, "spec", "cidrs")
		state, result, text := fenceResult(n)
		f := Finding{Object: "networkfence " + n.GetName(), State: fmt.Sprintf("%s %s: %s", state, strings.Join(cidrs, " "), cmp.Or(result, "no result yet"))}
		if result != "Succeeded" {
			f.Problem, f.Next = true, "kubectl describe networkfence "+n.GetName()
			f.State += strings.TrimSuffix(": "+text, ": ")
		}
		all = append(all, f)
	}
	return all
}

// fenceResult returns the result of a NetworkFence for its fenceState, "" before
// there is one: that of the earlier state stays until then, and only its message, which
// CSI-Addons writes, names the state.
func fenceResult(n *unstructured.Unstructured) (state, result, text string) {
	state, _, _ = unstructured.NestedString(n.Object, "spec", "fenceState")
	result, _, _ = unstructured.NestedString(n.Object, "status", "result")
	text, _, _ = unstructured.NestedString(n.Object, "status", "message")
	state = cmp.Or(state, "Fenced")
	if before := map[string]string{"Fenced": "unfencing", "Unfenced": "fencing"}[state]; text == before+" operation successful" {
		return state, "", "before: " + text
	}
	return state, result, text
}

// takeoverFindings: a node that is taken over, and whose fence stays, is no fault.
func (e *Explainer) takeoverFindings(ctx context.Context) []Finding {
	remediations, _ := list[unstructured.Unstructured](ctx, e, resource("remediation.cleat.dev", "v1alpha1", "storagefenceremediations"), "", metav1.ListOptions{})
	var all []Finding
	for _, r := range remediations {
		f := Finding{Object: fmt.Sprintf("storagefenceremediation %s/%s", r.GetNamespace(), r.GetName()), State: "not handled yet", Problem: true}
		f.Node = cmp.Or(r.GetAnnotations()["remediation.medik8s.io/node-name"], r.GetName())
		conditions, _, _ := unstructured.NestedSlice(r.Object, "status", "conditions")
		status := map[any]any{} // by type
		for _, c := range conditions {
			if one, ok := c.(map[string]any); ok {
				status[one["type"]] = one["status"]
				if one["type"] == "Processing" {
					f.State = strings.TrimSuffix(fmt.Sprintf("%v: %v", one["reason"], one["message"]), ": ")
				}
			}
		}
		if f.Problem = status["Blocked"] == "True" || status["Succeeded"] != "True"; f.Problem {
			f.Next = fmt.Sprintf("cleat takeover show -n %s %s", r.GetNamespace(), f.Node)
		}
		all = append(all, f)
	}
	return all
}

// withdrawn returns the extended resources of which a node with our device plugin
// offers none.
func (e *Explainer) withdrawn(ctx context.Context, plugins map[string]bool) []Finding {
	if len(plugins) == 0 {
		return nil
	}
	nodes, _ := list[corev1.Node](ctx, e, core("nodes"), "", metav1.ListOptions{})
	var all []Finding
	for _, n := range nodes {
		for name, quantity := range n.Status.Allocatable {
			if plugins[n.Name] && strings.Contains(string(name), "/") && quantity.IsZero() {
				all = append(all, Finding{
					Object: "resource " + string(name), Node: n.Name, State: "0 are offered: withdrawn, or unhealthy", Problem: true,
					Next: fmt.Sprintf("cleat sriov status    # in the pod of kubectl get pods -A -o wide -l %s=sriov-plugin", componentLabel),
				})
			}
		}
	}
	return all
}

// Volume is a PersistentVolume of a driver of cleat.
type Volume struct {
	Name   string   `json:"name"`
	Claim  string   `json:"claim"` // namespace/name; "": none
	Size   string   `json:"size"`
	Driver string   `json:"driver"`
	Phase  string   `json:"phase"`
	Nodes  []string `json:"nodes"` // attached to, or, for a volume of one node, stored on
	Pods   []string `json:"pods"`  // that use the claim and have not ended
}

// Volumes returns the PersistentVolumes of all drivers of cleat pods, sorted by
// claim, and what could not be read.
func (e *Explainer) Volumes(ctx context.Context) ([]Volume, []string) {
	drivers := map[string]bool{}
	for _, p := range e.releasePods(ctx) {
		drivers[driverOf(p)] = true
	}
	volumes, _ := list[corev1.PersistentVolume](ctx, e, core("persistentvolumes"), "", metav1.ListOptions{})
	pods, _ := list[corev1.Pod](ctx, e, core("pods"), "", metav1.ListOptions{})
	attachments, _ := list[storagev1.VolumeAttachment](ctx, e, storage("volumeattachments"), "", metav1.ListOptions{})
	all := []Volume{}
	for _, v := range volumes {
		if v.Spec.CSI == nil || !drivers[v.Spec.CSI.Driver] {
			continue
		}
		size := v.Spec.Capacity[corev1.ResourceStorage]
		one := Volume{Name: v.Name, Size: size.String(), Driver: v.Spec.CSI.Driver, Phase: string(v.Status.Phase), Nodes: nodesOf(v, attachments), Pods: []string{}}
		if ref := v.Spec.ClaimRef; ref != nil {
			one.Claim = ref.Namespace + "/" + ref.Name
			for _, p := range pods {
				if p.Namespace == ref.Namespace && p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed && slices.Contains(claimsOf(p), ref.Name) {
					one.Pods = append(one.Pods, p.Name)
				}
			}
		}
		all = append(all, one)
	}
	slices.SortFunc(all, func(a, b Volume) int {
		return cmp.Or(strings.Compare(a.Claim, b.Claim), strings.Compare(a.Name, b.Name))
	})
	return all, e.notRead
}

func nodesOf(v *corev1.PersistentVolume, attachments []*storagev1.VolumeAttachment) []string {
	nodes := []string{}
	for _, at := range attachments {
		if name := at.Spec.Source.PersistentVolumeName; name != nil && *name == v.Name {
			nodes = append(nodes, at.Spec.NodeName)
		}
	}
	if len(nodes) > 0 || v.Spec.NodeAffinity == nil || v.Spec.NodeAffinity.Required == nil {
		return nodes
	}
	for _, term := range v.Spec.NodeAffinity.Required.NodeSelectorTerms {
		for _, x := range term.MatchExpressions {
			nodes = append(nodes, x.Values...)
		}
	}
	return nodes
}
