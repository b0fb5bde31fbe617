package ceph

import (
	"fmt"
	"path"
	"path/filepath"
	"strings"

	"github.com/cleatproject/cleat/test/features"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/test/vm/cephnet"
	"github.com/cleatproject/cleat/test/vm/nodeservice"
	"github.com/cleatproject/cleat/volume/access"
)

const previous = "previous" // program of the build before

// testUpgrade: the node services of the build before and of this tree take over each
// other's RBD volumes, which are in use.
func (r *rig) testUpgrade() {
	const n = 0
	r.pushPrevious(n)
	all := map[string]*claim{}
	volume := func(name, fsType string) *nodeservice.Volume {
		c := r.claim("upgrade-"+name, fsType, 64*mib)
		testkit.Must(r, c.grant(n))
		c.Grant, all[c.ID] = c.grants[n], c
		return c.Volume
	}
	o := &nodeservice.Takeover{
		Node: r.nodes[n], Busy: volume("busy", "ext4"), Killed: volume("killed", "ext4"),
		Others: []*nodeservice.Volume{volume("mounted", "ext4"), volume("block", "")},
		Grow: func(v *nodeservice.Volume) int64 {
			testkit.Must(r, all[v.ID].grow(16*mib))
			return all[v.ID].size
		},
	}
	r.nodes[n].Stop()
	o.UpgradeAndBack(previous, "cleat")
	r.wantNothing(n)
	for _, c := range all {
		testkit.Must(r, c.revoke(n))
		c.delete()
	}
	r.nodes[n].Program = "cleat"
	r.nodes[n].Start()
}

func (r *rig) pushPrevious(n int) {
	features.Need(r, features.History)
	testkit.Must(r, r.nodes[n].Guest.Push(r.Context(), cephnet.Program(previous), path.Join("/usr/bin", previous), 0o755))
}

// testUpgrade is the same for CephFS volumes.
func (r *fsRig) testUpgrade() {
	const n, secret = 1, "/etc/cephfs-secret"
	r.pushPrevious(n)
	k := r.nodes[n].Kernel
	k.Run("mkdir", "-p", secret)
	for file, data := range map[string]string{"userID": r.site.User, "userKey": r.site.Key} {
		testkit.Must(r, k.Guest.WriteFile(r.Context(), filepath.Join(secret, file), []byte(data), 0o600))
	}
	name, address, _ := strings.Cut(r.nodeID(n), "@")
	all, sizes := map[string]*directory{}, map[string]int64{}
	volume := func(suffix string) *nodeservice.Volume {
		c := r.claim("upgrade-" + suffix)
		v := nodeservice.NewVolume(c.name, c.name, "ceph", access.Encode(access.CephFS{Ceph: access.Ceph{ClusterID: "test"}, FS: r.site.FS, Path: c.path}))
		v.Grant = map[string]string{"grantedTo": name} // there is no controller
		all[v.ID], sizes[v.ID] = c, 64*mib
		return v
	}
	o := &nodeservice.Takeover{
		Node: nodeservice.New(k, "--engine", "cephfs", "--services", "node", "--node-id", name, "--node-address", address,
			"--ceph-config", "/etc/ceph.json", "--ceph-secret", secret, "--state-dir", nodeservice.System+"/cephfs"),
		Busy: volume("busy"), Killed: volume("killed"), Others: []*nodeservice.Volume{volume("other")},
		Grow: func(v *nodeservice.Volume) int64 {
			sizes[v.ID] += 64 * mib
			testkit.Value(cluster.Command("fs", "subvolume", "resize", fileSystem, all[v.ID].name, fmt.Sprint(sizes[v.ID]), "--group_name", group))(r)
			return sizes[v.ID]
		},
	}
	r.nodes[n].Stop()
	o.UpgradeAndBack(previous, "cleat")
	r.wantNothing(n)
	r.nodes[n].Start()
}
