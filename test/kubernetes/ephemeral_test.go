package kubernetes

import (
	"context"
	"os"
	"strings"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cleatproject/cleat/internal/linux/loop"
	"github.com/cleatproject/cleat/internal/linux/mount"
	"github.com/cleatproject/cleat/test/testkit"
)

// inline adds inline ephemeral volumes to a pod: /NAME is volume NAME.
func inline(driver string, volumes map[string]map[string]string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		for name, attributes := range volumes {
			source := &corev1.CSIVolumeSource{Driver: driver, VolumeAttributes: map[string]string{}}
			for key, value := range attributes {
				if key == "fsType" {
					source.FSType = &value
				} else {
					source.VolumeAttributes[key] = value
				}
			}
			p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{CSI: source}})
			c := &p.Spec.Containers[0]
			c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: name, MountPath: "/" + name})
		}
	}
}

// backingOf returns the loop device of a mount and its backing file.
func (s *space) backingOf(e mount.Entry) (loop.Device, string) {
	s.Helper()
	devices := testkit.Value(loop.List(s.Context()))(s)
	for _, d := range devices {
		if d.Path == e.Source {
			path, deleted, err := loop.BackingName(d)
			if err != nil || deleted {
				s.Fatalf("backing file of %s is %s (deleted: %v, %v)", d.Path, path, deleted, err)
			}
			return d, poolOf(perNodeDriver) + "/volumes/" + path[strings.LastIndexByte(path, '/')+1:]
		}
	}
	s.Fatalf("%s at %s is not a loop device", e.Source, e.Target)
	return loop.Device{}, ""
}

// An inline volume is created with the pod's attributes, and deleted with the
// pod, however the pod ends.
func TestInlineEphemeral(t *testing.T) {
	t.Parallel()
	s := newVolumes(t)
	volumes := map[string]map[string]string{
		"thick": {"fsType": "xfs", "size": "320Mi", "provisioning": "thick", "readAheadKiB": "512"},
		"thin":  {"fsType": "ext4", "size": "32Mi"},
	}
	user, group := int64(1000), int64(2000)
	describe := func(p *corev1.Pod) {
		inline(perNodeDriver, volumes)(p)
		p.Spec.SecurityContext = &corev1.PodSecurityContext{RunAsUser: &user, RunAsGroup: &user, FSGroup: &group}
	}
	for name, end := range map[string][]string{"asked": {"--grace-period=2"}, "forced": {"--force", "--grace-period=0"}} {
		s.run(name, pod{change: describe})
		s.exec(name, "echo a >/thick/a; echo b >/thin/b; sync")
		if got := s.exec(name, "stat -c %g /thick/a /thin/b"); got != "2000\n2000" {
			t.Errorf("pod %s: files have groups %q, want the fsGroup", name, got)
		}
		s.refused(name, "dd if=/dev/zero of=/thin/large bs=1M count=40", "No space left on device")
		var files []string
		for volume, attributes := range volumes {
			e := s.mountOf(name, volume)
			if e.FSType != attributes["fsType"] {
				t.Errorf("volume %s is %s", volume, e.FSType)
			}
			d, file := s.backingOf(e)
			files = append(files, file)
			quantity := resource.MustParse(attributes["size"])
			s.wantSize(d, quantity.Value())
			var st syscall.Stat_t
			testkit.Must(t, syscall.Stat(file, &st))
			if thick := st.Blocks*512 >= quantity.Value(); thick != (attributes["provisioning"] == "thick") {
				t.Errorf("volume %s of %s takes %d bytes of the pool", volume, attributes["size"], st.Blocks*512)
			}
			if volume == "thick" {
				wantReadAhead(t, d, "512")
			}
		}
		s.kubectl(append([]string{"delete", "pod", name, "--wait"}, end...)...)
		for _, file := range files {
			s.until("deletion of an inline volume", func(ctx context.Context) error { return tracesOf(ctx, file) })
		}
	}
}

func wantReadAhead(t *testing.T, d loop.Device, kib string) {
	t.Helper()
	got, err := os.ReadFile("/sys/block/" + strings.TrimPrefix(d.Path, "/dev/") + "/queue/read_ahead_kb")
	if err != nil || strings.TrimSpace(string(got)) != kib {
		t.Errorf("%s: got read-ahead of %s KiB, want %s (%v)", d.Path, got, kib, err)
	}
}

// Invalid attributes of an inline volume are reported in the pod's events.
func TestInvalidInlineEphemeralVolumeIsRejected(t *testing.T) {
	t.Parallel()
	s := newVolumes(t)
	wrong := map[string]struct {
		driver     string
		attributes map[string]string
		why        string
	}{
		"key":     {perNodeDriver, map[string]string{"provisionning": "thick"}, `attribute "provisionning" of the inline volume is not known; did you mean "provisioning"?`},
		"size":    {perNodeDriver, map[string]string{"Size": "1Gi"}, `did you mean "size"?`},
		"value":   {perNodeDriver, map[string]string{"readAheadKiB": "much"}, `readAheadKiB "much" is not a number of KiB from 0 to 1048576`},
		"amount":  {perNodeDriver, map[string]string{"size": "many"}, "many"},
		"fs":      {perNodeDriver, map[string]string{"fsType": "ext5"}, "is not a file system that this driver supports; supported are ext4, xfs, btrfs"},
		"toolong": {perNodeDriver, map[string]string{"size": "1Pi"}, "cannot promise 1125899906842624 bytes more"},
		// The kubelet rejects it: this driver does not support inline volumes.
		"nodriver": {singleDriver, map[string]string{"size": "1Gi"}, `volume mode "Ephemeral" not supported by driver single.cleat.dev (only supports ["Persistent"])`},
	}
	for name, c := range wrong {
		s.start(name, pod{change: inline(c.driver, map[string]map[string]string{"scratch": c.attributes})})
	}
	for name, c := range wrong {
		s.event(name, c.why)
	}
}

// A generic ephemeral volume is a claim owned by its pod.
func TestGenericEphemeral(t *testing.T) {
	t.Parallel()
	s := newVolumes(t)
	class := "single-ext4"
	s.run("p", pod{change: func(p *corev1.Pod) {
		p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: "scratch", VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{
			VolumeClaimTemplate: &corev1.PersistentVolumeClaimTemplate{Spec: corev1.PersistentVolumeClaimSpec{
				StorageClassName: &class, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
				Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("32Mi")}},
			}},
		}}})
		c := &p.Spec.Containers[0]
		c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: "scratch", MountPath: "/scratch"})
	}})
	s.exec("p", "echo a >/scratch/a; sync")
	v := s.bound("p-scratch")
	s.wantSize(s.device(v), 32*mebi)
	if e := s.mountOf("p", v.Name); e.FSType != "ext4" {
		t.Errorf("got file system %s", e.FSType)
	}
	owned, err := testCluster.Client.CoreV1().PersistentVolumeClaims(s.name).Get(t.Context(), "p-scratch", metav1.GetOptions{})
	if err != nil || len(owned.OwnerReferences) != 1 || owned.OwnerReferences[0].Name != "p" {
		t.Errorf("the claim belongs to %v (%v)", owned.OwnerReferences, err)
	}
	s.drop("p")
	s.forgotten(v)
}
