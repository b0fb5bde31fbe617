package node

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	csi "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"

	"github.com/cleatproject/cleat/test/soak"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/test/vm/image"
	"github.com/cleatproject/cleat/test/vm/nodeservice"
)

// TestOutages runs its tests in one guest per file system of the pool.
func TestOutages(t *testing.T) {
	t.Parallel()
	for _, fsType := range soak.Pick(1, []string{"xfs", "ext4"}) {
		t.Run("pool on "+fsType, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, fsType, image.Stable)
			if fsType == "xfs" {
				testGrowInUse(t, r)
			}
			testFailedPoolDisk(r)
			if fsType == "xfs" { // takes a snapshot of a volume in use
				testReboot(r)
				testLabels(r, false)
			}
			r.Stop()
			r.shutdown()
		})
	}
}

func (r *rig) shutdown() {
	r.Helper()
	ctx, cancel := context.WithTimeout(r.Context(), time.Minute)
	defer cancel()
	testkit.Must(r, r.Conn.Close(), r.Guest.Shutdown(ctx))
	if console := r.Guest.Console(); strings.Contains(console, "busy") {
		r.Errorf("file systems were busy at the shutdown:\n%s", console)
	}
}

// testReboot verifies that after a reboot or power loss the driver starts
// without errors although its records list mounts and loop devices that no
// longer exist. Volumes can be staged again at the same paths, or unstaged
// first and used elsewhere.
//
// An XFS that grew right before a power loss must grow again at the next stage.
// Kernels before 6.13 replay the last allocation group with its old in-memory
// size, and shut the file system down when it grows in that mount.
func testReboot(r *rig) {
	kept, given, raw := r.create("kept", "ext4").attach(), r.create("given-back", "ext4").attach(), r.create("raw", "").attach()
	big, grown := r.create("big", "xfs"), r.create("grown", "xfs").attach()
	testkit.Must(r, big.stage())
	inline := r.claim("inline", "ext4", &csi.Volume{VolumeId: "csi-inline", VolumeContext: map[string]string{
		"csi.storage.k8s.io/ephemeral": "true", "size": fmt.Sprint(leastSize("ext4")),
	}})
	inline.Staging = ""
	testkit.Must(r, inline.publish())
	keptSum, rawSum, givenSum, grownSum := kept.write(4), raw.write(4), given.write(2), grown.write(2)
	answer := testkit.Value(r.controller().CreateSnapshot(r.Context(), &csi.CreateSnapshotRequest{Name: "before", SourceVolumeId: kept.ID}))(r)
	files := r.files()
	for i, down := range []func(){r.shutdown, func() { r.LosePower() }} {
		if i > 0 { // the kubelet still has all of them
			given.attach()
			testkit.Must(r, big.stage())
			testkit.Must(r, inline.publish())
		}
		if got := len(r.loops()); got != 6 {
			r.Fatalf("got %d loop devices before reboot %d, want 6: %v", got, i, r.loops())
		}
		r.grow(grown, 12*mib)
		testkit.Must(r, grown.Expand(grown.Volume, 0))

		down()
		r.boot()
		r.mount()
		r.Start()

		r.startedClean()
		if diff := cmp.Diff(files, r.files()); diff != "" {
			r.Errorf("files of the pool after reboot %d (-before +after):\n%s", i, diff)
		}
		if got := r.mounts(); len(got) > 0 {
			r.Errorf("mounted before any RPC: %v", got)
		}
		if got := r.loops(); len(got) > 0 {
			r.Errorf("loop devices attached before any RPC: %v", got)
		}
		// Mounts of the previous boot are not reported as unhealthy.
		if got := kept.conditions(); len(got) > 0 {
			r.Errorf("conditions before staging again: %q", got)
		}

		// A kubelet that still has the pods stages and publishes again at the
		// same paths.
		kept.attach().holds(keptSum, 4)
		raw.attach().holds(rawSum, 4)
		r.grow(grown, 12*mib)
		grown.attach().holds(grownSum, 2)
		if got := slices.Concat(kept.conditions(), grown.conditions()); len(got) > 0 {
			r.Errorf("conditions after staging again: %q", got)
		}
		if total := grown.totalBytes(); total < grown.size-80*mib {
			r.Errorf("got %d MiB in a grown volume of %d", total/mib, grown.size/mib)
		}
	}
	// A kubelet that lost the pods unpublishes and unstages in order, in any
	// state.
	testkit.Must(r, given.unpublish())
	testkit.Must(r, given.unstage())
	testkit.Must(r, big.unstage())
	testkit.Must(r, inline.unpublish())
	if out := r.Run("sh", "-c", "ls -d "+given.Target+" "+inline.Target+" 2>/dev/null || true"); out != "" {
		r.Errorf("unpublished targets still exist: %s", out)
	}
	given.attach().holds(givenSum, 2)
	restored := testkit.Value(r.controller().CreateVolume(r.Context(), &csi.CreateVolumeRequest{
		Name: "restored", VolumeCapabilities: []*csi.VolumeCapability{nodeservice.Capability("ext4")}, CapacityRange: &csi.CapacityRange{RequiredBytes: kept.size},
		VolumeContentSource: &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{
			Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: answer.GetSnapshot().GetSnapshotId()}}},
	}))(r)
	copied := r.claim("restored", "ext4", restored.GetVolume())
	copied.attach().holds(keptSum, 4)

	for _, c := range []*claim{kept, raw, grown, given, copied} {
		c.drop()
	}
	testkit.Must(r, big.remove())
	testkit.Value(r.controller().DeleteSnapshot(r.Context(), &csi.DeleteSnapshotRequest{SnapshotId: answer.GetSnapshot().GetSnapshotId()}))(r)
	if left := slices.Concat(r.files(), r.mounts(), r.loops()); len(left) > 0 {
		r.Errorf("left over at the end: %v", left)
	}
}

// grow expands the volume on the controller side.
func (r *rig) grow(c *claim, by int64) {
	r.Helper()
	answer := testkit.Value(r.controller().ControllerExpandVolume(r.Context(), &csi.ControllerExpandVolumeRequest{
		VolumeId: c.ID, CapacityRange: &csi.CapacityRange{RequiredBytes: c.size + by}, VolumeCapability: nodeservice.Capability(c.fsType)}))(r)
	c.size = answer.GetCapacityBytes()
}

// startedClean verifies that the driver logged no warnings or errors.
func (r *rig) startedClean() {
	r.Helper()
	for line := range strings.Lines(r.Process.Log()) {
		if strings.Contains(line, "level=ERROR") || strings.Contains(line, "level=WARN") {
			r.Errorf("log of the start after a reboot: %s", line)
		}
	}
	if got := r.storage(); len(got) > 0 {
		r.Errorf("pool health after a reboot: %q", got)
	}
}
