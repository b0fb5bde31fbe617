package kubernetes

import (
	"context"
	"fmt"
	"strings"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cleatproject/cleat/test/testkit"
)

// attributes creates a VolumeAttributesClass until the end of the test.
func (s *space) attributes(driver, suffix string, parameters map[string]string) string {
	s.Helper()
	name := s.name + "-" + suffix
	testkit.Value(testCluster.Client.StorageV1().VolumeAttributesClasses().Create(s.Context(), &storagev1.VolumeAttributesClass{
		ObjectMeta: metav1.ObjectMeta{Name: name}, DriverName: driver, Parameters: parameters,
	}, metav1.CreateOptions{}))(s)
	s.Cleanup(func() {
		if err := testCluster.Client.StorageV1().VolumeAttributesClasses().Delete(context.Background(), name, metav1.DeleteOptions{}); err != nil {
			s.Error(err)
		}
	})
	return name
}

// change sets the VolumeAttributesClass of a claim.
func (s *space) change(claim, class string) {
	s.Helper()
	patch := fmt.Sprintf(`{"spec":{"volumeAttributesClassName":%q}}`, class)
	testkit.Value(testCluster.Client.CoreV1().PersistentVolumeClaims(s.name).Patch(s.Context(), claim, types.MergePatchType, []byte(patch), metav1.PatchOptions{}))(s)
}

// changed waits until a claim and its volume have a class and no modification
// is pending.
func (s *space) changed(claim, class string) {
	s.Helper()
	s.claims(claim, "its class is "+class, func(c *corev1.PersistentVolumeClaim) bool {
		now := c.Status.CurrentVolumeAttributesClassName
		return now != nil && *now == class && c.Status.ModifyVolumeStatus == nil && !changing(c)
	})
	if v := s.bound(claim); v.Spec.VolumeAttributesClassName == nil || *v.Spec.VolumeAttributesClassName != class {
		s.Errorf("volume %s has class %v, not %s", v.Name, v.Spec.VolumeAttributesClassName, class)
	}
}

// allocated returns the bytes that a claim's volume uses in the pool.
func (s *space) allocated(claim string) int64 {
	s.Helper()
	return s.fileOf(claim).Sys().(*syscall.Stat_t).Blocks * 512
}

// A VolumeAttributesClass applies at creation and to volumes in use.
func TestVolumeAttributes(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	wrong := s.attributes("single.cleat.dev", "wrong", map[string]string{"provisionning": "thick"})
	s.claim("thick", claim{class: "single-ext4", size: "64Mi", attributes: "single-thick"})
	s.claim("turned", claim{class: "single-ext4", size: "64Mi"})
	s.claim("large", claim{class: "single-xfs", size: "40Gi"})
	s.claim("wrong", claim{class: "single-ext4", size: "64Mi", attributes: wrong})
	user := pod{mounts: map[string]string{"/thick": "thick", "/turned": "turned", "/large": "large"}, command: counter("/thick/log", "/turned/log")}
	s.run("user", user)
	s.start("never", pod{mounts: map[string]string{"/wrong": "wrong"}})
	before := s.acked("user", 0)

	s.changed("thick", "single-thick")
	if n := s.allocated("thick"); n < 64*mib {
		t.Errorf("the volume created thick uses %d bytes of the pool", n)
	}
	if n := s.allocated("turned"); n > 32*mib {
		t.Errorf("the thin volume uses %d bytes of the pool", n)
	}
	s.change("turned", "single-thick")
	s.changed("turned", "single-thick")
	if n := s.allocated("turned"); n < 64*mib {
		t.Errorf("the volume changed to thick uses %d bytes of the pool", n)
	}
	s.acked("user", s.acked("user", before))

	lesson := `parameter "provisionning" is not known; did you mean "provisioning"?`
	s.change("turned", wrong)
	s.conditioned("turned", corev1.PersistentVolumeClaimVolumeModifyVolumeError, lesson)
	s.event("turned", lesson)
	s.claims("turned", "the change is infeasible", func(c *corev1.PersistentVolumeClaim) bool {
		m := c.Status.ModifyVolumeStatus
		return m != nil && m.Status == corev1.PersistentVolumeClaimModifyVolumeInfeasible && m.TargetVolumeAttributesClassName == wrong &&
			*c.Status.CurrentVolumeAttributesClassName == "single-thick"
	})
	s.change("turned", "single-trimmed")
	s.changed("turned", "single-trimmed")
	// A change without enough space fails, and a later, different class
	// applies.
	s.change("large", "single-thick")
	s.conditioned("large", corev1.PersistentVolumeClaimVolumeModifyVolumeError, fmt.Sprintf("cannot promise %d bytes more to a thick volume: ", 40<<30), " are left (")
	s.change("large", "single-trimmed")
	s.changed("large", "single-trimmed")
	s.event("wrong", `"provisionning" is not a parameter that can be changed; did you mean provisioning?`)
	s.claims("wrong", "it is not made", func(c *corev1.PersistentVolumeClaim) bool { return c.Status.Phase == corev1.ClaimPending })
	s.acked("user", s.acked("user", before))
}

// With a controller on each node no sidecar handles VolumeAttributesClass:
// claims with a class are not provisioned, and later changes have no effect.
func TestVolumeAttributesNeedAController(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	class := s.attributes("csi.cleat.dev", "thick", map[string]string{"provisioning": "thick"})
	s.claim("with", claim{class: "local-ext4", size: "16Mi", attributes: class})
	s.start("never", pod{mounts: map[string]string{"/with": "with"}})
	s.claim("later", claim{class: "local-xfs", size: "320Mi"})
	s.run("user", pod{mounts: map[string]string{"/later": "later"}})
	s.event("with", "CSI driver does not support VolumeAttributesClass: controller MODIFY_VOLUME capability is not reported")
	s.claims("with", "it is not made", func(c *corev1.PersistentVolumeClaim) bool { return c.Status.Phase == corev1.ClaimPending })

	s.change("later", class)
	testkit.Must(t, s.ask("later", "352Mi"))
	s.grown("later", "352Mi") // the resizer has processed the claim
	s.claims("later", "its class is ignored", func(c *corev1.PersistentVolumeClaim) bool {
		return c.Status.CurrentVolumeAttributesClassName == nil && c.Status.ModifyVolumeStatus == nil
	})
	if n := s.allocated("later"); n > 160*mib {
		t.Errorf("the volume uses %d bytes of the pool", n)
	}
	logs := testkit.Value(testCluster.Kubectl(s.Context(), "", "-n", system, "logs", "-l", "app.kubernetes.io/instance=local"+notPlacement, "-c", "csi-resizer", "--tail=-1"))(t)
	if !strings.Contains(logs, "Modify not supported") {
		t.Errorf("the resizer does not log that it ignores the class: %s", logs)
	}
}
