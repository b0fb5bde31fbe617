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
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cleatproject/cleat/internal/linux/loop"
	"github.com/cleatproject/cleat/internal/linux/mount"
	"github.com/cleatproject/cleat/test/testkit"
)

// newVolumes is a namespace of which, when it has gone, the node must have
// forgotten every volume: its file, its loop device, its mounts.
func newVolumes(t *testing.T) *space {
	t.Helper()
	var had []corev1.PersistentVolume
	t.Cleanup(func() { // after the end of the namespace
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		for i := range had {
			if err := poll(ctx, func(ctx context.Context) error { return traces(ctx, &had[i]) }); err != nil {
				t.Error(err)
			}
		}
	})
	s := newSpace(t)
	t.Cleanup(func() { // before it
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

// poolOf is the directory of a driver's pool, which is mounted here too.
func poolOf(driver string) string { return "/var/lib/cleat/" + driver + "/storage/pool" }

// fileOf is the file of a volume in its pool.
func fileOf(v *corev1.PersistentVolume) string {
	return filepath.Join(poolOf(v.Spec.CSI.Driver), v.Spec.CSI.VolumeAttributes["file"])
}

// podDir is where the kubelet keeps what belongs to a pod.
func (s *space) podDir(name string) string {
	s.Helper()
	p := testkit.Value(testCluster.Client.CoreV1().Pods(s.name).Get(s.Context(), name, metav1.GetOptions{}))(s)
	return filepath.Join("/var/lib/kubelet/pods", string(p.UID))
}

// mountOf is the mount of a file system volume in a pod, as the kubelet's
// directory has it. An inline volume goes by its name in the pod.
func (s *space) mountOf(pod, volume string) mount.Entry {
	s.Helper()
	target := filepath.Join(s.podDir(pod), "volumes/kubernetes.io~csi", volume, "mount")
	e, ok, err := mount.At(s.Context(), target)
	if err != nil || !ok {
		s.Fatalf("no mount at %s (%v)", target, err)
	}
	return e
}

// device is the one loop device of a volume.
func (s *space) device(v *corev1.PersistentVolume) loop.Device {
	s.Helper()
	devices := s.devices(v)
	if len(devices) != 1 {
		s.Fatalf("volume %s has the loop devices %v, not one", v.Name, devices)
	}
	return devices[0]
}

func (s *space) devices(v *corev1.PersistentVolume) []loop.Device {
	s.Helper()
	f := testkit.Value(os.Open(fileOf(v)))(s)
	defer f.Close()
	b := testkit.Value(loop.BackingOf(f))(s)
	devices := testkit.Value(loop.Find(s.Context(), b))(s)
	return devices
}

// mountsOf are the mounts of a device, in the order in which they were made, as
// the kubelet sees them: the same directories have other names in the cluster's
// state.
func (s *space) mountsOf(d loop.Device) []mount.Entry {
	s.Helper()
	table := testkit.Value(mount.Table(s.Context()))(s)
	return slices.DeleteFunc(table, func(e mount.Entry) bool {
		return e.Source != d.Path || !strings.HasPrefix(e.Target, "/var/lib/kubelet/")
	})
}

// wantOption fails the test unless a mount has an option, of its own or of its
// file system.
func (s *space) wantOption(e mount.Entry, option string) {
	s.Helper()
	if !slices.Contains(e.Options, option) && !slices.Contains(e.SuperOptions, option) {
		s.Errorf("mount %s has options %v and %v, not %s", e.Target, e.Options, e.SuperOptions, option)
	}
}

// wantSize compares the size of a device with what was asked for.
func (s *space) wantSize(d loop.Device, bytes int64) {
	s.Helper()
	size, err := loop.Size(s.Context(), d)
	if err != nil || size != bytes {
		s.Errorf("%s has %d bytes, not %d (%v)", d.Path, size, bytes, err)
	}
}

// traces says what is left on the node of a volume that was deleted.
func traces(ctx context.Context, v *corev1.PersistentVolume) error {
	return tracesOf(ctx, fileOf(v))
}

// tracesOf says the same of a volume's file. Names of files are never used
// twice, so that the kernel's memory of paths is enough.
func tracesOf(ctx context.Context, file string) error {
	if _, err := os.Lstat(file); !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("file %s is still there (%v)", file, err)
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
			continue // a device that has just gone
		}
		at := slices.IndexFunc(table, func(e mount.Entry) bool { return e.Source == d.Path })
		if at >= 0 {
			return fmt.Errorf("%s of %s is still mounted at %s", d.Path, file, table[at].Target)
		}
		return fmt.Errorf("%s of %s is still there", d.Path, file)
	}
	return nil
}

// forgotten waits until nothing is left of a volume, neither in the cluster nor
// on the node.
func (s *space) forgotten(v *corev1.PersistentVolume) {
	s.Helper()
	s.until("the end of volume "+v.Name, func(ctx context.Context) error {
		left, err := testCluster.Client.CoreV1().PersistentVolumes().List(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + v.Name})
		switch {
		case err != nil:
			return err
		case len(left.Items) > 0:
			return fmt.Errorf("it is %s", left.Items[0].Status.Phase)
		}
		return traces(ctx, v)
	})
}

// refused runs a shell command in a pod that must fail and say why.
func (s *space) refused(name, command, why string) {
	s.Helper()
	out, err := testCluster.Kubectl(s.Context(), "", "-n", s.name, "exec", name, "--", "/bin/sh", "-ec", command)
	if err == nil {
		s.Errorf("in pod %s, %q went well: %s", name, command, out)
	} else if !strings.Contains(err.Error(), why) {
		s.Errorf("in pod %s, %q failed with %v, not %q", name, command, err, why)
	}
}

// pending waits until the scheduler says why it has no place for a pod.
func (s *space) pending(name, why string) {
	s.Helper()
	s.until("the scheduler's word on pod "+name, func(ctx context.Context) error {
		p, err := testCluster.Client.CoreV1().Pods(s.name).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, c := range p.Status.Conditions {
			if c.Type == corev1.PodScheduled {
				if c.Status == corev1.ConditionTrue {
					s.Fatalf("pod %s was scheduled; it was to wait: %s", name, why)
				}
				if strings.Contains(c.Message, why) {
					return nil
				}
				return errors.New(c.Message)
			}
		}
		return fmt.Errorf("it is %s", p.Status.Phase)
	})
}

// dropClaim deletes a claim that no pod uses.
func (s *space) dropClaim(name string) {
	s.Helper()
	s.kubectl("delete", "pvc", name, "--wait")
}
