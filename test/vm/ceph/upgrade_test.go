package ceph

import (
	"path"

	"github.com/cleatproject/cleat/test/features"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/test/vm/cephnet"
	"github.com/cleatproject/cleat/test/vm/nodeservice"
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
