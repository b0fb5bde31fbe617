package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/cleatproject/cleat/test/soak"
	"github.com/cleatproject/cleat/test/testkit"
)

var snapshotContents = snapshots.GroupVersion().WithResource("volumesnapshotcontents")

// drivers are the driver names by release.
var drivers = map[string]string{"local": "csi.cleat.dev", "single": "single.cleat.dev"}

// inPool returns the path of a volume or snapshot in a driver's pool; kind is
// volumes or snapshots.
func inPool(driver, kind, handle string) string {
	return filepath.Join("/var/lib/cleat", driver, "storage/pool", kind, handle)
}

// counter returns a shell loop that appends numbers from 1 to each of the files
// or devices in order, each synced before the next, and then writes the number
// that is on disk everywhere to /tmp/acked. It sleeps between numbers to limit
// the disk load.
func counter(paths ...string) string {
	return `trap 'exit 0' TERM
i=0
while :; do
  for f in ` + strings.Join(paths, " ") + `; do
    printf '1%07d\n' $((i+1)) | dd of=$f bs=9 seek=$i conv=notrunc,fsync 2>/dev/null || exit 1
  done
  i=$((i+1))
  echo $i >/tmp/acked.new; mv /tmp/acked.new /tmp/acked
  sleep 0.02
done`
}

// acked waits until a counter has written more further numbers, and returns its
// number.
func (s *space) acked(pod string, more int) int {
	s.Helper()
	n := testkit.Value(strconv.Atoi(s.exec(pod, fmt.Sprintf(`until [ "$(cat /tmp/acked 2>/dev/null || echo 0)" -gt %d ]; do sleep 0.1; done; cat /tmp/acked`, more))))(s)
	return n
}

// counted returns the last number in a counter's file, which must have no gaps.
func (s *space) counted(pod, path string) int {
	s.Helper()
	out := s.exec(pod, `awk '{ if ($0 != 10000000 + NR && !bad) bad = NR ": " $0 } END { print bad ? "line " bad " of " NR : NR }' `+path)
	n, err := strconv.Atoi(out)
	if err != nil {
		s.Fatalf("%s in pod %s is not a sequence from 1: %s", path, pod, out)
	}
	return n
}

// object reads an object of the namespace, or a cluster-scoped one.
func (s *space) object(ctx context.Context, resource schema.GroupVersionResource, name string) (*unstructured.Unstructured, error) {
	if resource == snapshotContents || resource == groupContents {
		return testCluster.Dynamic.Resource(resource).Get(ctx, name, metav1.GetOptions{})
	}
	return testCluster.Dynamic.Resource(resource).Namespace(s.name).Get(ctx, name, metav1.GetOptions{})
}

// gone waits until an object is deleted.
func (s *space) gone(resource schema.GroupVersionResource, name string) {
	s.Helper()
	s.until("deletion of "+name, func(ctx context.Context) error {
		o, err := s.object(ctx, resource, name)
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("not deleted (%v): %v", err, o)
	})
}

// content returns the content of a ready snapshot, and its file.
func (s *space) content(driver, snapshot string) (name, file string) {
	s.Helper()
	o := testkit.Value(s.object(s.Context(), snapshots, snapshot))(s)
	name, _, _ = unstructured.NestedString(o.Object, "status", "boundVolumeSnapshotContentName")
	c := testkit.Value(s.object(s.Context(), snapshotContents, name))(s)
	handle, _, _ := unstructured.NestedString(c.Object, "status", "snapshotHandle")
	file = inPool(driver, "snapshots", handle)
	if _, err := os.Stat(file); handle == "" || err != nil {
		s.Fatalf("content %s of snapshot %s has the handle %q: %v", name, snapshot, handle, err)
	}
	return name, file
}

// noFile fails if a path of the pool exists.
func (s *space) noFile(path string) {
	s.Helper()
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		s.Errorf("%s is left (%v)", path, err)
	}
}

// snapshotClass creates a VolumeSnapshotClass until the end of the test and
// returns its name.
func (s *space) snapshotClass(driver, deletionPolicy string) string {
	s.Helper()
	name := s.name + "-" + strings.ToLower(deletionPolicy)
	s.apply(fmt.Sprintf("{apiVersion: snapshot.storage.k8s.io/v1, kind: VolumeSnapshotClass, metadata: {name: %s}, driver: %s, deletionPolicy: %s}", name, driver, deletionPolicy))
	s.Cleanup(func() {
		if _, err := testCluster.Kubectl(context.Background(), "", "delete", "volumesnapshotclass", name); err != nil {
			s.Error(err)
		}
	})
	return name
}

// bytes returns the size of a mounted file system or, below /dev, of a device
// in a pod.
func (s *space) bytes(pod, path string) int64 {
	s.Helper()
	command := `stat -f -c '%b %S' ` + path + ` | { read b s; echo $((b*s)); }`
	if strings.HasPrefix(path, "/dev/") {
		command = "blockdev --getsize64 " + path
	}
	n := testkit.Value(strconv.ParseInt(s.exec(pod, command), 10, 64))(s)
	return n
}

// sized fails unless a device has exactly this size, and a file system most of
// it.
func (s *space) sized(pod, path string, want int64) {
	s.Helper()
	got, least := s.bytes(pod, path), want
	if !strings.HasPrefix(path, "/dev/") {
		least = want - want/4 // the log of an XFS of 320 MiB has 64 MiB
	}
	if got < least || got > want {
		s.Errorf("%s has %d bytes in pod %s, want %d to %d", path, got, pod, least, want)
	}
}

const mib = 1 << 20

// Snapshots of volumes in use, and volumes restored from them, have everything
// that was on disk before. Volumes and snapshots can be deleted in any order.
func TestSnapshots(t *testing.T) {
	t.Parallel()
	for _, release := range soak.Pick(1, []string{"local", "single"}) { // single: TestExternalStorage
		t.Run(release, func(t *testing.T) {
			t.Parallel()
			s := newSpace(t)
			driver := drivers[release]
			s.claim("files", claim{class: release + "-xfs", size: "320Mi"})
			s.claim("small", claim{class: release + "-ext4", size: "64Mi"})
			s.claim("raw", claim{class: release + "-xfs", size: "64Mi", block: true})
			s.run("writer", pod{
				mounts: map[string]string{"/files": "files", "/small": "small"}, devices: map[string]string{"/dev/raw": "raw"},
				command: "dd if=/dev/urandom of=/files/mark bs=1M count=8 conv=fsync && dd if=/files/mark of=/dev/raw bs=1M seek=32 conv=notrunc,fsync || exit 1\n" +
					counter("/files/log", "/small/log", "/dev/raw"),
			})
			before := s.acked("writer", 10)
			mark := s.exec("writer", "sha256sum </files/mark")
			s.createSnapshot("kept", s.snapshotClass(driver, "Retain"), "files")
			for _, of := range []string{"files", "small", "raw"} {
				s.createSnapshot(of, release, of)
			}
			for _, of := range []string{"kept", "files", "small", "raw"} {
				s.ready(of)
			}
			s.afterwards(driver, "kept")
			s.acked("writer", s.acked("writer", before)) // it continues after each freeze

			s.restores(release, before, mark)
			s.deletions(driver, mark)
			s.survivors(release, before, mark)
		})
	}
}

// restores creates volumes from the snapshots and from a claim.
func (s *space) restores(release string, before int, mark string) {
	s.Helper()
	s.claim("same", claim{class: release + "-xfs", size: "320Mi", from: snapshotSource("files")})
	s.claim("larger", claim{class: release + "-xfs", size: "448Mi", from: snapshotSource("files")})
	s.claim("small-larger", claim{class: release + "-ext4", size: "128Mi", from: snapshotSource("small")})
	s.claim("clone", claim{class: release + "-xfs", size: "320Mi", from: claimSource("files")})
	s.claim("raw-same", claim{class: release + "-xfs", size: "64Mi", block: true, from: snapshotSource("raw")})
	s.claim("raw-larger", claim{class: release + "-xfs", size: "128Mi", block: true, from: snapshotSource("raw")})
	s.claim("view", claim{class: release + "-xfs", size: "320Mi", block: true, from: snapshotSource("files")})
	s.start("reader", pod{
		mounts:  map[string]string{"/same": "same", "/larger": "larger", "/small": "small-larger", "/clone": "clone"},
		devices: map[string]string{"/dev/same": "raw-same", "/dev/larger": "raw-larger", "/dev/view": "view"},
	})
	// Converting a file system volume to a block volume needs an
	// administrator's permission.
	s.event("view", "snapshot.storage.kubernetes.io/allow-volume-mode-change annotation is not present")
	content, _ := s.content(drivers[release], "files")
	s.kubectl("annotate", "volumesnapshotcontent", content, "snapshot.storage.kubernetes.io/allow-volume-mode-change=true")
	s.running("reader")

	for path, size := range map[string]int64{
		"/same": 320 * mib, "/larger": 448 * mib, "/small": 128 * mib, "/clone": 320 * mib, "/dev/same": 64 * mib, "/dev/larger": 128 * mib, "/dev/view": 320 * mib,
	} {
		s.sized("reader", path, size)
	}
	for _, of := range []string{"/same", "/larger", "/small", "/clone"} {
		if n := s.counted("reader", of+"/log"); n < before {
			s.Errorf("%s has numbers up to %d, but %d were on disk before", of, n, before)
		}
	}
	for _, of := range []string{"/same", "/larger", "/clone"} {
		s.reads("reader", "sha256sum <"+of+"/mark", mark)
	}
	for _, of := range []string{"/dev/same", "/dev/larger"} {
		s.reads("reader", "dd if="+of+" bs=1M skip=32 count=8 2>/dev/null | sha256sum", mark)
		s.exec("reader", fmt.Sprintf("dd if=%s bs=9 count=%d 2>/dev/null >/tmp/log", of, before))
		if n := s.counted("reader", "/tmp/log"); n != before {
			s.Errorf("%s has numbers up to %d of %d", of, n, before)
		}
	}
	s.reads("reader", "dd if=/dev/view bs=4 count=1 2>/dev/null", "XFSB")
	// A restored volume is writable and independent of its source.
	s.exec("reader", "for d in same larger clone; do echo $d >/$d/mark; done; sync")
	s.reads("reader", "cat /same/mark /larger/mark /clone/mark", "same\nlarger\nclone")
	s.reads("writer", "sha256sum </files/mark", mark)
}

// reads compares a command's output.
func (s *space) reads(pod, command, want string) {
	s.Helper()
	if got := s.exec(pod, command); got != want {
		s.Errorf("%s in pod %s: got %q, want %q", command, pod, got, want)
	}
}

// deletions deletes a snapshot before, and one after the volume restored from
// it.
func (s *space) deletions(driver, mark string) {
	s.Helper()
	content, file := s.content(driver, "files")
	s.kubectl("delete", "volumesnapshot", "files", "--wait")
	s.gone(snapshotContents, content)
	s.noFile(file)
	s.reads("reader", "cat /same/mark", "same")
	s.reads("reader", "sha256sum </dev/same >/dev/null; cat /larger/mark", "larger")
	s.drop("reader")

	made := s.bound("raw-same")
	s.kubectl("delete", "pvc", "raw-same", "raw-larger", "--wait")
	s.until("deletion of volume "+made.Name, func(ctx context.Context) error {
		_, err := testCluster.Client.CoreV1().PersistentVolumes().Get(ctx, made.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("not deleted: %v", err)
	})
	s.noFile(inPool(driver, "volumes", made.Spec.CSI.VolumeHandle))
	content, file = s.content(driver, "raw") // the snapshot still exists
	s.kubectl("delete", "volumesnapshot", "raw", "--wait")
	s.gone(snapshotContents, content)
	s.noFile(file)
}

// afterwards deletes a snapshot of a class with Retain after the test.
func (s *space) afterwards(driver, snapshot string) {
	s.Helper()
	content, file := s.content(driver, snapshot)
	s.Cleanup(func() {
		if _, err := os.Stat(file); err != nil {
			return // the test has already deleted it
		}
		ctx, cancel := context.WithTimeout(context.Background(), waitTimeout)
		defer cancel()
		for _, args := range [][]string{
			{"patch", "volumesnapshotcontent", content, "--type=merge", "-p", `{"spec":{"deletionPolicy":"Delete"}}`},
			{"-n", s.name, "delete", "volumesnapshot", snapshot, "--ignore-not-found", "--wait"},
			{"delete", "volumesnapshotcontent", content, "--ignore-not-found", "--wait"},
		} {
			if _, err := testCluster.Kubectl(ctx, "", args...); err != nil {
				s.Log(err)
			}
		}
	})
}

// survivors deletes the claims and the object of a retained snapshot, and then
// restores volumes from the remaining snapshots.
func (s *space) survivors(release string, before int, mark string) {
	s.Helper()
	driver := drivers[release]
	s.drop("writer")
	sources := []*corev1.PersistentVolume{s.bound("files"), s.bound("small")}
	s.kubectl("delete", "pvc", "files", "small", "--wait")
	for _, v := range sources {
		s.until("deletion of volume "+v.Name, func(context.Context) error {
			if _, err := os.Stat(inPool(driver, "volumes", v.Spec.CSI.VolumeHandle)); !errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("the file is not deleted (%v)", err)
			}
			return nil
		})
	}
	content, file := s.content(driver, "kept")
	s.kubectl("delete", "volumesnapshot", "kept", "--wait")
	s.kubectl("delete", "volumesnapshotcontent", content, "--wait")
	s.found(release, "found", filepath.Base(file))

	s.claim("heir", claim{class: release + "-ext4", size: "64Mi", from: snapshotSource("small")})
	s.claim("finder", claim{class: release + "-xfs", size: "320Mi", from: snapshotSource("found")})
	s.run("late", pod{mounts: map[string]string{"/heir": "heir", "/finder": "finder"}})
	for _, of := range []string{"/heir", "/finder"} {
		if n := s.counted("late", of+"/log"); n < before {
			s.Errorf("%s has numbers up to %d, but %d were on disk before", of, n, before)
		}
	}
	s.reads("late", "sha256sum </finder/mark", mark)
	s.kubectl("delete", "volumesnapshot", "found", "--wait")
	s.gone(snapshotContents, s.name+"-found")
	s.noFile(file)
}

// found creates a snapshot of a pre-provisioned content for a handle. With a
// snapshotter on each node, the content must name the node.
func (s *space) found(release, name, handle string) {
	s.Helper()
	content := s.name + "-" + name
	s.apply(fmt.Sprintf(`
apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshotContent
metadata: {name: %s}
spec:
  deletionPolicy: Delete
  driver: %s
  source: {snapshotHandle: %s}
  sourceVolumeMode: Filesystem
  volumeSnapshotRef: {name: %s, namespace: %s}
---
apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshot
metadata: {name: %s}
spec: {source: {volumeSnapshotContentName: %s}}
`, content, drivers[release], handle, name, s.name, name, content))
	if release == "local" {
		s.snapshot("meanwhile", release, "same") // until the snapshotter has processed the content
		if err := s.snapshotReady(s.Context(), name); err == nil {
			s.Error("a content without a node label was processed, contrary to the docs")
		}
		s.kubectl("label", "volumesnapshotcontent", content, "snapshot.storage.kubernetes.io/managed-by="+testCluster.Node)
	}
	s.ready(name)
}
