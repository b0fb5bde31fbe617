package diagnosis

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func (e *Explainer) pod(ctx context.Context, pod *corev1.Pod) Answer {
	object := fmt.Sprintf("pod %s/%s", pod.Namespace, pod.Name)
	switch {
	case pod.DeletionTimestamp != nil:
		return e.terminating(ctx, object, pod)
	case pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed:
		a := done(object, "It has ended: %s.", strings.Join(slices.DeleteFunc([]string{string(pod.Status.Phase), pod.Status.Reason, pod.Status.Message}, func(s string) bool { return s == "" }), ", "))
		if pod.Status.Reason == "UnexpectedAdmissionError" {
			a.Reason += " The device was withdrawn at the instant when the pod was bound: its owner creates another pod."
		}
		return a
	case pod.Spec.NodeName == "":
		return e.unscheduled(ctx, object, pod)
	}
	return e.starting(ctx, object, pod)
}

// unscheduled explains why a pod has no node: because of one of its claims, or by
// the scheduler's own message, which is a condition and so of the last attempt.
func (e *Explainer) unscheduled(ctx context.Context, object string, pod *corev1.Pod) Answer {
	if len(pod.Spec.SchedulingGates) > 0 {
		a := newAnswer(object, "It has the scheduling gate %s: the controller or user that has set it must remove it.", pod.Spec.SchedulingGates[0].Name)
		return a
	}
	var condition corev1.PodCondition
	if i := slices.IndexFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == corev1.PodScheduled }); i >= 0 {
		condition = pod.Status.Conditions[i]
	}
	attempt := "condition PodScheduled: " + condition.Message
	for _, name := range claimsOf(pod) {
		claim, known := get[corev1.PersistentVolumeClaim](ctx, e, core("persistentvolumeclaims"), pod.Namespace, name)
		if known && claim == nil {
			a := newAnswer(object, "Its claim %s does not exist.", name)
			a.next("kubectl -n %s get pvc", pod.Namespace)
			return a
		}
		if claim == nil {
			continue
		}
		if a := e.claim(ctx, claim, false); a.Waiting {
			if condition.Message != "" {
				a.evidence("%s", attempt)
			}
			return a.of(object, "")
		}
	}
	if condition.Message == "" {
		return newAnswer(object, "No scheduler has considered it yet: scheduler %q does not run, or has it in its queue.", pod.Spec.SchedulerName)
	}
	a := newAnswer(object, "The scheduler finds no node for it.")
	a.evidence("%s", attempt)
	if e.device(ctx, &a, condition.Message) {
		return a
	}
	a.explain(find(e.messages, condition.Message))
	for _, name := range claimsOf(pod) {
		e.placed(ctx, &a, pod.Namespace, name)
	}
	return a
}

// placed adds the only node that a bound claim's volume is on.
func (e *Explainer) placed(ctx context.Context, a *Answer, namespace, name string) {
	claim, _ := get[corev1.PersistentVolumeClaim](ctx, e, core("persistentvolumeclaims"), namespace, name)
	if claim == nil || claim.Spec.VolumeName == "" {
		return
	}
	v, _ := get[corev1.PersistentVolume](ctx, e, core("persistentvolumes"), "", claim.Spec.VolumeName)
	if v == nil || v.Spec.NodeAffinity == nil || v.Spec.NodeAffinity.Required == nil {
		return
	}
	for _, term := range v.Spec.NodeAffinity.Required.NodeSelectorTerms {
		for _, x := range term.MatchExpressions {
			a.evidence("volume %s of claim %s is where %s is %s", v.Name, name, x.Key, strings.Join(x.Values, " or "))
			for _, node := range x.Values {
				if problem := e.nodeProblem(ctx, node); problem != nil {
					a.Reason += " " + sentence(problem.Object+": "+problem.Reason)
					a.Next = append(a.Next, problem.Next...)
				}
			}
		}
	}
}

var insufficient = regexp.MustCompile(`Insufficient ([A-Za-z0-9.-]+/[A-Za-z0-9._-]*[A-Za-z0-9])`)

// device explains that an extended resource is missing, withdrawn or in use.
func (e *Explainer) device(ctx context.Context, a *Answer, text string) bool {
	found := insufficient.FindStringSubmatch(text)
	if found == nil {
		return false
	}
	name := corev1.ResourceName(found[1])
	nodes, known := list[corev1.Node](ctx, e, core("nodes"), "", metav1.ListOptions{})
	if !known {
		return false
	}
	var offering, withdrawn []string
	for _, n := range nodes {
		if quantity, has := n.Status.Allocatable[name]; has && quantity.IsZero() {
			withdrawn = append(withdrawn, n.Name)
		} else if has {
			offering = append(offering, fmt.Sprintf("%s %s", n.Name, quantity.String()))
		}
	}
	switch {
	case len(offering) > 0:
		a.Reason = fmt.Sprintf("Pods have all of %s that this pod could get: nodes offer %s.", name, strings.Join(offering, ", "))
		a.next("kubectl describe nodes    # Allocated resources")
	case len(withdrawn) > 0:
		a.Reason = fmt.Sprintf("Every %s is withdrawn: no config daemon has enabled the devices, or they are unhealthy.", name)
		a.evidence("allocatable %s is 0 on %s", name, strings.Join(withdrawn, ", "))
		a.next("cleat sriov status    # in the plugin's pod on %s: kubectl get pods -A -o wide -l %s=sriov-plugin", withdrawn[0], componentLabel)
	default:
		a.Reason = fmt.Sprintf("No node has %s: no function matches the resource, or no device plugin has registered it.", name)
		a.next("cleat sriov explain --resource %s    # in the plugin's pod: kubectl get pods -A -o wide -l %s=sriov-plugin", found[1][strings.Index(found[1], "/")+1:], componentLabel)
	}
	return true
}

// noImage matches the kubelet's reasons of a container without an image.
var noImage = regexp.MustCompile(`ErrImagePull|ImagePullBackOff|ErrImageNeverPull`)

// starting explains a pod that has a node.
func (e *Explainer) starting(ctx context.Context, object string, pod *corev1.Pod) Answer {
	node := pod.Spec.NodeName
	if a := e.nodeProblem(ctx, node); a != nil {
		return a.of(object, "")
	}
	if slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	}) {
		return done(object, "It runs on node %s and is ready.", node)
	}
	if state, container := podState(pod); container != "" && !strings.Contains(state, "ContainerCreating") {
		a := newAnswer(object, "Its volumes are mounted, and a container does not run.")
		if noImage.MatchString(state) {
			a.Reason = fmt.Sprintf("Its volumes are mounted. The image of container %s is not on node %s, and cannot be pulled.", container, node)
		}
		a.evidence("%s", state)
		a.next("%s", lookAt(pod, container, state))
		return a
	}
	if len(pod.Status.ContainerStatuses) > 0 && pod.Status.ContainerStatuses[0].State.Running != nil {
		return newAnswer(object, "Its containers run on node %s, and its readiness probes do not succeed yet.", node)
	}
	for _, v := range e.volumesOf(ctx, pod) {
		if a := e.volumeProblem(ctx, node, v); a != nil {
			return a.of(object, "")
		}
	}
	a := newAnswer(object, "The kubelet of node %s prepares it.", node)
	if event := e.warning(ctx, pod, "FailedMount", "FailedMapVolume", "FailedAttachVolume", "FailedCreatePodSandBox"); event != nil {
		a.Reason = fmt.Sprintf("The kubelet of node %s cannot prepare it: %s.", node, event.Reason)
		e.reported(&a, event, e.messages)
		e.fences(ctx, &a, node)
	} else {
		a.evidence("no event reports a failure")
	}
	return a
}

// podVolume is a volume of a CSI driver that a pod uses.
type podVolume struct{ claim, volume, driver string }

func (e *Explainer) volumesOf(ctx context.Context, pod *corev1.Pod) []podVolume {
	var all []podVolume
	for _, name := range claimsOf(pod) {
		claim, _ := get[corev1.PersistentVolumeClaim](ctx, e, core("persistentvolumeclaims"), pod.Namespace, name)
		if claim == nil || claim.Spec.VolumeName == "" {
			continue
		}
		v, _ := get[corev1.PersistentVolume](ctx, e, core("persistentvolumes"), "", claim.Spec.VolumeName)
		if v != nil && v.Spec.CSI != nil {
			all = append(all, podVolume{name, v.Name, v.Spec.CSI.Driver})
		}
	}
	for _, v := range pod.Spec.Volumes {
		if v.CSI != nil {
			all = append(all, podVolume{driver: v.CSI.Driver})
		}
	}
	return all
}

// volumeProblem explains why the kubelet of a node cannot mount a volume, nil if
// nothing is known against it.
func (e *Explainer) volumeProblem(ctx context.Context, node string, v podVolume) *Answer {
	d := e.driver(ctx, v.driver)
	if a := e.registration(ctx, node, d); a != nil {
		return a
	}
	if v.volume == "" || !d.known || !d.attach {
		return nil
	}
	attachments, known := list[storagev1.VolumeAttachment](ctx, e, storage("volumeattachments"), "", metav1.ListOptions{})
	if !known {
		return nil
	}
	object := fmt.Sprintf("the attachment of volume %s (claim %s) to node %s", v.volume, v.claim, node)
	var elsewhere []string
	for _, at := range attachments {
		if name := at.Spec.Source.PersistentVolumeName; name == nil || *name != v.volume {
			continue
		}
		if at.Spec.NodeName != node {
			elsewhere = append(elsewhere, at.Spec.NodeName)
			continue
		}
		if at.Status.Attached {
			return nil
		}
		a := newAnswer(object, "csi-attacher has not attached it.")
		if failed := at.Status.AttachError; failed != nil {
			a.evidence("VolumeAttachment %s, %s ago: %s", at.Name, age(e.now.Sub(failed.Time.Time)), failed.Message)
			a.explain(find(e.messages, failed.Message))
		} else {
			a.evidence("VolumeAttachment %s has no status: the controller of %s does not run or has not answered", at.Name, v.driver)
			a.next("kubectl get pods -A -o wide -l %s=csi-controller", componentLabel)
		}
		e.fences(ctx, &a, node)
		return &a
	}
	a := newAnswer(object, "The controller manager has not asked for it.")
	if len(elsewhere) > 0 {
		a.Reason = fmt.Sprintf("The volume is attached to node %s, and must be detached there first.", strings.Join(elsewhere, ", "))
		if problem := e.nodeProblem(ctx, elsewhere[0]); problem != nil {
			a.Reason += " " + problem.Reason
			a.Next = append(a.Next, problem.Next...)
		}
	}
	a.evidence("no VolumeAttachment of volume %s for node %s exists", v.volume, node)
	return &a
}

// terminating explains why a pod does not end.
func (e *Explainer) terminating(ctx context.Context, object string, pod *corev1.Pod) Answer {
	if len(pod.Finalizers) > 0 {
		return newAnswer(object, "It is deleted when its finalizers are removed: %s.", strings.Join(pod.Finalizers, ", "))
	}
	if pod.Spec.NodeName != "" {
		if a := e.nodeProblem(ctx, pod.Spec.NodeName); a != nil {
			return a.of(object, "")
		}
		for _, v := range e.volumesOf(ctx, pod) {
			if a := e.registration(ctx, pod.Spec.NodeName, e.driver(ctx, v.driver)); a != nil {
				a.Reason += " The kubelet cannot unmount without it."
				return a.of(object, "")
			}
		}
	}
	if left := pod.DeletionTimestamp.Sub(e.now); left > 0 {
		return newAnswer(object, "Its containers have %s more to end (grace period).", age(left))
	}
	a := newAnswer(object, "The kubelet of node %s ends its containers and unmounts its volumes. If it stays, something there still uses a mount.", pod.Spec.NodeName)
	a.next("journalctl -u kubelet | grep UnmountVolume    # on node %s; k3s: -u k3s", pod.Spec.NodeName)
	a.next("Pod Terminating (docs/troubleshooting.md#pod-terminating)")
	return a
}

// claimsOf returns the names of a pod's claims, with those of its generic
// ephemeral volumes.
func claimsOf(pod *corev1.Pod) []string {
	var names []string
	for _, v := range pod.Spec.Volumes {
		switch {
		case v.PersistentVolumeClaim != nil:
			names = append(names, v.PersistentVolumeClaim.ClaimName)
		case v.Ephemeral != nil:
			names = append(names, pod.Name+"-"+v.Name)
		}
	}
	return names
}
