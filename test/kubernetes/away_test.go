package kubernetes

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cleatproject/cleat/internal/linux/loop"
	"github.com/cleatproject/cleat/test/testkit"
)

// A volume whose claim is deleted while its driver is down is deleted after the
// driver's restart.
func TestDeletionWhileDriverIsDown(t *testing.T) {
	s := newVolumes(t)
	before := loops(t)
	s.claim("files", claim{class: "local-ext4", size: "16Mi"})
	s.claim("raw", claim{class: "local-ext4", size: "4Mi", block: true})
	s.run("p", pod{mounts: map[string]string{"/data": "files"}, devices: map[string]string{"/dev/raw": "raw"}})
	s.exec("p", "echo a >/data/a; sync")
	volumes := []*corev1.PersistentVolume{s.bound("files"), s.bound("raw")}
	s.drop("p")
	s.claim("stays", claim{class: "local-ext4", size: "16Mi"})
	s.run("stays", pod{mounts: map[string]string{"/data": "stays"}})
	back := s.removePods("local-cleat-csi-node")
	s.kubectl("delete", "pod", "stays", "--wait=false")
	s.why("pod/stays", "The driver is not registered with the kubelet", "cannot unmount without it", "get pods -A -o wide")
	s.dropClaim("files")
	s.dropClaim("raw")
	for _, v := range volumes {
		s.until("phase Released of "+v.Name, func(ctx context.Context) error { return inPhase(ctx, v.Name, corev1.VolumeReleased) })
		if _, err := os.Stat(fileOf(v)); err != nil {
			t.Error(err)
		}
	}
	back()
	s.kubectl("delete", "pvc", "stays", "--wait")
	for _, v := range volumes {
		s.forgotten(v)
	}
	s.until("loop devices to be detached", func(context.Context) error {
		if n := loops(t); n != before {
			return fmt.Errorf("got %[2]d, want %[1]d", before, n)
		}
		return nil
	})
}

// A volume whose claim and pod are deleted by force while the kubelet is down is
// deleted only after the kubelet has unmounted it: the container can still write.
func TestDeletionWhileKubeletIsDown(t *testing.T) {
	s := newVolumes(t)
	before := loops(t)
	local, single := s.runWithFile("local", "local-ext4"), s.runWithFile("single", "single-xfs")
	volumes := []*corev1.PersistentVolume{local, single}
	testkit.Must(t, testCluster.StopKubelet())
	started := false
	start := func(ctx context.Context) {
		t.Helper()
		if started {
			return
		}
		started = true
		if err := testCluster.StartKubelet(ctx); err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(func() { start(context.Background()) })
	s.kubectl("delete", "pod", "--all", "--force", "--grace-period=0", "--wait")
	s.kubectl("delete", "pvc", "--all", "--wait")
	for _, v := range volumes {
		s.until("phase Released of "+v.Name, func(ctx context.Context) error {
			return inPhase(ctx, v.Name, corev1.VolumeReleased, corev1.VolumeFailed)
		})
	}
	// The provisioner of this node called the driver, which refused. The other one
	// waits for the detachment and calls nothing.
	for v, text := range map[*corev1.PersistentVolume]string{local: "is in use", single: "is still attached to node"} {
		s.until("an event of volume "+v.Name, func(ctx context.Context) error {
			events, err := testCluster.Client.CoreV1().Events("default").List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.name=" + v.Name})
			if err != nil {
				return err
			}
			if slices.ContainsFunc(events.Items, func(e corev1.Event) bool { return strings.Contains(e.Message, text) }) {
				return nil
			}
			return fmt.Errorf("none of %d events says %q", len(events.Items), text)
		})
	}
	for _, v := range volumes {
		if len(s.mountsOf(s.device(v))) < 2 {
			t.Errorf("volume %s was unmounted while its container runs", v.Name)
		}
	}
	start(t.Context())
	for _, v := range volumes {
		s.forgotten(v)
	}
	s.until("loop devices to be detached", func(context.Context) error {
		if n := loops(t); n != before {
			return fmt.Errorf("got %[2]d, want %[1]d", before, n)
		}
		return nil
	})
}

// runWithFile runs a pod that has written a file to a new volume of the class.
func (s *space) runWithFile(name, class string) *corev1.PersistentVolume {
	s.Helper()
	s.claim(name, claim{class: class, size: "300Mi"})
	s.run(name, pod{mounts: map[string]string{"/data": name}})
	s.exec(name, "echo a >/data/a; sync")
	return s.bound(name)
}

// inPhase returns an error unless a volume is in one of the phases.
func inPhase(ctx context.Context, volume string, phases ...corev1.PersistentVolumePhase) error {
	v, err := testCluster.Client.CoreV1().PersistentVolumes().Get(ctx, volume, metav1.GetOptions{})
	if err != nil {
		return err
	}
	for _, p := range phases {
		if v.Status.Phase == p {
			return nil
		}
	}
	return fmt.Errorf("phase %s", v.Status.Phase)
}

// loops counts the loop devices of both drivers' volumes; the machine can have
// others.
func loops(t *testing.T) (n int) {
	t.Helper()
	pools := map[uint64]bool{}
	for _, driver := range []string{perNodeDriver, singleDriver} {
		f := testkit.Value(os.Open(poolOf(driver)))(t)
		b, err := loop.BackingOf(f)
		f.Close()
		testkit.Must(t, err)
		pools[b.Dev] = true
	}
	all := testkit.Value(loop.List(t.Context()))(t)
	for _, d := range all {
		if pools[d.Backing.Dev] {
			n++
		}
	}
	return n
}

// removePods removes the pods of a DaemonSet from the node, and returns a
// function that restores them.
func (s *space) removePods(name string) (back func()) {
	s.Helper()
	sets := testCluster.Client.AppsV1().DaemonSets(system)
	ready := func(want int32) func(context.Context) error {
		return func(ctx context.Context) error {
			d, err := sets.Get(ctx, name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			pods, err := testCluster.Client.CoreV1().Pods(system).List(ctx, metav1.ListOptions{LabelSelector: metav1.FormatLabelSelector(d.Spec.Selector)})
			if err == nil && (d.Status.NumberReady != want || len(pods.Items) != int(want) || d.Status.ObservedGeneration != d.Generation) {
				err = fmt.Errorf("%d of %d pods are ready", d.Status.NumberReady, len(pods.Items))
			}
			return err
		}
	}
	patch := func(text string) {
		s.Helper()
		if _, err := sets.Patch(context.Background(), name, types.MergePatchType, []byte(text), metav1.PatchOptions{}); err != nil && !apierrors.IsNotFound(err) {
			s.Fatal(err)
		}
	}
	isBack := false
	back = func() {
		s.Helper()
		if isBack {
			return
		}
		isBack = true
		patch(`{"spec":{"template":{"spec":{"nodeSelector":{"away":null}}}}}`)
		ctx, cancel := context.WithTimeout(context.Background(), waitTimeout)
		defer cancel()
		if err := poll(ctx, ready(1)); err != nil {
			s.Errorf("the pods of %s are not restored: %v", name, err)
		}
	}
	s.Cleanup(back)
	patch(`{"spec":{"template":{"spec":{"nodeSelector":{"away":"true"}}}}}`)
	s.until("deletion of the pods of "+name, ready(0))
	return back
}
