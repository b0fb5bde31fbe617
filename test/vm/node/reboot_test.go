package node

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	csi "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
)

// TestReboot: after a reboot, in order or by a power cut, the driver starts
// clean on what its records say and the kernel no longer has; volumes can be
// staged again where they were, or be taken back by a kubelet that lost its
// pods, and then be used elsewhere.
func TestReboot(t *testing.T) {
	for name, down := range map[string]func(*rig){
		"in order":  func(r *rig) { r.shutdown() },
		"power cut": func(r *rig) { r.must(r.guest.Cut()) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testReboot(newRig(t, "xfs"), down)
		})
	}
}

func (r *rig) shutdown() {
	r.Helper()
	ctx, cancel := context.WithTimeout(r.Context(), time.Minute)
	defer cancel()
	r.must(r.guest.Shutdown(ctx))
	if console := r.guest.Console(); strings.Contains(console, "busy") {
		r.Errorf("the machine went down with something still in use:\n%s", console)
	}
}

func testReboot(r *rig, down func(*rig)) {
	kept, given, raw := r.create("kept", "ext4").attach(), r.create("given-back", "ext4").attach(), r.create("raw", "").attach()
	big := r.create("big", "xfs")
	r.must(big.stage())
	inline := r.claim("inline", "ext4")
	inline.ephemeral = true
	r.must(inline.publish())
	keptSum, rawSum, givenSum := kept.write(4), raw.write(4), given.write(2)
	answer, err := r.controller().CreateSnapshot(r.Context(), &csi.CreateSnapshotRequest{Name: "before", SourceVolumeId: kept.id})
	r.must(err)
	files := r.files()
	if got := len(r.loops()); got != 5 {
		r.Fatalf("%d loop devices before the reboot, want 5: %v", got, r.loops())
	}

	down(r)
	r.boot()
	r.mount()
	r.start()

	r.startedClean()
	if diff := cmp.Diff(files, r.files()); diff != "" {
		r.Errorf("files of the pool, before and after (-, +):\n%s", diff)
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
	if got := kept.conditions(); len(got) > 0 {
		r.Errorf("staged again: %q", got)
	}
	// One that does not takes back what it made, in its order, in any state.
	r.must(given.unpublish())
	r.must(given.unstage())
	r.must(big.unstage())
	r.must(inline.unpublish())
	if out := r.run("sh", "-c", "ls -d "+given.target+" "+inline.target+" 2>/dev/null || true"); out != "" {
		r.Errorf("targets that were unpublished are still there: %s", out)
	}
	given.attach().holds(givenSum, 2)
	restored, err := r.controller().CreateVolume(r.Context(), &csi.CreateVolumeRequest{
		Name: "restored", VolumeCapabilities: []*csi.VolumeCapability{capability("ext4")}, CapacityRange: &csi.CapacityRange{RequiredBytes: kept.size},
		VolumeContentSource: &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{
			Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: answer.GetSnapshot().GetSnapshotId()}}},
	})
	r.must(err)
	copied := r.claim("restored", "ext4")
	copied.id, copied.context = restored.GetVolume().GetVolumeId(), restored.GetVolume().GetVolumeContext()
	copied.attach().holds(keptSum, 4)

	for _, c := range []*claim{kept, raw, given, copied} {
		c.drop()
	}
	r.must(big.remove())
	_, err = r.controller().DeleteSnapshot(r.Context(), &csi.DeleteSnapshotRequest{SnapshotId: answer.GetSnapshot().GetSnapshotId()})
	r.must(err)
	if left := slices.Concat(r.files(), r.mounts(), r.loops()); len(left) > 0 {
		r.Errorf("left at the end: %v", left)
	}
	r.stop()
	r.shutdown()
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
