package kubernetes

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cleatproject/cleat/test/soak"
	"github.com/cleatproject/cleat/test/testkit"
)

// immediate makes a class bind its claims without a pod.
func immediate(c *storagev1.StorageClass) {
	mode := storagev1.VolumeBindingImmediate
	c.VolumeBindingMode = &mode
}

// With an fsGroup, all files of a volume, old and new, belong to the group. The
// driver does this (VOLUME_MOUNT_GROUP), once per volume.
func TestFSGroup(t *testing.T) {
	t.Parallel()
	for _, class := range soak.Pick(1, []string{"local-xfs", "single-ext4"}) {
		t.Run(class, func(t *testing.T) {
			t.Parallel()
			s := newVolumes(t)
			s.claim("files", claim{class: class, size: "300Mi"})
			s.run("root", pod{mounts: map[string]string{"/data": "files"}})
			s.exec("root", "mkdir -m 700 /data/d; umask 077; echo old >/data/d/old; echo '#!/bin/sh' >/data/run; chmod 700 /data/run; ln -s /etc/passwd /data/link; sync")
			s.drop("root")
			user, main, group := int64(1000), int64(3000), int64(2000)
			asUser := func(p *corev1.Pod) {
				p.Spec.SecurityContext = &corev1.PodSecurityContext{RunAsUser: &user, RunAsGroup: &main, FSGroup: &group, RunAsNonRoot: new(true)}
				p.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{
					AllowPrivilegeEscalation: new(false), Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
				}
			}
			s.run("user", pod{mounts: map[string]string{"/data": "files"}, change: asUser})
			s.exec("user", "echo new >/data/new; mkdir /data/d/e; echo changed >>/data/d/old; sync")
			// The driver changes mode 0700 of executable files to 0770, the
			// kubelet to 0760.
			want := "/data 2775 0:2000\n/data/d 2770 0:2000\n/data/d/old 660 0:2000\n/data/run 770 0:2000\n/data/new 644 1000:2000\n/data/d/e 2755 1000:2000"
			if got := s.exec("user", "stat -c '%n %a %u:%g' /data /data/d /data/d/old /data/run /data/new /data/d/e"); got != want {
				t.Errorf("the pod sees\n%s\nwant\n%s", got, want)
			}
			// Ownership is the same on the node, and the symbolic link changed
			// no file outside of the volume.
			at := s.mountOf("user", s.bound("files").Name).Target
			var st syscall.Stat_t
			if err := syscall.Stat(filepath.Join(at, "d/old"), &st); err != nil || st.Gid != 2000 {
				t.Errorf("on the node d/old has group %d (%v)", st.Gid, err)
			}
			if err := syscall.Stat("/etc/passwd", &st); err != nil || st.Gid != 0 {
				t.Errorf("/etc/passwd of the node has group %d (%v)", st.Gid, err)
			}
		})
	}
}

// A pod can use a claim read-only while another one writes to it.
func TestReadOnly(t *testing.T) {
	t.Parallel()
	for _, class := range soak.Pick(1, []string{"single-xfs", "local-ext4"}) {
		t.Run(class, func(t *testing.T) {
			t.Parallel()
			s := newVolumes(t)
			s.claim("files", claim{class: class, size: "300Mi"})
			s.run("writer", pod{mounts: map[string]string{"/data": "files"}})
			s.exec("writer", "echo one >/data/a; sync")
			s.run("reader", pod{mounts: map[string]string{"/data": "files"}, readOnly: true})
			s.start("container", pod{mounts: map[string]string{"/data": "files"}, change: func(p *corev1.Pod) {
				p.Spec.Containers[0].VolumeMounts[0].ReadOnly = true
			}})
			s.running("container")
			for _, name := range []string{"reader", "container"} {
				if got := s.exec(name, "cat /data/a"); got != "one" {
					t.Errorf("pod %s reads %q", name, got)
				}
				s.refused(name, "echo two >/data/b", "Read-only file system")
			}
			s.exec("writer", "echo two >/data/a; sync")
			if got := s.exec("reader", "cat /data/a"); got != "two" {
				t.Errorf("the reader reads %q", got)
			}
			// The kernel enforces read-only for a pod by a read-only mount; the
			// file system itself and the kubelet's mount stay writable.
			v := s.bound("files")
			s.wantOption(s.mountOf("writer", v.Name), "rw")
			e := s.mountOf("reader", v.Name)
			if s.wantOption(e, "ro"); !strings.Contains(strings.Join(e.SuperOptions, ","), "rw") {
				t.Errorf("the file system has options %v", e.SuperOptions)
			}
			s.wantOption(s.mountOf("container", v.Name), "rw")
			s.device(v)
		})
	}
}

// Claims with multi-node access modes are rejected, with an event.
func TestMultiNodeAccessModesAreRejected(t *testing.T) {
	t.Parallel()
	s := newVolumes(t)
	why := map[string]string{}
	for _, driver := range []string{perNodeDriver, singleDriver} {
		class := s.class(driver, nil, immediate)
		for mode, word := range map[corev1.PersistentVolumeAccessMode]string{
			corev1.ReadOnlyMany: "MULTI_NODE_READER_ONLY", corev1.ReadWriteMany: "MULTI_NODE_MULTI_WRITER",
		} {
			name := strings.ToLower(string(mode)) + "." + driver
			s.claim(name, claim{class: class, size: "300Mi", modes: []corev1.PersistentVolumeAccessMode{mode}})
			why[name] = "access mode " + word + " is not possible: a local volume is on one node; use a SINGLE_NODE mode"
		}
	}
	for name, sentence := range why {
		s.event(name, sentence)
	}
}

// Directories and files of one volume can be mounted by subPath.
func TestSubPath(t *testing.T) {
	t.Parallel()
	for _, class := range soak.Pick(1, []string{"local-xfs", "single-ext4"}) {
		t.Run(class, func(t *testing.T) {
			t.Parallel()
			s := newVolumes(t)
			s.claim("files", claim{class: class, size: "300Mi"})
			withName := func(p *corev1.Pod) {
				c := &p.Spec.Containers[0]
				c.Env = []corev1.EnvVar{{Name: "POD", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.name"}}}}
				for _, m := range []corev1.VolumeMount{
					{MountPath: "/path", SubPath: "a/b"},
					{MountPath: "/expr", SubPathExpr: "of/$(POD)"},
					{MountPath: "/only", SubPath: "a/b", ReadOnly: true},
				} {
					m.Name = "v-files"
					c.VolumeMounts = append(c.VolumeMounts, m)
				}
			}
			s.run("one", pod{mounts: map[string]string{"/all": "files"}, change: withName})
			s.exec("one", "echo path >/path/x; echo expr >/expr/y; sync")
			if got := s.exec("one", "cat /all/a/b/x /all/of/one/y /only/x"); got != "path\nexpr\npath" {
				t.Errorf("the pod reads %q", got)
			}
			s.refused("one", "echo >/only/z", "Read-only file system")
			v := s.bound("files")
			// The staging mount, the pod's mount, and one per subPath.
			if all := s.mountsOf(s.device(v)); len(all) != 5 {
				t.Errorf("got mounts %v, want 5", all)
			}
			s.run("two", pod{mounts: map[string]string{"/all": "files"}, change: withName})
			if got := s.exec("two", "cat /path/x; ls /expr /all/of"); got != "path\n/all/of:\none\ntwo\n\n/expr:" && got != "path\n/expr:\n\n/all/of:\none\ntwo" {
				t.Errorf("the other pod sees %q", got)
			}
			s.drop("one")
			// A single file.
			s.run("file", pod{mounts: map[string]string{"/name": "files"}, subPath: "a/b/x"})
			if got := s.exec("file", "cat /name"); got != "path" {
				t.Errorf("the file reads %q", got)
			}
		})
	}
}

// Pods of one node share a ReadWriteOnce claim.
func TestTwoPodsOnOneNode(t *testing.T) {
	t.Parallel()
	for _, class := range soak.Pick(1, []string{"local-xfs", "single-ext4"}) {
		t.Run(class, func(t *testing.T) {
			t.Parallel()
			s := newVolumes(t)
			s.claim("files", claim{class: class, size: "300Mi"})
			s.claim("raw", claim{class: class, size: "4Mi", block: true})
			both := pod{mounts: map[string]string{"/data": "files"}, devices: map[string]string{"/dev/raw": "raw"}}
			s.start("a", both)
			s.start("b", both)
			s.running("a")
			s.running("b")
			s.exec("a", "echo from a >/data/a; printf %-4096s fromA | dd of=/dev/raw conv=fsync 2>/dev/null")
			if got := s.exec("b", "cat /data/a; head -c 5 /dev/raw"); got != "from a\nfromA" {
				t.Errorf("pod b reads %q", got)
			}
			files, raw := s.bound("files"), s.bound("raw")
			before := s.device(files)
			if all := s.mountsOf(before); len(all) != 3 {
				t.Errorf("got mounts %v, want 3: staging and both pods", all)
			}
			s.device(raw)
			s.drop("a")
			s.exec("b", "echo from b >/data/b; cat /data/a >/dev/null; printf %-4096s fromB | dd of=/dev/raw conv=fsync 2>/dev/null")
			if after := s.device(files); after.Path != before.Path {
				t.Errorf("the device changed from %s to %s", before.Path, after.Path)
			}
			s.until("unmount of the first pod", func(context.Context) error {
				if all := s.mountsOf(before); len(all) != 2 {
					return fmt.Errorf("mounts are %v", all)
				}
				return nil
			})
		})
	}
}

// A ReadWriteOncePod claim is used by one pod at a time.
func TestReadWriteOncePod(t *testing.T) {
	t.Parallel()
	for _, class := range soak.Pick(1, []string{"single-ext4", "local-ext4"}) {
		t.Run(class, func(t *testing.T) {
			t.Parallel()
			s := newVolumes(t)
			s.claim("files", claim{class: class, size: "16Mi", modes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOncePod}})
			one := pod{mounts: map[string]string{"/data": "files"}}
			s.run("first", one)
			s.start("second", one)
			s.pending("second", "PersistentVolumeClaim with ReadWriteOncePod access mode already in-use by another pod")
			if all := s.mountsOf(s.device(s.bound("files"))); len(all) != 2 {
				t.Errorf("got mounts %v, want 2", all)
			}
			s.exec("first", "echo a >/data/a; sync")
			s.drop("first")
			s.running("second")
			if got := s.exec("second", "cat /data/a"); got != "a" {
				t.Errorf("the second pod reads %q", got)
			}
		})
	}
}

// Volumes have node affinity, and CSINode and CSIDriver objects are as
// announced.
func TestDriverObjects(t *testing.T) {
	t.Parallel()
	drivers := testCluster.Client.StorageV1().CSIDrivers()
	for _, name := range []string{perNodeDriver, singleDriver} {
		d := testkit.Value(drivers.Get(t.Context(), name, metav1.GetOptions{}))(t)
		modes := fmt.Sprint(d.Spec.VolumeLifecycleModes)
		if perNode := name == perNodeDriver; *d.Spec.AttachRequired == perNode || strings.Contains(modes, "Ephemeral") != perNode {
			t.Errorf("driver %s: attachRequired is %t, modes are %s", name, *d.Spec.AttachRequired, modes)
		}
		if !*d.Spec.PodInfoOnMount || !*d.Spec.StorageCapacity || *d.Spec.FSGroupPolicy != storagev1.FileFSGroupPolicy || *d.Spec.RequiresRepublish || !*d.Spec.SELinuxMount {
			t.Errorf("driver %s is %+v", name, d.Spec)
		}
	}
	node := testkit.Value(testCluster.Client.StorageV1().CSINodes().Get(t.Context(), testCluster.Node, metav1.GetOptions{}))(t)
	const segment = "topology.cleat.dev/node"
	found := map[string]bool{}
	for _, d := range node.Spec.Drivers {
		found[d.Name] = true
		if (d.Name == perNodeDriver || d.Name == singleDriver) &&
			(d.NodeID != testCluster.Node || fmt.Sprint(d.TopologyKeys) != "["+segment+"]" || d.Allocatable != nil) {
			t.Errorf("CSINode entry of driver %s: %+v", d.Name, d)
		}
	}
	if !found[perNodeDriver] || !found[singleDriver] {
		t.Errorf("got drivers %v", found)
	}
	labels, err := testCluster.Client.CoreV1().Nodes().Get(t.Context(), testCluster.Node, metav1.GetOptions{})
	if err != nil || labels.Labels[segment] != testCluster.Node {
		t.Errorf("node label %s is %q (%v)", segment, labels.Labels[segment], err)
	}
	for _, driver := range []string{perNodeDriver, singleDriver} {
		socket := filepath.Join("/var/lib/kubelet/plugins", driver, "csi.sock")
		if info, err := os.Stat(socket); err != nil || info.Mode() != os.ModeSocket|0o600 {
			t.Errorf("socket %s: %v, %v", socket, info, err)
		}
	}
}
