package kubernetes

import (
	"context"
	"regexp"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cleatproject/cleat/test/testkit"
)

// Pods created before the driver, as in docs/troubleshooting.md: a claim
// assigned to a node without a driver is rescheduled, and its VolumeAttachment
// is deleted.
func TestPodsBeforeTheDriver(t *testing.T) {
	t.Parallel()
	const section = "Pods that came before the driver"
	r := newReader(t)
	steps := r.blocks("docs/troubleshooting.md", section, "sh", 3)
	r.claim("data", claim{class: "local-xfs", size: "300Mi"})
	stuck := []byte(`{"metadata":{"annotations":{"` + selectedNode + `":"` + otherNode + `"}}}`)
	testkit.Value(testCluster.Client.CoreV1().PersistentVolumeClaims(r.name).Patch(t.Context(), "data", types.MergePatchType, stuck, metav1.PatchOptions{}))(t)
	r.start("waits", pod{mounts: map[string]string{"/data": "data"}})
	r.pending("waits", "didn't find available persistent volumes to bind")
	if out := r.sh(steps[0]); strings.TrimSpace(out) != otherNode {
		t.Errorf("the claim has selected node %q", out)
	}
	r.sh(steps[1])
	r.running("waits")

	volume := r.bound("data").Name
	attachment := &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: "csi-" + r.name},
		Spec:       storagev1.VolumeAttachmentSpec{Attacher: localDriver, NodeName: testCluster.Node, Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &volume}},
	}
	testkit.Value(testCluster.Client.StorageV1().VolumeAttachments().Create(t.Context(), attachment, metav1.CreateOptions{}))(t)
	t.Cleanup(func() { // no effect unless the steps failed
		err := testCluster.Client.StorageV1().VolumeAttachments().Delete(context.Background(), attachment.Name, metav1.DeleteOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			t.Error(err)
		}
	})
	if !strings.Contains(steps[2], "csi-6f0e7a4c") {
		t.Fatalf("the example has another name:\n%s", steps[2])
	}
	listed := regexp.MustCompile(`(?m)^` + attachment.Name + ` +` + regexp.QuoteMeta(localDriver) + ` `)
	if out := r.sh(strings.ReplaceAll(steps[2], "csi-6f0e7a4c", attachment.Name)); !listed.MatchString(out) {
		t.Errorf("the VolumeAttachment is not listed with its driver:\n%s", out)
	}
	if _, err := testCluster.Client.StorageV1().VolumeAttachments().Get(t.Context(), attachment.Name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the VolumeAttachment is not deleted (%v)", err)
	}
	if p, err := testCluster.Client.CoreV1().Pods(r.name).Get(t.Context(), "waits", metav1.GetOptions{}); err != nil || p.Status.Phase != corev1.PodRunning {
		t.Errorf("the pod is %v (%v)", p.Status.Phase, err)
	}
}
