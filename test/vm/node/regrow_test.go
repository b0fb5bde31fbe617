package node

import (
	"testing"

	csi "github.com/container-storage-interface/spec/lib/go/csi"
)

// TestGrowAgainAfterPowerCut: an XFS that grew right before a power cut grows
// again at the next stage. Kernels before 6.13 bring the last allocation group
// back from the log with its old size in memory, and shut the file system down
// when it is to grow in that mount.
func TestGrowAgainAfterPowerCut(t *testing.T) {
	t.Parallel()
	r := newRig(t, "xfs")
	c := r.create("regrow", "xfs").attach()
	sum := c.write(2)
	for range 2 {
		r.grow(c, 12*mib)
		_, err := r.node().NodeExpandVolume(r.Context(), &csi.NodeExpandVolumeRequest{
			VolumeId: c.id, VolumePath: c.target, StagingTargetPath: c.staging, VolumeCapability: capability(c.fsType)})
		r.must(err)
		r.must(r.guest.Cut())
		r.boot()
		r.mount()
		r.start()
		r.grow(c, 12*mib)
		c.attach().holds(sum, 2)
		if got := c.conditions(); len(got) > 0 {
			r.Errorf("after growing again: %q", got)
		}
		if room := c.room(); room < c.size-80*mib {
			r.Errorf("its user sees %d MiB of %d", room/mib, c.size/mib)
		}
	}
	c.drop()
	r.stop()
}

// grow has the controller make the volume larger.
func (r *rig) grow(c *claim, by int64) {
	r.Helper()
	answer, err := r.controller().ControllerExpandVolume(r.Context(), &csi.ControllerExpandVolumeRequest{
		VolumeId: c.id, CapacityRange: &csi.CapacityRange{RequiredBytes: c.size + by}, VolumeCapability: capability(c.fsType)})
	r.must(err)
	c.size = answer.GetCapacityBytes()
}
