package kubernetes

import (
	"context"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cleatproject/cleat/test/soak"
	"github.com/cleatproject/cleat/test/testkit"
)

// The parameters and mount options of a class are effective in the kernel.
func TestClassSettings(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		driver, fsType string
		options        []string
	}{
		{perNodeDriver, "xfs", []string{"noatime", "logbsize=64k"}},
		{singleDriver, "ext4", []string{"noatime", "nodev", "commit=17"}},
	} {
		t.Run(c.fsType, func(t *testing.T) {
			t.Parallel()
			s := newVolumes(t)
			class := s.class(c.driver, map[string]string{"fsType": c.fsType, "provisioning": "thick", "readAheadKiB": "256"},
				func(k *storagev1.StorageClass) { k.MountOptions = c.options; immediate(k) })
			s.claim("files", claim{class: class, size: "304Mi"})
			v := s.bound("files") // without a pod
			var st syscall.Stat_t
			if err := syscall.Stat(fileOf(v), &st); err != nil || st.Size != 304*mebi || st.Blocks*512 < st.Size {
				t.Errorf("the thick file has %d bytes, %d of them allocated (%v)", st.Size, st.Blocks*512, err)
			}
			s.run("p", pod{mounts: map[string]string{"/data": "files"}})
			e := s.mountOf("p", v.Name)
			if e.FSType != c.fsType {
				t.Errorf("got file system %s", e.FSType)
			}
			for _, o := range c.options {
				s.wantOption(e, o)
			}
			wantReadAhead(t, s.device(v), "256")
		})
	}
}

// An invalid class is reported in the events of its claims.
func TestInvalidClassIsRejected(t *testing.T) {
	t.Parallel()
	s := newVolumes(t)
	why := map[string]string{}
	for i, c := range soak.Pick(2, []struct {
		parameters map[string]string
		sentence   string
	}{
		{map[string]string{"provisionning": "thick"}, `parameter "provisionning" is not known; did you mean "provisioning"?`},
		{map[string]string{"readaheadkib": "64"}, `did you mean "readAheadKiB"?`},
		{map[string]string{"provisioning": "thickk"}, `did you mean "thick"?`},
		{map[string]string{"csi.storage.k8s.io/fstype": "ext5"}, "is not a file system that this driver supports; supported are ext4, xfs, btrfs"},
		{map[string]string{"trimInterval": "often"}, `trimInterval "often" is not a duration; use for example 24h or 30m, or 0 for off`},
	}) {
		for _, driver := range []string{perNodeDriver, singleDriver} {
			for mode, change := range map[string]func(*storagev1.StorageClass){"now": immediate, "wait": nil} {
				name := fmt.Sprintf("%s-%d-%s", mode, i, strings.ReplaceAll(driver, ".", "-"))
				s.claim(name, claim{class: s.class(driver, c.parameters, change), size: "16Mi"})
				why[name] = c.sentence
				if mode == "wait" {
					s.start(name, pod{mounts: map[string]string{"/data": name}})
				}
			}
		}
	}
	for name, sentence := range why {
		s.event(name, sentence)
	}
}

// Mount options with effects beyond the mount are rejected before a volume exists.
func TestUnsupportedMountOptionIsRejected(t *testing.T) {
	t.Parallel()
	s := newVolumes(t)
	s.claim("files", claim{size: "16Mi", class: s.class(perNodeDriver, map[string]string{"fsType": "ext4"},
		func(k *storagev1.StorageClass) { k.MountOptions = []string{"bind"} })})
	s.start("p", pod{mounts: map[string]string{"/data": "files"}})
	s.event("files", "mount option bind is not allowed")
}

// A volume of a class with Retain keeps its data after its claim is deleted, and
// can be used by another claim.
func TestRetainedVolumeIsReused(t *testing.T) {
	t.Parallel()
	for _, driver := range soak.Pick(1, []string{perNodeDriver, singleDriver}) {
		t.Run(driver, func(t *testing.T) {
			t.Parallel()
			s := newVolumes(t)
			retain := corev1.PersistentVolumeReclaimRetain
			class := s.class(driver, map[string]string{"fsType": "ext4"}, func(k *storagev1.StorageClass) { k.ReclaimPolicy = &retain })
			s.claim("first", claim{class: class, size: "16Mi"})
			s.run("writer", pod{mounts: map[string]string{"/data": "first"}})
			s.exec("writer", "echo kept >/data/a; sync")
			v := s.bound("first")
			volumes := testCluster.Client.CoreV1().PersistentVolumes()
			patch := func(text string) {
				t.Helper()
				if _, err := volumes.Patch(context.Background(), v.Name, types.MergePatchType, []byte(text), metav1.PatchOptions{}); err != nil {
					t.Error(err)
				}
			}
			t.Cleanup(func() { patch(`{"spec":{"persistentVolumeReclaimPolicy":"Delete"}}`) })
			s.drop("writer")
			s.dropClaim("first")
			s.until("phase Released of the volume", func(ctx context.Context) error {
				got, err := volumes.Get(ctx, v.Name, metav1.GetOptions{})
				if err == nil && got.Status.Phase != corev1.VolumeReleased {
					err = fmt.Errorf("phase %s", got.Status.Phase)
				}
				return err
			})
			testkit.Value(os.Stat(fileOf(v)))(t)
			patch(`{"spec":{"claimRef":null}}`)
			s.claim("second", claim{class: class, size: "16Mi", volume: v.Name})
			s.run("reader", pod{mounts: map[string]string{"/data": "second"}})
			if got := s.exec("reader", "cat /data/a"); got != "kept" {
				t.Errorf("the next claim reads %q", got)
			}
			if now := s.bound("second"); now.Name != v.Name || fileOf(now) != fileOf(v) {
				t.Errorf("the claim got volume %s, want %s", now.Name, v.Name)
			}
		})
	}
}
