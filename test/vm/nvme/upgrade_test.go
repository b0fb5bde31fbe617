package nvme

import (
	"path"
	"path/filepath"

	"github.com/cleatproject/cleat/test/features"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/test/vm/nodeservice"
	"github.com/cleatproject/cleat/volume/access"
)

const previous = "previous" // program of the build before

// testUpgradeOfNone and testUpgradeOfSPDK: the node services of the build before and of
// this tree take over each other's volumes, which are in use.
func (r *rig) testUpgradeOfNone() { r.upgrade(r.Node, hostNQN) }

func (r *rig) testUpgradeOfSPDK() {
	const cluster, name = "east", "guest"
	r.upgrade(nodeservice.New(r.Kernel, "--engine", "spdk", "--services", "node", "--cluster-id", cluster, "--node-id", name,
		"--nvme-key-dir", keys, "--state-dir", nodeservice.System+"/spdk"), access.HostNQN(cluster+"/"+name))
}

func (r *rig) upgrade(n *nodeservice.Node, host string) {
	features.Need(r, features.History)
	testkit.Must(r, r.Guest.Push(r.Context(), filepath.Join(built, previous), path.Join("/usr/bin", previous), 0o755))
	all, sizes := map[string]*claim{}, map[string]int64{}
	volume := func(name, fsType string) *nodeservice.Volume {
		id := "upgrade-" + name
		sizes[id] = 64 * mib
		s := r.subsystem(id, []string{host}, r.medium(id, sizes[id]))
		all[id] = r.claim(id, fsType, locator(s, s.UUID))
		return all[id].Volume
	}
	o := &nodeservice.Takeover{
		Node: n, Busy: volume("busy", "ext4"), Killed: volume("killed", "ext4"),
		Others: []*nodeservice.Volume{volume("mounted", "ext4"), volume("block", "")},
		Grow: func(v *nodeservice.Volume) int64 {
			testkit.Must(r, all[v.ID].grow(16*mib))
			sizes[v.ID] += 16 * mib
			return sizes[v.ID]
		},
	}
	r.Stop()
	o.UpgradeAndBack(previous, "cleat")
	for _, c := range all {
		c.wantGone("after the upgrade, and back")
		c.delete()
	}
	r.Program = "cleat"
	r.Start()
}
