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

// ask changes the requested size of a claim and returns the API server's error.
func (s *space) ask(name, size string) error {
	patch := fmt.Sprintf(`{"spec":{"resources":{"requests":{"storage":%q}}}}`, size)
	_, err := testCluster.Client.CoreV1().PersistentVolumeClaims(s.name).Patch(s.Context(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	return err
}

// claims waits until a claim satisfies holds.
func (s *space) claims(name, what string, holds func(*corev1.PersistentVolumeClaim) bool) {
	s.Helper()
	s.until(fmt.Sprintf("claim %s: %s", name, what), func(ctx context.Context) error {
		c, err := testCluster.Client.CoreV1().PersistentVolumeClaims(s.name).Get(ctx, name, metav1.GetOptions{})
		if err == nil && !holds(c) {
			err = fmt.Errorf("the claim requests %v, status %+v", c.Spec.Resources.Requests.Storage(), c.Status)
		}
		return err
	})
}

// changing reports whether a claim has a condition, except Unused of
// Kubernetes 1.37.
func changing(c *corev1.PersistentVolumeClaim) bool {
	return slices.ContainsFunc(c.Status.Conditions, func(c corev1.PersistentVolumeClaimCondition) bool {
		return c.Type != corev1.PersistentVolumeClaimUnused
	})
}

// grown waits until a claim has the requested size and no condition of a growth.
func (s *space) grown(name, size string) {
	s.Helper()
	want := resource.MustParse(size)
	s.claims(name, "it has "+size, func(c *corev1.PersistentVolumeClaim) bool {
		return c.Status.Capacity.Storage().Cmp(want) == 0 && !changing(c) && len(c.Status.AllocatedResourceStatuses) == 0
	})
	if v := s.bound(name); v.Spec.Capacity.Storage().Cmp(want) != 0 {
		s.Errorf("volume %s has %v, want %s", v.Name, v.Spec.Capacity.Storage(), size)
	}
}

// conditioned waits for a condition of a claim whose message contains all
// texts.
func (s *space) conditioned(name string, kind corev1.PersistentVolumeClaimConditionType, texts ...string) {
	s.Helper()
	s.claims(name, fmt.Sprintf("condition %s with %q", kind, texts), func(c *corev1.PersistentVolumeClaim) bool {
		return slices.ContainsFunc(c.Status.Conditions, func(c corev1.PersistentVolumeClaimCondition) bool {
			return c.Type == kind && !slices.ContainsFunc(texts, func(t string) bool { return !strings.Contains(c.Message, t) })
		})
	})
}

// fileOf returns the file of a bound claim's volume in the pool.
func (s *space) fileOf(claim string) os.FileInfo {
	s.Helper()
	v := s.bound(claim)
	info := testkit.Value(os.Stat(inPool(v.Spec.CSI.Driver, "volumes", v.Spec.CSI.VolumeHandle)))(s)
	return info
}

// Volumes expand online and offline. Without CAP_SYS_RESOURCE, ext4 cannot grow
// online: it waits for the next pod, with an event.
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
			s.acked("user", before) // the writer was not restarted
			if err := s.ask("xfs", "400Mi"); err == nil || !strings.Contains(err.Error(), "can not be less than status.capacity") {
				t.Errorf("smaller request: got error %v", err)
			}
			on := s.acked("user", before)
			s.drop("user")
			s.unstaged(fileOf(s.bound("ext4"))) // a pod that starts before has the mounted file system
			s.offline(release, user, waits, on)
		})
	}
}

// growsOnline reports whether ext4 can grow online on this machine.
func growsOnline(t *testing.T) bool {
	t.Helper()
	for _, f := range features.All() {
		if f.Name == features.OnlineExt4Growth {
			present := testkit.Value(f.Present())(t)
			return present
		}
	}
	return true // always possible here
}

// checkExt4Waits checks an ext4 whose device has grown, but not the file
// system.
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

// offline expands volumes that no pod uses. With a controller the file grows at
// once, else together with the file system when a pod starts.
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
	s.why("pvc/xfs", "Waiting for user to (re-)start a pod", "Expected, while no pod uses the claim", "start a pod")
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
			s.Errorf("%s has numbers up to %d, but %d were on disk before", path, n, on)
		}
	}
	s.exec("next", fmt.Sprintf("dd if=/dev/raw bs=9 count=%d 2>/dev/null >/tmp/log", on))
	if n := s.counted("next", "/tmp/log"); n != on {
		s.Errorf("the device has numbers up to %d of %d", n, on)
	}
}

// A request beyond the pool's capacity fails with an event that has the
// remaining capacity; a smaller request then succeeds.
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
			s.why("pvc/data", figures[0], "The pool does not have this capacity", "request less")
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
