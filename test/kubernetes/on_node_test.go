package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cleatproject/cleat/internal/linux/loop"
	"github.com/cleatproject/cleat/internal/linux/mount"
	"github.com/cleatproject/cleat/test/testkit"
)

// newVolumes returns a namespace whose volumes, with file, loop device and
// mounts, must be gone from the node after the test.
func newVolumes(t *testing.T) *space {
	t.Helper()
	var had []corev1.PersistentVolume
	t.Cleanup(func() { // after the namespace is deleted
		ctx, cancel := context.WithTimeout(context.Background(), waitTimeout)
		defer cancel()
		for i := range had {
			if err := poll(ctx, func(ctx context.Context) error { return traces(ctx, &had[i]) }); err != nil {
				t.Error(err)
			}
		}
	})
	s := newSpace(t)
	t.Cleanup(func() { // before that
		all, err := testCluster.Client.CoreV1().PersistentVolumes().List(context.Background(), metav1.ListOptions{})
		if err != nil {
			t.Error(err)
			return
		}
		for _, v := range all.Items {
			if v.Spec.CSI != nil && v.Spec.ClaimRef != nil && v.Spec.ClaimRef.Namespace == s.name {
				had = append(had, v)
			}
		}
	})
	return s
}

// poolOf returns the directory of a driver's pool, which is mounted here too.
func poolOf(driver string) string { return "/var/lib/cleat/" + driver + "/storage/pool" }

// fileOf returns the file of a volume in its pool.
func fileOf(v *corev1.PersistentVolume) string {
	return filepath.Join(poolOf(v.Spec.CSI.Driver), v.Spec.CSI.VolumeAttributes["file"])
}

// podDir returns the kubelet's directory of a pod.
func (s *space) podDir(name string) string {
	s.Helper()
	p := testkit.Value(testCluster.Client.CoreV1().Pods(s.name).Get(s.Context(), name, metav1.GetOptions{}))(s)
	return filepath.Join("/var/lib/kubelet/pods", string(p.UID))
}

// mountOf returns the mount of a file system volume below the kubelet's pod
// directory. An inline volume is identified by its name in the pod.
func (s *space) mountOf(pod, volume string) mount.Entry {
	s.Helper()
	target := filepath.Join(s.podDir(pod), "volumes/kubernetes.io~csi", volume, "mount")
	e, ok, err := mount.At(s.Context(), target)
	if err != nil || !ok {
		s.Fatalf("no mount at %s (%v)", target, err)
	}
	return e
}

func (s *space) device(v *corev1.PersistentVolume) loop.Device {
	s.Helper()
	devices := s.devices(v)
	if len(devices) != 1 {
		s.Fatalf("volume %s: got loop devices %v, want one", v.Name, devices)
	}
	return devices[0]
}

func (s *space) devices(v *corev1.PersistentVolume) []loop.Device {
	s.Helper()
	return s.devicesOf(fileOf(v))
}

func (s *space) devicesOf(file string) []loop.Device {
	s.Helper()
	f := testkit.Value(os.Open(file))(s)
	defer f.Close()
	b := testkit.Value(loop.BackingOf(f))(s)
	devices := testkit.Value(loop.Find(s.Context(), b))(s)
	return devices
}

// unstaged waits until the file of a volume has no loop device: the kubelet unstages
// a volume after the end of its last pod.
func (s *space) unstaged(file string) {
	s.Helper()
	s.until("loop devices to be detached of "+file, func(context.Context) error {
		if d := s.devicesOf(file); len(d) > 0 {
			return fmt.Errorf("got %v", d)
		}
		return nil
	})
}

// mountsOf returns the mounts of a device in mount order, with the kubelet's
// paths: the same directories are also mounted in the cluster's state
// directory.
func (s *space) mountsOf(d loop.Device) []mount.Entry {
	s.Helper()
	table := testkit.Value(mount.Table(s.Context()))(s)
	return slices.DeleteFunc(table, func(e mount.Entry) bool {
		return e.Source != d.Path || !strings.HasPrefix(e.Target, "/var/lib/kubelet/")
	})
}

// wantOption fails unless a mount or its file system has an option.
func (s *space) wantOption(e mount.Entry, option string) {
	s.Helper()
	if !slices.Contains(e.Options, option) && !slices.Contains(e.SuperOptions, option) {
		s.Errorf("mount %s has options %v and %v, want %s", e.Target, e.Options, e.SuperOptions, option)
	}
}

// wantSize compares the size of a device with the request.
func (s *space) wantSize(d loop.Device, bytes int64) {
	s.Helper()
	size, err := loop.Size(s.Context(), d)
	if err != nil || size != bytes {
		s.Errorf("%s has %d bytes, want %d (%v)", d.Path, size, bytes, err)
	}
}

// traces returns an error if anything of a deleted volume is left on the node.
func traces(ctx context.Context, v *corev1.PersistentVolume) error {
	return tracesOf(ctx, fileOf(v))
}

// tracesOf does so for a volume's file. File names are unique, so the kernel's
// path of a deleted file identifies it.
func tracesOf(ctx context.Context, file string) error {
	if _, err := os.Lstat(file); !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("file %s is left (%v)", file, err)
	}
	devices, err := loop.List(ctx)
	if err != nil {
		return err
	}
	table, err := mount.Table(ctx)
	if err != nil {
		return err
	}
	for _, d := range devices {
		path, _, err := loop.BackingName(d)
		if err != nil || !strings.HasSuffix(path, filepath.Base(file)) {
			continue // the device was just detached
		}
		at := slices.IndexFunc(table, func(e mount.Entry) bool { return e.Source == d.Path })
		if at >= 0 {
			return fmt.Errorf("%s of %s is still mounted at %s", d.Path, file, table[at].Target)
		}
		return fmt.Errorf("%s of %s is still attached", d.Path, file)
	}
	return nil
}

// forgotten waits until a volume is gone from the cluster and the node.
func (s *space) forgotten(v *corev1.PersistentVolume) {
	s.Helper()
	s.until("deletion of volume "+v.Name, func(ctx context.Context) error {
		left, err := testCluster.Client.CoreV1().PersistentVolumes().List(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + v.Name})
		switch {
		case err != nil:
			return err
		case len(left.Items) > 0:
			return fmt.Errorf("phase %s", left.Items[0].Status.Phase)
		}
		return traces(ctx, v)
	})
}

// refused runs a shell command in a pod that must fail with a reason.
func (s *space) refused(name, command, why string) {
	s.Helper()
	out, err := testCluster.Kubectl(s.Context(), "", "-n", s.name, "exec", name, "--", "/bin/sh", "-ec", command)
	if err == nil {
		s.Errorf("in pod %s, %q succeeded: %s", name, command, out)
	} else if !strings.Contains(err.Error(), why) {
		s.Errorf("in pod %s, %q failed with %v, want %q", name, command, err, why)
	}
}

// pending waits until the scheduler reports why a pod is not scheduled.
func (s *space) pending(name, why string) {
	s.Helper()
	s.until("PodScheduled condition of pod "+name, func(ctx context.Context) error {
		p, err := testCluster.Client.CoreV1().Pods(s.name).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, c := range p.Status.Conditions {
			if c.Type == corev1.PodScheduled {
				if c.Status == corev1.ConditionTrue {
					s.Fatalf("pod %s was scheduled, want it pending: %s", name, why)
				}
				if strings.Contains(c.Message, why) {
					return nil
				}
				return errors.New(c.Message)
			}
		}
		return fmt.Errorf("phase %s", p.Status.Phase)
	})
	s.why("pod/"+name, why)
}

// dropClaim deletes an unused claim.
func (s *space) dropClaim(name string) {
	s.Helper()
	s.kubectl("delete", "pvc", name, "--wait")
}
