package node

import (
	"fmt"
	"strings"
	"testing"

	csi "github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/test/vm"
)

// TestVolumes runs its tests in one guest that is not rebooted.
func TestVolumes(t *testing.T) {
	t.Parallel()
	r := newRig(t, "xfs")
	testGrowInUse(t, r)
	testTrimFreesPoolSpace(r)
	r.stop()
}

// testGrowInUse verifies that file systems and block volumes grow online while
// they are written to.
func testGrowInUse(t *testing.T, r *rig) {
	for _, fsType := range []string{"ext4", "xfs", "btrfs", ""} {
		name := "grow-" + fsType
		t.Run(name, func(t *testing.T) {
			here := *r
			here.TB = t
			here.growInUse(name, fsType)
		})
	}
	vm.GoTest(t, r.guest, "./internal/linux/growfs", "-test.run", "^TestGrowExt4(Online|WhileInUse|ByTooLittle)$")
}

func (r *rig) growInUse(name, fsType string) {
	c := r.create(name, fsType).attach()
	sum := c.write(2)
	before := c.totalBytes()
	writer := c.keepWriting()
	target := c.size + 96*mib
	controller := testkit.Value(r.controller().ControllerExpandVolume(r.Context(), &csi.ControllerExpandVolumeRequest{
		VolumeId: c.id, CapacityRange: &csi.CapacityRange{RequiredBytes: target}, VolumeCapability: capability(fsType)}))(r)
	if controller.GetCapacityBytes() < target || !controller.GetNodeExpansionRequired() {
		r.Errorf("ControllerExpandVolume: got %v, want at least %d bytes and node expansion", controller, target)
	}
	node := testkit.Value(r.node().NodeExpandVolume(r.Context(), &csi.NodeExpandVolumeRequest{
		VolumeId: c.id, VolumePath: c.target, StagingTargetPath: c.staging, VolumeCapability: capability(fsType),
		CapacityRange: &csi.CapacityRange{RequiredBytes: target}}))(r)
	if node.GetCapacityBytes() < target {
		r.Errorf("NodeExpandVolume: got %d bytes, want at least %d", node.GetCapacityBytes(), target)
	}
	if got := c.totalBytes() - before; got < 80*mib {
		r.Errorf("the volume grew by %d MiB, want about 96", got/mib)
	}
	if fsType != "" {
		c.stillWrites(writer)
	}
	c.holds(sum, 2)
	if got := c.conditions(); len(got) > 0 {
		r.Errorf("after growing: %q", got)
	}
	if writer != nil {
		testkit.Must(r, writer.Kill(r.Context()))
		<-writer.Done()
	}
	c.drop()
}

// totalBytes is the volume's total size in bytes, as its user sees it.
func (c *claim) totalBytes() int64 {
	c.Helper()
	answer := testkit.Value(c.node().NodeGetVolumeStats(c.Context(), &csi.NodeGetVolumeStatsRequest{VolumeId: c.id, VolumePath: c.target, StagingTargetPath: c.staging}))(c)
	for _, u := range answer.GetUsage() {
		if u.GetUnit() == csi.VolumeUsage_BYTES {
			return u.GetTotal()
		}
	}
	c.Fatalf("stats without bytes: %v", answer)
	return 0
}

// keepWriting appends lines to a file of the volume until it is killed.
func (c *claim) keepWriting() *vm.Process {
	c.Helper()
	if c.fsType == "" {
		return nil
	}
	p := testkit.Value(c.guest.Start(c.Context(), vm.Command{Argv: []string{"sh", "-c", "while echo line; do sync lines || exit 1; done > lines"}, Dir: c.target}))(c)
	return p
}

// stillWrites verifies that the writer runs and its file grows.
func (c *claim) stillWrites(p *vm.Process) {
	c.Helper()
	size := func() string { return c.run("stat", "-c", "%s", c.target+"/lines") }
	before := size()
	c.eventually("the writer goes on", func() bool { return size() != before })
	select {
	case <-p.Done():
		c.Errorf("the writer ended: %v\n%s", p.Err(), p.Log())
	default:
	}
}

// testTrimFreesPoolSpace verifies that fstrim frees space of a thin volume in the
// pool, through the file system and the loop device.
func testTrimFreesPoolSpace(r *rig) {
	r.Helper()
	for _, fsType := range []string{"ext4", "xfs", "btrfs"} {
		c := r.create("trim-"+fsType, fsType).attach()
		empty := c.allocated()
		c.write(24)
		full := c.allocated()
		if full-empty < 20*mib {
			r.Fatalf("%s: 24 MiB of data use %d KiB of the pool", fsType, (full-empty)>>10)
		}
		r.run("rm", c.file())
		r.run("sync")
		r.run("fstrim", c.target)
		r.run("sync")
		if after := c.allocated(); after-empty > 2*mib {
			r.Errorf("%s: pool usage is %d KiB empty, %d KiB full, and %d KiB after delete and trim", fsType, empty>>10, full>>10, after>>10)
		}
		c.drop()
	}
}

// allocated is the volume's usage of the pool in bytes.
func (c *claim) allocated() int64 {
	c.Helper()
	var blocks, unit int64
	out := c.run("stat", "-c", "%b %B", pool+"/volumes/"+c.id)
	if _, err := fmt.Fscan(strings.NewReader(out), &blocks, &unit); err != nil {
		c.Fatalf("parse stat output %q: %v", out, err)
	}
	return blocks * unit
}
