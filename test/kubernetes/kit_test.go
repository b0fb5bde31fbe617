package kubernetes

import (
	"context"
	"fmt"
	"maps"
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

// waitTimeout bounds every wait, on a machine of two cores that is busy.
const waitTimeout = 3 * time.Minute

// space is a namespace for one test. At the end of the test everything in it is
// deleted, and the volumes that its claims had must be gone too.
type space struct {
	*testing.T
	name string
}

// newSpace makes the namespace of a test.
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

// end runs after the test's context has ended.
func (s *space) end() {
	ctx, cancel := context.WithTimeout(context.Background(), 2*waitTimeout)
	defer cancel()
	if s.Failed() {
		s.Log(describePods(ctx, testCluster, s.name))
		claims, _ := testCluster.Kubectl(ctx, "", "-n", s.name, "describe", "pvc")
		s.Log(claims)
	}
	// Snapshots first: a namespace deletes in no order, and one whose claim has
	// gone still has a content to wait for.
	if _, err := testCluster.Kubectl(ctx, "", "-n", s.name, "delete", "pods", "--all", "--grace-period=1", "--wait"); err != nil {
		s.Error(err)
	}
	for _, kind := range []string{"volumegroupsnapshots.groupsnapshot.storage.k8s.io", "volumesnapshots.snapshot.storage.k8s.io"} {
		if _, err := testCluster.Kubectl(ctx, "", "-n", s.name, "delete", kind, "--all", "--wait", "--timeout=2m"); err != nil {
			s.Error(err)
		}
	}
	if err := testCluster.Client.CoreV1().Namespaces().Delete(ctx, s.name, metav1.DeleteOptions{}); err != nil {
		s.Error(err)
	}
	if err := poll(ctx, func(ctx context.Context) error {
		_, err := testCluster.Client.CoreV1().Namespaces().Get(ctx, s.name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return s.volumesGone(ctx)
		}
		return fmt.Errorf("namespace %s is still there (%v)", s.name, err)
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
			return fmt.Errorf("volume %s of claim %s is still there: %s %s", v.Name, v.Spec.ClaimRef.Name, v.Status.Phase, v.Status.Message)
		}
	}
	return nil
}

// poll asks until there is no error or the context ends; then the last error
// is part of its own.
func poll(ctx context.Context, ask func(context.Context) error) error {
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		err := ask(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", ctx.Err(), err)
		case <-tick.C:
		}
	}
}

// until fails the test when what is asked for does not come within waitTimeout.
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

// apply makes the objects of a YAML text in the namespace.
func (s *space) apply(text string) {
	s.Helper()
	testkit.Value(testCluster.Kubectl(s.Context(), text, "-n", s.name, "apply", "--server-side", "-f", "-"))(s)
}

// claim describes a PersistentVolumeClaim.
type claim struct {
	class      string // of storage
	size       string
	block      bool
	modes      []corev1.PersistentVolumeAccessMode // ReadWriteOnce unless given
	from       *corev1.TypedObjectReference        // a snapshot or a claim
	attributes string                              // a VolumeAttributesClass
	volume     string                              // one that is there; any or another unless given
	labels     map[string]string
}

// snapshotSource and claimSource are what a claim may be made from.
func snapshotSource(name string) *corev1.TypedObjectReference {
	group := "snapshot.storage.k8s.io"
	return &corev1.TypedObjectReference{APIGroup: &group, Kind: "VolumeSnapshot", Name: name}
}

func claimSource(name string) *corev1.TypedObjectReference {
	return &corev1.TypedObjectReference{Kind: "PersistentVolumeClaim", Name: name}
}

// claim makes a claim and does not wait: many are bound by their first pod.
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
	if c.attributes != "" {
		p.Spec.VolumeAttributesClassName = &c.attributes
	}
	testkit.Value(testCluster.Client.CoreV1().PersistentVolumeClaims(s.name).Create(s.Context(), p, metav1.CreateOptions{}))(s)
}

// bound waits for a claim and returns its volume.
func (s *space) bound(name string) *corev1.PersistentVolume {
	s.Helper()
	var volume *corev1.PersistentVolume
	s.until("claim "+name, func(ctx context.Context) error {
		p, err := testCluster.Client.CoreV1().PersistentVolumeClaims(s.name).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if p.Status.Phase != corev1.ClaimBound {
			return fmt.Errorf("it is %s", p.Status.Phase)
		}
		volume, err = testCluster.Client.CoreV1().PersistentVolumes().Get(ctx, p.Spec.VolumeName, metav1.GetOptions{})
		return err
	})
	return volume
}

// pod describes a pod of one container with a shell.
type pod struct {
	// mounts and devices are claims by the path at which the container sees them.
	mounts, devices map[string]string
	readOnly        bool   // mounts
	subPath         string // of every mount
	command         string // for sh -c; it waits for ever unless given
	change          func(*corev1.Pod)
}

// start makes a pod and does not wait for it.
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

// run makes a pod and waits until it runs.
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
		return fmt.Errorf("it is %s: %v", p.Status.Phase, p.Status.Conditions)
	})
}

// exec runs a shell command in a pod and returns what it prints.
func (s *space) exec(name, command string) string {
	s.Helper()
	return strings.TrimSpace(s.kubectl("exec", name, "--", "/bin/sh", "-ec", command))
}

// drop deletes a pod and waits until it has gone.
func (s *space) drop(name string) {
	s.Helper()
	s.kubectl("delete", "pod", name, "--grace-period=2", "--wait")
}

// event waits for an event about an object whose message has a text in it.
func (s *space) event(object, text string) {
	s.Helper()
	s.until(fmt.Sprintf("an event of %s with %q", object, text), func(ctx context.Context) error {
		events, err := testCluster.Client.CoreV1().Events(s.name).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		var seen []string
		for _, e := range events.Items {
			if e.InvolvedObject.Name == object {
				if strings.Contains(e.Message, text) {
					return nil
				}
				seen = append(seen, e.Message)
			}
		}
		return fmt.Errorf("there are %q", seen)
	})
}

var snapshots = schema.GroupVersionResource{Group: "snapshot.storage.k8s.io", Version: "v1", Resource: "volumesnapshots"}

// snapshot cuts a snapshot of a claim and waits until it can be used.
func (s *space) snapshot(name, class, claim string) {
	s.Helper()
	s.createSnapshot(name, class, claim)
	s.ready(name)
}

// cut asks for a snapshot of a claim.
func (s *space) createSnapshot(name, class, claim string) {
	s.Helper()
	object := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot", "metadata": map[string]any{"name": name},
		"spec": map[string]any{"volumeSnapshotClassName": class, "source": map[string]any{"persistentVolumeClaimName": claim}},
	}}
	testkit.Value(testCluster.Dynamic.Resource(snapshots).Namespace(s.name).Create(s.Context(), object, metav1.CreateOptions{}))(s)
}

// ready waits until a snapshot can be used.
func (s *space) ready(name string) {
	s.Helper()
	s.until("snapshot "+name, func(ctx context.Context) error { return s.snapshotReady(ctx, name) })
}

// snapshotReady is the reason why a snapshot cannot be used.
func (s *space) snapshotReady(ctx context.Context, name string) error {
	o, err := testCluster.Dynamic.Resource(snapshots).Namespace(s.name).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if ready, _, _ := unstructured.NestedBool(o.Object, "status", "readyToUse"); !ready {
		return fmt.Errorf("it is not ready: %v", o.Object["status"])
	}
	return nil
}

// class makes a storage class beside those of the chart, for the time of the
// test, and returns its name.
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
