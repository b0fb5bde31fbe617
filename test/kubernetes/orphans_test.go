package kubernetes

import (
	"path/filepath"
	"strings"
	"testing"
)

// TestOrphans deletes the objects of a volume and a snapshot but not their
// files. The commands of docs/day2.md list exactly the files without objects,
// and delete them.
func TestOrphans(t *testing.T) {
	t.Parallel()
	r := newReader(t)
	blocks := r.blocks("docs/day2.md", "Orphans", "sh", 2)
	local := strings.NewReplacer("node-7", testCluster.Node, "app.kubernetes.io/name=cleat", "app.kubernetes.io/instance=local")
	list := strings.Split(strings.TrimSpace(local.Replace(blocks[0])), "\n")
	remove := strings.Split(strings.TrimSpace(blocks[1]), "\n")

	volumes, snapshots := map[string]string{}, map[string]string{} // ids
	for _, name := range []string{"kept", "lost"} {
		r.claim(name, claim{class: "local-ext4", size: "16Mi"})
		r.run(name, pod{mounts: map[string]string{"/data": name}})
		r.snapshot("of-"+name, "local", name)
		volumes[name] = r.bound(name).Spec.CSI.VolumeHandle
		_, file := r.content(drivers["local"], "of-"+name)
		snapshots[name] = filepath.Base(file)
	}
	lost := r.bound("lost")
	pv := lost.Name
	content, _ := r.content(drivers["local"], "of-lost")
	r.sh("kubectl patch pv "+pv+` --type=merge -p '{"spec":{"persistentVolumeReclaimPolicy":"Retain"}}'`,
		"kubectl patch volumesnapshotcontent "+content+` --type=merge -p '{"spec":{"deletionPolicy":"Retain"}}'`,
		"kubectl delete volumesnapshot of-lost", "kubectl delete volumesnapshotcontent "+content,
		"kubectl delete pod lost --wait", "kubectl delete pvc lost", "kubectl delete pv "+pv)
	r.unstaged(fileOf(lost)) // a volume in use is not deleted

	names := r.sh(list[0], list[1])
	orphans := names + r.sh(list[0], list[2])
	for _, ids := range []map[string]string{volumes, snapshots} {
		if !strings.Contains(orphans, ids["lost"]) || strings.Contains(orphans, ids["kept"]) {
			t.Errorf("want %s, but not %s in\n%s", ids["lost"], ids["kept"], orphans)
		}
	}
	if !strings.Contains(names, pv) {
		t.Errorf("volume %s is not listed:\n%s", pv, names)
	}
	r.sh(list[0], strings.Replace(remove[0], "ID", volumes["lost"], 1), strings.Replace(remove[1], "ID", snapshots["lost"], 1))
	if left := r.sh(list[0], list[1], list[2]); strings.Contains(left, volumes["lost"]) || strings.Contains(left, snapshots["lost"]) {
		t.Errorf("after the deletion:\n%s", left)
	}
}
