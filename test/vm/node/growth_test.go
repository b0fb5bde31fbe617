package node

import (
	"testing"

	csi "github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/test/vm"
)

// testGrowInUse: an ext4 that is written to grows online, which needs a process
// with CAP_SYS_RESOURCE in the first user namespace. Others grow on any machine
// (node's TestExpandInUse).
func testGrowInUse(t *testing.T, r *rig) {
	c := r.create("grow", "ext4").attach()
	sum := c.write(2)
	before := c.totalBytes()
	writer := testkit.Value(c.Guest.Start(c.Context(), vm.Command{Argv: []string{"sh", "-c", "while echo line; do sync lines || exit 1; done > lines"}, Dir: c.Target}))(c)
	r.grow(c, 96*mib)
	testkit.Must(r, c.Expand(c.Volume, c.size))
	if got := c.totalBytes() - before; got < 80*mib {
		r.Errorf("the volume grew by %d MiB, want about 96", got/mib)
	}
	c.stillWrites(writer)
	c.holds(sum, 2)
	if got := c.conditions(); len(got) > 0 {
		r.Errorf("after growing: %q", got)
	}
	testkit.Must(r, writer.Kill(r.Context()))
	c.drop()
	vm.GoTest(t, r.Guest, "./internal/linux/growfs", "-test.run", "^TestGrowExt4(Online|WhileInUse|ByTooLittle)$")
}

// totalBytes is the volume's total size in bytes, as its user sees it.
func (c *claim) totalBytes() int64 {
	c.Helper()
	answer := testkit.Value(c.Client().NodeGetVolumeStats(c.Context(), &csi.NodeGetVolumeStatsRequest{VolumeId: c.ID, VolumePath: c.Target, StagingTargetPath: c.Staging}))(c)
	for _, u := range answer.GetUsage() {
		if u.GetUnit() == csi.VolumeUsage_BYTES {
			return u.GetTotal()
		}
	}
	c.Fatalf("stats without bytes: %v", answer)
	return 0
}

// stillWrites verifies that the writer runs and its file grows.
func (c *claim) stillWrites(p *vm.Process) {
	c.Helper()
	size := func() string { return c.Run("stat", "-c", "%s", c.Target+"/lines") }
	before := size()
	c.Await("the writer goes on", func() bool { return size() != before })
	select {
	case <-p.Done():
		c.Errorf("the writer ended: %v\n%s", p.Err(), p.Log())
	default:
	}
}
