package takeover

import (
	"context"
	"encoding/json"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/cleatproject/cleat/internal/kubeobject"
	"github.com/cleatproject/cleat/takeover/plan"
)

// volumes collects the volumes of a node by name.
type volumes struct {
	c          *Controller
	o          *observation
	byName     map[string]*plan.Volume
	byHandle   map[string]string // driver^handle to name
	attachment map[string]bool   // of drivers: whether they have VolumeAttachments
}

// readVolumes reads what the node can have in use: by its pods, by
// VolumeAttachments, and as its kubelet reported it.
func (c *Controller) readVolumes(ctx context.Context, o *observation) error {
	v := &volumes{c: c, o: o, byName: map[string]*plan.Volume{}, byHandle: map[string]string{}, attachment: map[string]bool{}}
	pods, err := kubeobject.List[corev1.Pod](ctx, c.config.Client, podResource, "", metav1.ListOptions{FieldSelector: "spec.nodeName=" + o.Remediation.Node})
	if err != nil {
		return err
	}
	for _, p := range pods {
		if _, mirror := p.Annotations[corev1.MirrorPodAnnotationKey]; !mirror {
			o.Pods = append(o.Pods, plan.Pod{Namespace: p.Namespace, Name: p.Name, UID: string(p.UID), ToleratesOutOfService: tolerates(p)})
		}
		for i := range p.Spec.Volumes {
			if err := v.addOfPod(ctx, p, &p.Spec.Volumes[i]); err != nil {
				return err
			}
		}
	}
	attachments, err := kubeobject.List[storagev1.VolumeAttachment](ctx, c.config.Client, attachmentResource, "", metav1.ListOptions{})
	if err != nil {
		return err
	}
	for _, a := range attachments {
		if a.Spec.NodeName != o.Remediation.Node {
			continue
		}
		if err := v.addAttachment(ctx, a); err != nil {
			return err
		}
	}
	v.addReported()
	for _, name := range slices.Sorted(maps.Keys(v.byName)) {
		slices.Sort(v.byName[name].SeenIn)
		o.Volumes = append(o.Volumes, *v.byName[name])
	}
	return nil
}

func tolerates(p *corev1.Pod) bool {
	return slices.ContainsFunc(p.Spec.Tolerations, func(t corev1.Toleration) bool {
		return (t.Key == outOfService || t.Key == "" && t.Operator == corev1.TolerationOpExists) && (t.Effect == "" || t.Effect == corev1.TaintEffectNoExecute)
	})
}

// addOfPod ignores volumes that hold no data of others: those that the kubelet
// makes, and directories of the host.
func (v *volumes) addOfPod(ctx context.Context, p *corev1.Pod, of *corev1.Volume) error {
	seen := "Pod " + p.Namespace + "/" + p.Name
	claim := ""
	switch {
	case of.EmptyDir != nil, of.ConfigMap != nil, of.Secret != nil, of.Projected != nil, of.DownwardAPI != nil, of.HostPath != nil, of.Image != nil:
		return nil
	case of.PersistentVolumeClaim != nil:
		claim = of.PersistentVolumeClaim.ClaimName
	case of.Ephemeral != nil:
		claim = p.Name + "-" + of.Name
	default:
		v.add(inlineVolume(p, of), seen)
		return nil
	}
	found, err := kubeobject.Get[corev1.PersistentVolumeClaim](ctx, v.c.config.Client, claimResource, p.Namespace, claim)
	if err != nil {
		return err
	}
	if found == nil || found.Spec.VolumeName == "" { // what the pod has mounted is not known
		v.add(plan.Volume{Name: p.Namespace + "/" + p.Name + "/" + of.Name, Plugin: "persistentVolumeClaim"}, seen)
		return nil
	}
	return v.addPersistent(ctx, found.Spec.VolumeName, seen)
}

func inlineVolume(p *corev1.Pod, of *corev1.Volume) plan.Volume {
	volume := plan.Volume{Name: p.Namespace + "/" + p.Name + "/" + of.Name, Plugin: pluginOf(of.VolumeSource), Inline: true}
	if of.CSI != nil {
		volume.Driver, volume.Cluster = of.CSI.Driver, clusterOf(of.CSI.VolumeAttributes)
	}
	return volume
}

// pluginOf returns the key of the source that is set.
func pluginOf(source any) string {
	text, err := json.Marshal(source)
	var keys map[string]json.RawMessage
	if err == nil {
		err = json.Unmarshal(text, &keys)
	}
	if err != nil || len(keys) != 1 {
		return "unknown"
	}
	return slices.Collect(maps.Keys(keys))[0]
}

func (v *volumes) addAttachment(ctx context.Context, a *storagev1.VolumeAttachment) error {
	seen := "VolumeAttachment " + a.Name
	if a.Spec.Source.PersistentVolumeName != nil {
		return v.addPersistent(ctx, *a.Spec.Source.PersistentVolumeName, seen)
	}
	v.add(plan.Volume{Name: "VolumeAttachment " + a.Name, Plugin: "inlineVolumeSpec", Driver: a.Spec.Attacher, Inline: true}, seen)
	return nil
}

// addPersistent adds a PersistentVolume, with an unknown plugin if it does not
// exist any more.
func (v *volumes) addPersistent(ctx context.Context, name, seen string) error {
	if known := v.byName[name]; known != nil {
		v.add(*known, seen)
		return nil
	}
	pv, err := kubeobject.Get[corev1.PersistentVolume](ctx, v.c.config.Client, volumeResource, "", name)
	if err != nil {
		return err
	}
	if pv == nil {
		v.add(plan.Volume{Name: name, Plugin: "unknown"}, seen)
		return nil
	}
	volume := plan.Volume{Name: name, Plugin: pluginOf(pv.Spec.PersistentVolumeSource)}
	if csi := pv.Spec.CSI; csi != nil {
		attached, err := v.hasAttachments(ctx, csi.Driver)
		if err != nil {
			return err
		}
		volume.Driver, volume.Handle, volume.Cluster, volume.NoAttachment = csi.Driver, csi.VolumeHandle, clusterOf(csi.VolumeAttributes), !attached
		volume.OnNode = v.protectTargets(name, csi.VolumeAttributes)
		v.byHandle[csi.Driver+"^"+csi.VolumeHandle] = name
	}
	v.add(volume, seen)
	return nil
}

func (v *volumes) hasAttachments(ctx context.Context, driver string) (bool, error) {
	if has, known := v.attachment[driver]; known {
		return has, nil
	}
	d, err := kubeobject.Get[storagev1.CSIDriver](ctx, v.c.config.Client, driverResource, "", driver)
	if err != nil {
		return false, err
	}
	v.attachment[driver] = d == nil || d.Spec.AttachRequired == nil || *d.Spec.AttachRequired
	return v.attachment[driver], nil
}

// clusterOf returns the attribute that names where a volume's data is.
func clusterOf(attributes map[string]string) string {
	for _, key := range []string{"clusterID", "targetAddr", "server"} {
		if attributes[key] != "" {
			return attributes[key]
		}
	}
	return ""
}

// protectTargets protects the addresses of the target that serves a volume, and
// reports whether it is the lost node.
func (v *volumes) protectTargets(name string, attributes map[string]string) (onNode bool) {
	for _, text := range strings.FieldsFunc(attributes["targetAddr"], func(r rune) bool { return r == ',' || r == ' ' }) {
		if host, _, err := net.SplitHostPort(text); err == nil {
			text = host
		}
		a, err := netip.ParseAddr(text)
		if err != nil {
			continue
		}
		for _, client := range v.o.Clients { // those of the node itself, until here
			onNode = onNode || slices.Contains(client.Addresses, a.Unmap())
		}
		if !onNode {
			v.o.protect(a, "target of volume "+name)
		}
	}
	return onNode
}

// addReported adds what the kubelet has reported as in use, and what is attached
// by the Node's status.
func (v *volumes) addReported() {
	if v.o.node == nil {
		return
	}
	var n corev1.Node
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(v.o.node.Object, &n); err != nil {
		v.o.Unavailable = append(v.o.Unavailable, "volumes of the Node's status: "+err.Error())
		return
	}
	for _, unique := range n.Status.VolumesInUse {
		v.addUnique(string(unique), "volumesInUse")
	}
	for _, a := range n.Status.VolumesAttached {
		v.addUnique(string(a.Name), "volumesAttached")
	}
}

// addUnique adds a volume by the kubelet's name for it, such as
// kubernetes.io/csi/DRIVER^HANDLE.
func (v *volumes) addUnique(unique, seen string) {
	of, csi := strings.CutPrefix(unique, "kubernetes.io/csi/")
	driver, handle, found := strings.Cut(of, "^")
	if !csi || !found {
		v.add(plan.Volume{Name: unique, Plugin: "unknown"}, seen)
		return
	}
	if name := v.byHandle[of]; name != "" {
		v.add(*v.byName[name], seen)
		return
	}
	v.add(plan.Volume{Name: of, Plugin: "csi", Driver: driver, Handle: handle}, seen)
}

// add adds a volume, or another place where it was seen.
func (v *volumes) add(volume plan.Volume, seen string) {
	known := v.byName[volume.Name]
	if known == nil {
		known = &volume
		known.SeenIn = nil
		v.byName[volume.Name] = known
	}
	if !slices.Contains(known.SeenIn, seen) {
		known.SeenIn = append(known.SeenIn, seen)
	}
}
