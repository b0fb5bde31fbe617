package ceph

import (
	"encoding/json"
	"strings"
	"time"

	"github.com/cleatproject/cleat/dpu/plan"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/volume/access"
)

// testDPU: cleat dpu mounts a volume by the locator of CreateVolume, which names
// neither user nor key, beside a node.
func (r *fsRig) testDPU() {
	c, k := r.claim("dpu"), r.nodes[0]
	k.Run("mkdir", "-p", "/run/ceph", "/run/keys", "/run/volumes")
	var monitors []string
	for _, m := range r.site.Monitors {
		monitors = append(monitors, m.String())
	}
	testkit.Must(r,
		k.Guest.WriteFile(r.Context(), "/run/ceph/test.conf", []byte("[global]\nmon_host = "+strings.Join(monitors, ",")+"\n"), 0o600),
		k.Guest.WriteFile(r.Context(), "/run/keys/test", []byte("[client."+r.site.User+"]\nkey = "+r.site.Key+"\n"), 0o600))
	do := func(what string) {
		r.Helper()
		job := testkit.Value(json.Marshal(map[string]any{
			"Do": what, "Name": "pvc-1", "Dir": "/run/volumes", "KeyDir": "/run/keys", "CephDir": "/run/ceph", "Deadline": time.Minute,
			"Spec": plan.MountSpec{CephFS: &access.CephFS{Ceph: access.Ceph{ClusterID: "test"}, FS: fileSystem, Path: c.path}},
		}))(r)
		if out := k.Run("mounter", string(job)); !strings.Contains(out, `"Error":""`) {
			r.Fatalf("%s: %s", what, out)
		}
	}
	c.attach(1)
	c.run(1, "echo node > file && sync")
	do("mount")
	do("mount") // a repeat finds it
	if got := k.Read("/run/volumes/pvc-1/file"); got != "node" {
		r.Errorf("the DPU reads %q", got)
	}
	// Otherwise a reader can see an empty file: docs/ceph.md has when.
	k.Run("sh", "-c", "cd /run/volumes/pvc-1 && echo dpu > new && sync && mv new file")
	if got := c.run(1, "cat file"); got != "dpu" {
		r.Errorf("the node reads %q", got)
	}
	do("unmount")
	c.detach(1)
}
