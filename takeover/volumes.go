package takeover

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
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
	resolved   map[string][]netip.Addr
}

// readVolumes reads what the node can have in use: by its pods, by
// VolumeAttachments, and as its kubelet reported it.
func (c *Controller) readVolumes(ctx context.Context, o *observation) error {
	v := &volumes{c: c, o: o, byName: map[string]*plan.Volume{}, byHandle: map[string]string{}, attachment: map[string]bool{}, resolved: map[string][]netip.Addr{}}
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

// addOfPod ignores volumes that the kubelet makes on the node, and directories of
// the host that a pod cannot write elsewhere.
func (v *volumes) addOfPod(ctx context.Context, p *corev1.Pod, of *corev1.Volume) error {
	seen := "Pod " + p.Namespace + "/" + p.Name
	claim := ""
	switch {
	case of.EmptyDir != nil, of.ConfigMap != nil, of.Secret != nil, of.Projected != nil, of.DownwardAPI != nil, of.Image != nil:
		return nil
	case of.HostPath != nil:
		if startsElsewhere(p) && canWrite(p, of.Name) {
			v.add(plan.Volume{Name: p.Namespace + "/" + p.Name + "/" + of.Name, Plugin: "hostPath", Cluster: of.HostPath.Path}, seen)
		}
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

// startsElsewhere is false for static pods, for those that are not deleted, and
// for those of a DaemonSet, which other nodes run already.
func startsElsewhere(p *corev1.Pod) bool {
	_, mirror := p.Annotations[corev1.MirrorPodAnnotationKey]
	owner := metav1.GetControllerOf(p)
	return !mirror && !tolerates(p) && (owner == nil || owner.Kind != "DaemonSet")
}

// canWrite is false if each container has the volume read-only. Ephemeral
// containers can have volumes too.
func canWrite(p *corev1.Pod, volume string) bool {
	mounts := []corev1.VolumeMount{}
	for _, c := range slices.Concat(p.Spec.InitContainers, p.Spec.Containers) {
		mounts = append(mounts, c.VolumeMounts...)
	}
	for _, c := range p.Spec.EphemeralContainers {
		mounts = append(mounts, c.VolumeMounts...)
	}
	return slices.ContainsFunc(mounts, func(m corev1.VolumeMount) bool { return m.Name == volume && !m.ReadOnly })
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
		volume.OnNode = v.protectTargets(ctx, name, csi.VolumeAttributes)
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

// serversOf returns the servers that a volume's attributes name, by the keys of
// the drivers of NVMe-oF, NFS, Ceph and iSCSI.
func serversOf(attributes map[string]string) (all []string) {
	for _, key := range []string{"targetAddr", "traddr", "server", "monitors", "mon_host", "targetPortal", "portals"} {
		list := attributes[key]
		if key == "portals" { // a JSON list
			list = strings.Trim(list, "[]")
		}
		all = append(all, strings.FieldsFunc(list, func(r rune) bool { return strings.ContainsRune(`, "`, r) })...)
	}
	paths := attributes["connections"]
	if paths == "" {
		return all
	}
	var list []struct{ IP string }
	if err := json.Unmarshal([]byte(paths), &list); err != nil {
		return append(all, paths) // which no resolver knows
	}
	for _, path := range list {
		all = append(all, path.IP)
	}
	return all
}

// protectTargets protects the addresses of the servers of a volume, and reports
// whether one is the lost node. A name that is not resolved could be the lost node.
func (v *volumes) protectTargets(ctx context.Context, name string, attributes map[string]string) (onNode bool) {
	for _, server := range serversOf(attributes) {
		addresses, err := v.resolve(ctx, hostOf(server))
		if err != nil {
			v.o.Unavailable = append(v.o.Unavailable, fmt.Sprintf("addresses of %s, which serves volume %s: %s", server, name, err))
			continue
		}
		here := slices.ContainsFunc(v.o.Clients, func(c plan.Client) bool { // those of the node itself, until here
			return slices.ContainsFunc(addresses, func(a netip.Addr) bool { return slices.Contains(c.Addresses, a) })
		})
		if onNode = onNode || here; here {
			continue
		}
		for _, a := range addresses {
			v.o.protect(a, "target of volume "+name)
		}
	}
	return onNode
}

// hostOf returns the host of HOST, HOST:PORT and HOST:PORT:/PATH.
func hostOf(text string) string {
	if _, err := netip.ParseAddr(text); err == nil {
		return text
	}
	if rest, bracketed := strings.CutPrefix(text, "["); bracketed {
		host, _, _ := strings.Cut(rest, "]")
		return host
	}
	host, _, _ := strings.Cut(text, ":")
	return host
}

// resolve asks once for each name.
func (v *volumes) resolve(ctx context.Context, host string) ([]netip.Addr, error) {
	if a, err := netip.ParseAddr(host); err == nil {
		return []netip.Addr{a.Unmap().WithZone("")}, nil
	}
	if known := v.resolved[host]; len(known) > 0 {
		return known, nil
	}
	ctx, cancel := context.WithTimeout(ctx, resolveTimeout)
	defer cancel()
	found, err := v.c.config.Resolve(ctx, host)
	if err == nil && len(found) == 0 {
		err = errors.New("the name has no address")
	}
	for i, a := range found {
		found[i] = a.Unmap().WithZone("")
	}
	v.resolved[host] = found
	return found, err
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
	v.add(plan.Volume{Name: of, Plugin: "csi", Driver: driver, Handle: handle, NoObject: true}, seen)
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
