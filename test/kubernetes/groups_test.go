package kubernetes

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cleatproject/cleat/test/testkit"
)

var (
	groupVersion  = schema.GroupVersion{Group: "groupsnapshot.storage.k8s.io", Version: "v1"}
	groups        = groupVersion.WithResource("volumegroupsnapshots")
	groupContents = groupVersion.WithResource("volumegroupsnapshotcontents")
)

// group creates a VolumeGroupSnapshot of all claims with the label of=MEMBERS.
func (s *space) group(name, class, members string) {
	s.Helper()
	s.apply(fmt.Sprintf(`
apiVersion: groupsnapshot.storage.k8s.io/v1
kind: VolumeGroupSnapshot
metadata: {name: %s}
spec: {volumeGroupSnapshotClassName: %s, source: {selector: {matchLabels: {of: %s}}}}
`, name, class, members))
}

// groupReady waits for a group and returns the name of its content.
func (s *space) groupReady(name string) (content string) {
	s.Helper()
	s.until("group "+name, func(ctx context.Context) error {
		o, err := s.object(ctx, groups, name)
		if err != nil {
			return err
		}
		if ready, _, _ := unstructured.NestedBool(o.Object, "status", "readyToUse"); !ready {
			return fmt.Errorf("not ready: %v", o.Object["status"])
		}
		content, _, _ = unstructured.NestedString(o.Object, "status", "boundVolumeGroupSnapshotContentName")
		return nil
	})
	return content
}

// members returns the snapshots of a group by source claim.
func (s *space) members(group string, count int) map[string]string {
	s.Helper()
	found := map[string]string{}
	s.until("the members of group "+group, func(ctx context.Context) error {
		all, err := testCluster.Dynamic.Resource(snapshots).Namespace(s.name).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		clear(found)
		for _, o := range all.Items {
			ready, _, _ := unstructured.NestedBool(o.Object, "status", "readyToUse")
			if ready && slices.ContainsFunc(o.GetOwnerReferences(), func(r metav1.OwnerReference) bool { return r.Kind == "VolumeGroupSnapshot" && r.Name == group }) {
				of, _, _ := unstructured.NestedString(o.Object, "spec", "source", "persistentVolumeClaimName")
				found[of] = o.GetName()
			}
		}
		if len(found) != count {
			return fmt.Errorf("got %v ready, want %d", found, count)
		}
		return nil
	})
	return found
}

// A writer counts on one volume and then on the other. In a group snapshot the
// second is never ahead of the first; in separate snapshots it is.
func TestGroupSnapshots(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	labels := map[string]string{"of": "pair"}
	s.claim("first", claim{class: "single-ext4", size: "64Mi", labels: labels})
	s.claim("second", claim{class: "single-xfs", size: "320Mi", labels: labels})
	s.claim("other", claim{class: "single-ext4", size: "64Mi"})
	s.claim("raw", claim{class: "single-ext4", size: "16Mi", block: true, labels: map[string]string{"of": "raw"}})
	s.run("writer", pod{
		mounts: map[string]string{"/first": "first", "/second": "second", "/other": "other"}, devices: map[string]string{"/dev/raw": "raw"},
		command: counter("/first/log", "/second/log"),
	})
	var groups []string
	reader := pod{mounts: map[string]string{}}
	restore := func(group string, from map[string]string) {
		for of, class := range map[string]string{"first": "single-ext4", "second": "single-xfs"} {
			size := map[string]string{"first": "64Mi", "second": "320Mi"}[of]
			s.claim(group+"-"+of, claim{class: class, size: size, from: snapshotSource(from[of])})
			reader.mounts["/"+group+"/"+of] = group + "-" + of
		}
	}
	before := map[string]int{}
	var contents, files []string
	for i := range 3 {
		group := fmt.Sprintf("group-%d", i)
		before[group] = s.acked("writer", before[fmt.Sprintf("group-%d", i-1)])
		s.group(group, "single", "pair")
		contents = append(contents, s.groupReady(group))
		members := s.members(group, 2)
		for _, m := range members {
			_, file := s.content("single.cleat.dev", m)
			files = append(files, file)
		}
		restore(group, members)
		groups = append(groups, group)
	}
	s.snapshot("alone-first", "single", "first")
	// The first snapshot has at most the number after the one acknowledged now.
	s.acked("writer", s.acked("writer", 0)+1)
	s.snapshot("alone-second", "single", "second")
	restore("alone", map[string]string{"first": "alone-first", "second": "alone-second"})

	s.run("reader", reader)
	for _, group := range groups {
		first, second := s.counted("reader", "/"+group+"/first/log"), s.counted("reader", "/"+group+"/second/log")
		if second > first || first > second+1 || second < before[group] {
			s.Errorf("%s has numbers up to %d and %d, but %d were on disk before", group, first, second, before[group])
		}
	}
	if first, second := s.counted("reader", "/alone/first/log"), s.counted("reader", "/alone/second/log"); second <= first {
		s.Errorf("separate snapshots have numbers up to %d and %d, want more in the second", first, second)
	}
	s.rawMember()
	s.kubectl(append([]string{"delete", "volumegroupsnapshot", "--wait"}, groups...)...)
	for _, c := range contents {
		s.gone(groupContents, c)
	}
	// The members are deleted by their owner, asynchronously.
	s.until("deletion of the members", func(context.Context) error {
		for _, f := range files {
			if _, err := os.Stat(f); err == nil {
				return fmt.Errorf("%s is not deleted", f)
			}
		}
		return nil
	})
	s.counted("reader", "/group-0/first/log")
}

// rawMember requests a group with a block volume in use, which cannot be
// quiesced.
func (s *space) rawMember() {
	s.Helper()
	s.group("raw", "single", "raw")
	s.until("the error of group raw", func(ctx context.Context) error {
		o, err := s.object(ctx, groups, "raw")
		if err != nil {
			return err
		}
		message, _, _ := unstructured.NestedString(o.Object, "status", "error", "message")
		for _, want := range []string{"FailedPrecondition", "writes cannot be paused", "consistency"} {
			if !strings.Contains(message, want) {
				return fmt.Errorf("got error %q, want %q", message, want)
			}
		}
		return nil
	})
	s.kubectl("delete", "volumegroupsnapshot", "raw", "--wait")
}

// With a snapshotter on each node no group snapshot is created, since
// snapshot-controller does not label the content with its node. Its deletion
// then needs help.
func TestGroupSnapshotsNeedAController(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	class := s.name + "-group"
	s.apply(fmt.Sprintf("{apiVersion: groupsnapshot.storage.k8s.io/v1, kind: VolumeGroupSnapshotClass, metadata: {name: %s}, driver: csi.cleat.dev, deletionPolicy: Delete}", class))
	s.Cleanup(func() {
		if _, err := testCluster.Kubectl(context.Background(), "", "delete", "volumegroupsnapshotclass", class); err != nil {
			s.Error(err)
		}
	})
	s.claim("data", claim{class: "local-ext4", size: "16Mi", labels: map[string]string{"of": "data"}})
	s.run("user", pod{mounts: map[string]string{"/data": "data"}})
	s.group("group", class, "data")
	var content string
	s.until("content of the group", func(ctx context.Context) error {
		o, err := s.object(ctx, groups, "group")
		if err != nil {
			return err
		}
		content, _, _ = unstructured.NestedString(o.Object, "status", "boundVolumeGroupSnapshotContentName")
		if content == "" {
			return fmt.Errorf("no content: %v", o.Object["status"])
		}
		return nil
	})
	let := func() (string, error) {
		return testCluster.Kubectl(context.Background(), "", "patch", "volumegroupsnapshotcontent", content, "--type=merge", "-p", `{"metadata":{"finalizers":null}}`)
	}
	s.Cleanup(func() {
		_, _ = testCluster.Kubectl(context.Background(), "", "-n", s.name, "delete", "volumegroupsnapshot", "group", "--wait=false")
		_, _ = let() // no effect if already done
	})

	s.snapshot("later", "local", "data") // until the snapshotter has processed the group
	o := testkit.Value(s.object(s.Context(), groupContents, content))(t)
	if o.GetLabels()["snapshot.storage.kubernetes.io/managed-by"] != "" || o.Object["status"] != nil {
		t.Errorf("the content has labels %v and status %v: groups might work here, but the chart rejects them", o.GetLabels(), o.Object["status"])
	}
	s.kubectl("delete", "volumegroupsnapshot", "group", "--wait=false")
	s.until("deletion timestamp of the content", func(ctx context.Context) error {
		o, err := s.object(ctx, groupContents, content)
		if err != nil {
			return err
		}
		if o.GetDeletionTimestamp() == nil {
			return fmt.Errorf("not set")
		}
		return nil
	})
	_, file := s.content("csi.cleat.dev", "later")
	s.kubectl("delete", "volumesnapshot", "later", "--wait") // until the snapshotter has processed the deletion
	s.noFile(file)
	if _, err := s.object(s.Context(), groupContents, content); err != nil {
		t.Errorf("the content was deleted without help: %v", err)
	}
	if out, err := let(); err != nil {
		t.Fatal(out, err)
	}
	s.gone(groups, "group")
	if left, err := filepath.Glob(inPool("csi.cleat.dev", "snapshots", filepath.Base(file)+"*")); err != nil || len(left) > 0 {
		t.Errorf("%v are not deleted (%v)", left, err)
	}
}
