package node

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	csi "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"

	"github.com/cleatproject/cleat/test/soak"
	"github.com/cleatproject/cleat/test/testkit"
)

// TestOutages shares a machine whose pool is on a file system of each type.
func TestOutages(t *testing.T) {
	t.Parallel()
	for _, fsType := range soak.Pick(1, []string{"xfs", "ext4"}) {
		t.Run("pool on "+fsType, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, fsType)
			testFailedPoolDisk(r)
			if fsType == "xfs" { // takes a snapshot of a volume in use
				testReboot(r)
			}
			r.stop()
			r.shutdown()
		})
	}
}

func (r *rig) shutdown() {
	r.Helper()
	ctx, cancel := context.WithTimeout(r.Context(), time.Minute)
	defer cancel()
	testkit.Must(r, r.guest.Shutdown(ctx))
	if console := r.guest.Console(); strings.Contains(console, "busy") {
		r.Errorf("the machine went down with something still in use:\n%s", console)
	}
}

// testReboot: after a reboot, in order or by a power cut, the driver starts
// clean on what its records say and the kernel no longer has; volumes can be
// staged again where they were, or be unstaged by a kubelet that lost its pods,
// and then be used elsewhere.
//
// An XFS that grew right before a power cut grows again at the next stage:
// kernels before 6.13 bring the last allocation group back from the log with its
// old size in memory, and shut the file system down when it is to grow in that
// mount.
func testReboot(r *rig) {
	kept, given, raw := r.create("kept", "ext4").attach(), r.create("given-back", "ext4").attach(), r.create("raw", "").attach()
	big, grown := r.create("big", "xfs"), r.create("grown", "xfs").attach()
	testkit.Must(r, big.stage())
	inline := r.claim("inline", "ext4")
	inline.ephemeral = true
	testkit.Must(r, inline.publish())
	keptSum, rawSum, givenSum, grownSum := kept.write(4), raw.write(4), given.write(2), grown.write(2)
	answer := testkit.Value(r.controller().CreateSnapshot(r.Context(), &csi.CreateSnapshotRequest{Name: "before", SourceVolumeId: kept.id}))(r)
	files := r.files()
	for i, down := range []func(){r.shutdown, func() { testkit.Must(r, r.guest.Cut()) }} {
		if i > 0 { // the kubelet still wants all of them
			given.attach()
			testkit.Must(r, big.stage())
			testkit.Must(r, inline.publish())
		}
		if got := len(r.loops()); got != 6 {
			r.Fatalf("%d loop devices before reboot %d, want 6: %v", got, i, r.loops())
		}
		r.grow(grown, 12*mib)
		testkit.Value(r.node().NodeExpandVolume(r.Context(), &csi.NodeExpandVolumeRequest{
			VolumeId: grown.id, VolumePath: grown.target, StagingTargetPath: grown.staging, VolumeCapability: capability(grown.fsType)}))(r)

		down()
		r.boot()
		r.mount()
		r.start()

		r.startedClean()
		if diff := cmp.Diff(files, r.files()); diff != "" {
			r.Errorf("files of the pool, before and after reboot %d (-, +):\n%s", i, diff)
		}
		if got := r.mounts(); len(got) > 0 {
			r.Errorf("mounted before anybody asked: %v", got)
		}
		if got := r.loops(); len(got) > 0 {
			r.Errorf("bound before anybody asked: %v", got)
		}
		// What another boot had mounted is gone by right, and no illness.
		if got := kept.conditions(); len(got) > 0 {
			r.Errorf("not yet staged again: %q", got)
		}

		// A kubelet that still wants them stages and publishes again, at the same places.
		kept.attach().holds(keptSum, 4)
		raw.attach().holds(rawSum, 4)
		r.grow(grown, 12*mib)
		grown.attach().holds(grownSum, 2)
		if got := slices.Concat(kept.conditions(), grown.conditions()); len(got) > 0 {
			r.Errorf("staged again: %q", got)
		}
		if room := grown.room(); room < grown.size-80*mib {
			r.Errorf("the user of a volume that grew sees %d MiB of %d", room/mib, grown.size/mib)
		}
	}
	// One that does not takes back what it made, in its order, in any state.
	testkit.Must(r, given.unpublish())
	testkit.Must(r, given.unstage())
	testkit.Must(r, big.unstage())
	testkit.Must(r, inline.unpublish())
	if out := r.run("sh", "-c", "ls -d "+given.target+" "+inline.target+" 2>/dev/null || true"); out != "" {
		r.Errorf("targets that were unpublished are still there: %s", out)
	}
	given.attach().holds(givenSum, 2)
	restored := testkit.Value(r.controller().CreateVolume(r.Context(), &csi.CreateVolumeRequest{
		Name: "restored", VolumeCapabilities: []*csi.VolumeCapability{capability("ext4")}, CapacityRange: &csi.CapacityRange{RequiredBytes: kept.size},
		VolumeContentSource: &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{
			Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: answer.GetSnapshot().GetSnapshotId()}}},
	}))(r)
	copied := r.claim("restored", "ext4")
	copied.id, copied.context = restored.GetVolume().GetVolumeId(), restored.GetVolume().GetVolumeContext()
	copied.attach().holds(keptSum, 4)

	for _, c := range []*claim{kept, raw, grown, given, copied} {
		c.drop()
	}
	testkit.Must(r, big.remove())
	testkit.Value(r.controller().DeleteSnapshot(r.Context(), &csi.DeleteSnapshotRequest{SnapshotId: answer.GetSnapshot().GetSnapshotId()}))(r)
	if left := slices.Concat(r.files(), r.mounts(), r.loops()); len(left) > 0 {
		r.Errorf("left at the end: %v", left)
	}
}

// grow has the controller make the volume larger.
func (r *rig) grow(c *claim, by int64) {
	r.Helper()
	answer := testkit.Value(r.controller().ControllerExpandVolume(r.Context(), &csi.ControllerExpandVolumeRequest{
		VolumeId: c.id, CapacityRange: &csi.CapacityRange{RequiredBytes: c.size + by}, VolumeCapability: capability(c.fsType)}))(r)
	c.size = answer.GetCapacityBytes()
}

// startedClean: a start that found what it expected warns of nothing.
func (r *rig) startedClean() {
	r.Helper()
	for line := range strings.Lines(r.driver.Log()) {
		if strings.Contains(line, "level=ERROR") || strings.Contains(line, "level=WARN") {
			r.Errorf("the start after a reboot says: %s", line)
		}
	}
	if got := r.storage(); len(got) > 0 {
		r.Errorf("the pool after a reboot: %q", got)
	}
}
