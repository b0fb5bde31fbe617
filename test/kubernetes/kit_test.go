package kubernetes

import (
	"context"
	"fmt"
	"maps"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/cleatproject/cleat/test/testkit"
)

// waitTimeout bounds every wait, with a margin for a busy machine of two cores.
const waitTimeout = 3 * time.Minute

// space is the namespace of one test. At the end of the test it is deleted, and
// the volumes of its claims must be gone too.
type space struct {
	*testing.T
	name string
}

// newSpace creates the namespace of a test.
func newSpace(t *testing.T) *space {
	t.Helper()
	ns := testkit.Value(testCluster.Client.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "case-", Labels: map[string]string{"pod-security.kubernetes.io/enforce": "privileged"}},
	}, metav1.CreateOptions{}))(t)
	s := &space{T: t, name: ns.Name}
	t.Cleanup(s.end)
	s.until("the default service account", func(ctx context.Context) error {
		_, err := testCluster.Client.CoreV1().ServiceAccounts(s.name).Get(ctx, "default", metav1.GetOptions{})
		return err
	})
	return s
}

// end deletes the namespace, after the end of the test's context.
func (s *space) end() {
	ctx, cancel := context.WithTimeout(context.Background(), 2*waitTimeout)
	defer cancel()
	if s.Failed() {
		s.Log(describePods(ctx, testCluster, s.name))
		claims, _ := testCluster.Kubectl(ctx, "", "-n", s.name, "describe", "pvc")
		s.Log(claims)
	}
	// Snapshots first: a namespace is deleted in no particular order, and a
	// snapshot whose claim is gone still waits for its content.
	if _, err := testCluster.Kubectl(ctx, "", "-n", s.name, "delete", "pods", "--all", "--grace-period=1", "--wait"); err != nil {
		s.Error(err)
	}
	for _, kind := range []string{"volumegroupsnapshots.groupsnapshot.storage.k8s.io", "volumesnapshots.snapshot.storage.k8s.io"} {
		if _, err := testCluster.Kubectl(ctx, "", "-n", s.name, "delete", kind, "--all", "--wait", "--timeout=2m"); err != nil {
			s.Error(err)
		}
	}
	if err := testCluster.Client.CoreV1().Namespaces().Delete(ctx, s.name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		s.Error(err)
	}
	if err := poll(ctx, func(ctx context.Context) error {
		_, err := testCluster.Client.CoreV1().Namespaces().Get(ctx, s.name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return s.volumesGone(ctx)
		}
		return fmt.Errorf("namespace %s is not deleted (%v)", s.name, err)
	}); err != nil {
		s.Error(err)
	}
}

func (s *space) volumesGone(ctx context.Context) error {
	all, err := testCluster.Client.CoreV1().PersistentVolumes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for _, v := range all.Items {
		if v.Spec.ClaimRef != nil && v.Spec.ClaimRef.Namespace == s.name && v.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimDelete {
			return fmt.Errorf("volume %s of claim %s is not deleted: %s %s", v.Name, v.Spec.ClaimRef.Name, v.Status.Phase, v.Status.Message)
		}
	}
	return nil
}

// poll calls ask until it succeeds or the context ends, and then returns the
// last error before that.
func poll(ctx context.Context, ask func(context.Context) error) error {
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	var last error
	for {
		err := ask(ctx)
		if err == nil {
			return nil
		}
		if last == nil || ctx.Err() == nil {
			last = err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", ctx.Err(), last)
		case <-tick.C:
		}
	}
}

// until polls for at most waitTimeout and fails the test.
func (s *space) until(what string, ask func(context.Context) error) {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), waitTimeout)
	defer cancel()
	if err := poll(ctx, ask); err != nil {
		s.Fatalf("%s: %v", what, err)
	}
}

// kubectl runs kubectl in the namespace.
func (s *space) kubectl(args ...string) string {
	s.Helper()
	out := testkit.Value(testCluster.Kubectl(s.Context(), "", append([]string{"-n", s.name}, args...)...))(s)
	return out
}

// apply creates or updates the objects of a YAML text in the namespace.
func (s *space) apply(text string) {
	s.Helper()
	testkit.Value(testCluster.Kubectl(s.Context(), text, "-n", s.name, "apply", "--server-side", "-f", "-"))(s)
}

// claim describes a PersistentVolumeClaim.
type claim struct {
	class      string // storage class
	size       string
	block      bool
	modes      []corev1.PersistentVolumeAccessMode // default ReadWriteOnce
	from       *corev1.TypedObjectReference        // snapshot or claim
	attributes string                              // VolumeAttributesClass
	volume     string                              // existing volume; default any
	node       string                              // set as the scheduler does; default none
	labels     map[string]string
}

// snapshotSource and claimSource are data sources of claims.
func snapshotSource(name string) *corev1.TypedObjectReference {
	group := "snapshot.storage.k8s.io"
	return &corev1.TypedObjectReference{APIGroup: &group, Kind: "VolumeSnapshot", Name: name}
}

func claimSource(name string) *corev1.TypedObjectReference {
	return &corev1.TypedObjectReference{Kind: "PersistentVolumeClaim", Name: name}
}

// claim creates a claim without waiting: many are bound by their first pod.
func (s *space) claim(name string, c claim) {
	s.Helper()
	p := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: c.labels},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: &c.class, AccessModes: c.modes, DataSourceRef: c.from,
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(c.size)}},
		},
	}
	if len(c.modes) == 0 {
		p.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	}
	if c.block {
		mode := corev1.PersistentVolumeBlock
		p.Spec.VolumeMode = &mode
	}
	p.Spec.VolumeName = c.volume
	if c.node != "" {
		p.Annotations = map[string]string{"volume.kubernetes.io/selected-node": c.node}
	}
	if c.attributes != "" {
		p.Spec.VolumeAttributesClassName = &c.attributes
	}
	testkit.Value(testCluster.Client.CoreV1().PersistentVolumeClaims(s.name).Create(s.Context(), p, metav1.CreateOptions{}))(s)
}

// bound waits until a claim is bound and returns its volume.
func (s *space) bound(name string) *corev1.PersistentVolume {
	s.Helper()
	var volume *corev1.PersistentVolume
	s.until("claim "+name, func(ctx context.Context) error {
		p, err := testCluster.Client.CoreV1().PersistentVolumeClaims(s.name).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if p.Status.Phase != corev1.ClaimBound {
			return fmt.Errorf("phase %s", p.Status.Phase)
		}
		volume, err = testCluster.Client.CoreV1().PersistentVolumes().Get(ctx, p.Spec.VolumeName, metav1.GetOptions{})
		return err
	})
	return volume
}

// pod describes a pod with one container that has a shell.
type pod struct {
	// mounts and devices are claims by path in the container.
	mounts, devices map[string]string
	readOnly        bool   // of mounts
	subPath         string // of every mount
	command         string // for sh -c; default: wait for ever
	change          func(*corev1.Pod)
}

// start creates a pod without waiting.
func (s *space) start(name string, p pod) {
	s.Helper()
	command := p.command
	if command == "" {
		command = "trap 'exit 0' TERM; while :; do sleep 1 & wait $!; done"
	}
	grace := int64(2)
	object := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"case": name}},
		Spec: corev1.PodSpec{
			TerminationGracePeriodSeconds: &grace,
			RestartPolicy:                 corev1.RestartPolicyNever,
			Containers: []corev1.Container{{
				Name: "c", Image: busyboxImage, ImagePullPolicy: corev1.PullNever, Command: []string{"/bin/sh", "-c", command},
			}},
		},
	}
	c := &object.Spec.Containers[0]
	volume := func(claim string) string {
		name := "v-" + claim
		if !slices.ContainsFunc(object.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == name }) {
			object.Spec.Volumes = append(object.Spec.Volumes, corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim, ReadOnly: p.readOnly},
			}})
		}
		return name
	}
	for _, path := range slices.Sorted(maps.Keys(p.mounts)) {
		c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: volume(p.mounts[path]), MountPath: path, SubPath: p.subPath})
	}
	for _, path := range slices.Sorted(maps.Keys(p.devices)) {
		c.VolumeDevices = append(c.VolumeDevices, corev1.VolumeDevice{Name: volume(p.devices[path]), DevicePath: path})
	}
	if p.change != nil {
		p.change(object)
	}
	testkit.Value(testCluster.Client.CoreV1().Pods(s.name).Create(s.Context(), object, metav1.CreateOptions{}))(s)
}

// run creates a pod and waits until it is ready.
func (s *space) run(name string, p pod) {
	s.Helper()
	s.start(name, p)
	s.running(name)
}

// running waits until a pod is ready.
func (s *space) running(name string) {
	s.Helper()
	s.until("pod "+name, func(ctx context.Context) error {
		p, err := testCluster.Client.CoreV1().Pods(s.name).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, c := range p.Status.Conditions {
			if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue {
				return nil
			}
		}
		return fmt.Errorf("phase %s: %v", p.Status.Phase, p.Status.Conditions)
	})
}

// exec runs a shell command in a pod and returns its output.
func (s *space) exec(name, command string) string {
	s.Helper()
	return strings.TrimSpace(s.kubectl("exec", name, "--", "/bin/sh", "-ec", command))
}

// drop deletes a pod and waits for its end.
func (s *space) drop(name string) {
	s.Helper()
	s.kubectl("delete", "pod", name, "--grace-period=2", "--wait")
}

// event waits for an event of an object whose message contains a text. A
// warning of a pod or a claim, but for a growth that the object does not wait for,
// is explained by kubectl cleat why.
func (s *space) event(object, text string) {
	s.Helper()
	var kind string
	var warning bool
	s.until(fmt.Sprintf("an event of %s with %q", object, text), func(ctx context.Context) error {
		events, err := testCluster.Client.CoreV1().Events(s.name).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		var seen []string
		for _, e := range events.Items {
			if e.InvolvedObject.Name == object {
				if strings.Contains(e.Message, text) {
					kind, warning = e.InvolvedObject.Kind, e.Type == corev1.EventTypeWarning && e.Reason != "VolumeResizeFailed"
					return nil
				}
				seen = append(seen, e.Message)
			}
		}
		return fmt.Errorf("got events %q", seen)
	})
	switch {
	case warning && kind == "Pod":
		s.why("pod/"+object, text)
	case warning && kind == "PersistentVolumeClaim":
		s.why("pvc/"+object, text)
	}
}

// why runs kubectl cleat why: an object that waits is explained with the texts,
// and with what helps.
func (s *space) why(object string, texts ...string) {
	s.Helper()
	s.until("kubectl cleat why "+object, func(ctx context.Context) error {
		c := exec.CommandContext(s.Context(), filepath.Join(testCluster.Dir, "bin", "cleat"), "kubectl", "why", "--kubeconfig", testCluster.Kubeconfig, "-n", s.name, object)
		out, err := c.CombinedOutput()
		lacks := func(text string) bool { return !strings.Contains(string(out), text) }
		if err == nil || slices.ContainsFunc(texts, lacks) || !strings.Contains(string(out), "\nNext:\n") || strings.Contains(string(out), "Not read:") {
			return fmt.Errorf("want an answer with %q and what helps (%v):\n%s", texts, err, out)
		}
		return nil
	})
}

var snapshots = schema.GroupVersionResource{Group: "snapshot.storage.k8s.io", Version: "v1", Resource: "volumesnapshots"}

// snapshot creates a snapshot of a claim and waits until it is ready.
func (s *space) snapshot(name, class, claim string) {
	s.Helper()
	s.createSnapshot(name, class, claim)
	s.ready(name)
}

func (s *space) createSnapshot(name, class, claim string) {
	s.Helper()
	object := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot", "metadata": map[string]any{"name": name},
		"spec": map[string]any{"volumeSnapshotClassName": class, "source": map[string]any{"persistentVolumeClaimName": claim}},
	}}
	testkit.Value(testCluster.Dynamic.Resource(snapshots).Namespace(s.name).Create(s.Context(), object, metav1.CreateOptions{}))(s)
}

// ready waits until a snapshot is ready.
func (s *space) ready(name string) {
	s.Helper()
	s.until("snapshot "+name, func(ctx context.Context) error { return s.snapshotReady(ctx, name) })
}

// snapshotReady returns why a snapshot is not ready.
func (s *space) snapshotReady(ctx context.Context, name string) error {
	o, err := testCluster.Dynamic.Resource(snapshots).Namespace(s.name).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if ready, _, _ := unstructured.NestedBool(o.Object, "status", "readyToUse"); !ready {
		return fmt.Errorf("not ready: %v", o.Object["status"])
	}
	return nil
}

// class creates a storage class until the end of the test and returns its name.
func (s *space) class(driver string, parameters map[string]string, change func(*storagev1.StorageClass)) string {
	s.Helper()
	wait, expand := storagev1.VolumeBindingWaitForFirstConsumer, true
	c := &storagev1.StorageClass{
		ObjectMeta:  metav1.ObjectMeta{GenerateName: s.name + "-"},
		Provisioner: driver, Parameters: parameters, VolumeBindingMode: &wait, AllowVolumeExpansion: &expand,
	}
	if change != nil {
		change(c)
	}
	made := testkit.Value(testCluster.Client.StorageV1().StorageClasses().Create(s.Context(), c, metav1.CreateOptions{}))(s)
	s.Cleanup(func() {
		if err := testCluster.Client.StorageV1().StorageClasses().Delete(context.Background(), made.Name, metav1.DeleteOptions{}); err != nil {
			s.Error(err)
		}
	})
	return made.Name
}
