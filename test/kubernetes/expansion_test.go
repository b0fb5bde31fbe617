package kubernetes

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cleatproject/cleat/test/features"
	"github.com/cleatproject/cleat/test/testkit"
)

// ask changes how much a claim asks for, and returns the API server's error.
func (s *space) ask(name, size string) error {
	patch := fmt.Sprintf(`{"spec":{"resources":{"requests":{"storage":%q}}}}`, size)
	_, err := testCluster.Client.CoreV1().PersistentVolumeClaims(s.name).Patch(s.Context(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	return err
}

// claims waits until something holds of a claim.
func (s *space) claims(name, what string, holds func(*corev1.PersistentVolumeClaim) bool) {
	s.Helper()
	s.until(fmt.Sprintf("claim %s: %s", name, what), func(ctx context.Context) error {
		c, err := testCluster.Client.CoreV1().PersistentVolumeClaims(s.name).Get(ctx, name, metav1.GetOptions{})
		if err == nil && !holds(c) {
			err = fmt.Errorf("it asks for %v and is %+v", c.Spec.Resources.Requests.Storage(), c.Status)
		}
		return err
	})
}

// grown waits until a claim has what it asks for, and no condition is left.
func (s *space) grown(name, size string) {
	s.Helper()
	want := resource.MustParse(size)
	s.claims(name, "it has "+size, func(c *corev1.PersistentVolumeClaim) bool {
		return c.Status.Capacity.Storage().Cmp(want) == 0 && len(c.Status.Conditions) == 0 && len(c.Status.AllocatedResourceStatuses) == 0
	})
	if v := s.bound(name); v.Spec.Capacity.Storage().Cmp(want) != 0 {
		s.Errorf("volume %s has %v, not %s", v.Name, v.Spec.Capacity.Storage(), size)
	}
}

// conditioned waits for a condition of a claim whose message has all texts in it.
func (s *space) conditioned(name string, kind corev1.PersistentVolumeClaimConditionType, texts ...string) {
	s.Helper()
	s.claims(name, fmt.Sprintf("condition %s with %q", kind, texts), func(c *corev1.PersistentVolumeClaim) bool {
		return slices.ContainsFunc(c.Status.Conditions, func(c corev1.PersistentVolumeClaimCondition) bool {
			return c.Type == kind && !slices.ContainsFunc(texts, func(t string) bool { return !strings.Contains(c.Message, t) })
		})
	})
}

// fileOf is the file of a bound claim's volume in the pool.
func (s *space) fileOf(claim string) os.FileInfo {
	s.Helper()
	v := s.bound(claim)
	info := testkit.Value(os.Stat(inPool(v.Spec.CSI.Driver, "volumes", v.Spec.CSI.VolumeHandle)))(s)
	return info
}

// A volume grows while a pod writes to it, and while none uses it. Without
// CAP_SYS_RESOURCE, an ext4 in use waits for the next pod and says so.
func TestExpansion(t *testing.T) {
	t.Parallel()
	for _, release := range []string{"local", "single"} {
		t.Run(release, func(t *testing.T) {
			t.Parallel()
			s := newSpace(t)
			s.claim("xfs", claim{class: release + "-xfs", size: "320Mi"})
			s.claim("ext4", claim{class: release + "-ext4", size: "64Mi"})
			s.claim("btrfs", claim{class: s.class(drivers[release], map[string]string{"csi.storage.k8s.io/fstype": "btrfs"}, nil), size: "256Mi"})
			s.claim("raw", claim{class: release + "-ext4", size: "64Mi", block: true})
			user := pod{
				mounts:  map[string]string{"/xfs": "xfs", "/ext4": "ext4", "/btrfs": "btrfs"},
				devices: map[string]string{"/dev/raw": "raw"},
				command: counter("/xfs/log", "/ext4/log", "/btrfs/log", "/dev/raw"),
			}
			s.run("user", user)
			before := s.acked("user", 0)
			online := map[string]string{"xfs": "416Mi", "btrfs": "384Mi", "raw": "128Mi", "ext4": "128Mi"}
			for _, name := range slices.Sorted(maps.Keys(online)) {
				testkit.Must(t, s.ask(name, online[name]))
			}
			waits := !growsOnline(t)
			for _, name := range []string{"xfs", "btrfs", "raw"} {
				s.grown(name, online[name])
			}
			if waits {
				s.checkExt4Waits()
			} else {
				s.grown("ext4", "128Mi")
				s.sized("user", "/ext4", 128*mib)
			}
			s.sized("user", "/xfs", 416*mib)
			s.sized("user", "/btrfs", 384*mib)
			s.sized("user", "/dev/raw", 128*mib)
			s.acked("user", before) // the same process as before
			if err := s.ask("xfs", "400Mi"); err == nil || !strings.Contains(err.Error(), "can not be less than status.capacity") {
				t.Errorf("asking for less than there is: %v", err)
			}
			on := s.acked("user", before)
			s.drop("user")
			s.offline(release, user, waits, on)
		})
	}
}

// growsOnline says whether an ext4 in use can grow on this machine.
func growsOnline(t *testing.T) bool {
	t.Helper()
	for _, f := range features.All() {
		if f.Name == features.OnlineExt4Growth {
			present := testkit.Value(f.Present())(t)
			return present
		}
	}
	return true // it is on all machines
}

// ext4Waits looks at an ext4 whose device has grown and that cannot follow.
func (s *space) checkExt4Waits() {
	s.Helper()
	s.conditioned("ext4", corev1.PersistentVolumeClaimNodeResizeError, "the block device has been expanded to 134217728 bytes; this process has no permission to expand the mounted ext4 file system", "CAP_SYS_RESOURCE")
	s.sized("user", "/ext4", 64*mib)
	if size := s.fileOf("ext4").Size(); size != 128*mib {
		s.Errorf("the file has %d bytes", size)
	}
	s.claims("ext4", "it still has what it had", func(c *corev1.PersistentVolumeClaim) bool {
		return c.Status.Capacity.Storage().Value() == 64*mib
	})
}

// offline asks for more while no pod uses the volumes. The file grows at once
// where there is a controller, else with the file system when a pod comes.
func (s *space) offline(release string, user pod, ext4Waits bool, on int) {
	s.Helper()
	for name, size := range map[string]string{"xfs": "512Mi", "raw": "192Mi"} {
		testkit.Must(s, s.ask(name, size))
	}
	for name, size := range map[string]int64{"xfs": 512 * mib, "raw": 192 * mib} {
		s.conditioned(name, corev1.PersistentVolumeClaimFileSystemResizePending)
		if grew := s.fileOf(name).Size() == size; grew != (release == "single") {
			s.Errorf("the file of %s has %d bytes while no pod uses it", name, s.fileOf(name).Size())
		}
	}
	user.command = ""
	s.run("next", user)
	if ext4Waits {
		s.grown("ext4", "128Mi")
		s.sized("next", "/ext4", 128*mib)
	}
	s.grown("xfs", "512Mi")
	s.grown("raw", "192Mi")
	s.sized("next", "/xfs", 512*mib)
	s.sized("next", "/dev/raw", 192*mib)
	for _, path := range []string{"/xfs", "/ext4", "/btrfs"} {
		if n := s.counted("next", path+"/log"); n < on {
			s.Errorf("%s has the numbers to %d, and %d were on disk before", path, n, on)
		}
	}
	s.exec("next", fmt.Sprintf("dd if=/dev/raw bs=9 count=%d 2>/dev/null >/tmp/log", on))
	if n := s.counted("next", "/tmp/log"); n != on {
		s.Errorf("the device has the numbers to %d of %d", n, on)
	}
}

// Who asks for more than the pool can promise reads how much is left, and gets
// what is asked for instead.
func TestExpansionBeyondThePool(t *testing.T) {
	t.Parallel()
	for _, release := range []string{"local", "single"} {
		t.Run(release, func(t *testing.T) {
			t.Parallel()
			s := newSpace(t)
			s.claim("data", claim{class: release + "-xfs", size: "320Mi"})
			s.run("user", pod{mounts: map[string]string{"/data": "data"}, command: counter("/data/log")})
			before := s.acked("user", 0)
			testkit.Must(t, s.ask("data", "9Ti"))
			figures := []string{fmt.Sprintf("cannot promise %d bytes more to a thin volume: ", 9<<40-320*mib), " are left (", " bytes free, "}
			if release == "single" {
				s.event("data", figures[0])
				s.conditioned("data", corev1.PersistentVolumeClaimControllerResizeError, figures...)
			} else {
				s.event("user", figures[0])
				s.conditioned("data", corev1.PersistentVolumeClaimNodeResizeError, figures...)
			}
			if size := s.fileOf("data").Size(); size != 320*mib {
				t.Errorf("the file has %d bytes", size)
			}
			testkit.Must(t, s.ask("data", "384Mi"))
			s.grown("data", "384Mi")
			s.sized("user", "/data", 384*mib)
			s.acked("user", before)
		})
	}
}
