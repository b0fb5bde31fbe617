package csi_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	csi "github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	"github.com/cleatproject/cleat/internal/linux/mkfs"
	"github.com/cleatproject/cleat/internal/linux/mkfs/mkfstest"
	"github.com/cleatproject/cleat/test/testkit"
)

// fill allocates all free space of the pool's file system but leave, without
// writing.
func (r *rig) fill(leave int64) (free func()) {
	r.Helper()
	var st unix.Statfs_t
	testkit.Must(r, unix.Statfs(r.pool, &st))
	ballast := filepath.Join(r.pool, "ballast")
	f := testkit.Value(os.Create(ballast))(r)
	defer f.Close()
	testkit.Must(r, unix.Fallocate(int(f.Fd()), 0, 0, int64(st.Bavail)*st.Bsize-leave))
	return func() { testkit.Must(r, os.Remove(ballast)) }
}

// TestFullPool: thin volumes get write errors, no new space is promised, the
// pool is reported early, and calls that delete or free space still work.
func TestFullPool(t *testing.T) {
	t.Parallel()
	r := newRig(t, reflinkPool...)
	large := func(q *csi.CreateVolumeRequest) { q.CapacityRange = sizes(512*mib, 0) }
	d, spare := r.create("thin", mounted("ext4"), large).attach(), r.create("spare", block())
	snap := d.snapshot("before")
	d.writeFile("kept", 1, 4096)
	free := r.fill(16 * mib)
	r.sub(t, "reported early", func(r *rig) {
		if got := r.storage(); !slices.Contains(got, "STORAGE_DEGRADED PoolNearlyFull") {
			r.Errorf("storage: %q", got)
		}
		for _, who := range []string{"controller DEGRADED PoolNearlyFull", "node DEGRADED PoolNearlyFull"} {
			if got := d.conditions(); !slices.Contains(got, who) {
				r.Errorf("no %s among %q", who, got)
			}
		}
		answer, err := r.controller().GetCapacity(r.Context(), &csi.GetCapacityRequest{})
		if err != nil || answer.GetAvailableCapacity() != 0 {
			r.Errorf("capacity of a full pool: %v, %v", answer, err)
		}
		testkit.Value(r.identity().Probe(r.Context(), &csi.ProbeRequest{}))(r) // the driver can still serve
	})
	r.sub(t, "nothing is promised", func(r *rig) {
		_, err := r.controller().CreateVolume(r.Context(), ask("one-more", block()))
		r.refused(err, codes.ResourceExhausted, r.pool)
		_, err = r.controller().CreateSnapshot(r.Context(), &csi.CreateSnapshotRequest{Name: "one-more", SourceVolumeId: d.id})
		r.refused(err, codes.ResourceExhausted, "delete volumes or snapshots")
		_, err = r.controller().ControllerExpandVolume(r.Context(), &csi.ControllerExpandVolumeRequest{VolumeId: d.id, CapacityRange: sizes(1024*mib, 0)})
		r.refused(err, codes.OutOfRange, r.pool) // so that an orchestrator requests less if its user allows it
		r.refused(d.modify(map[string]string{"provisioning": "thick"}), codes.FailedPrecondition, r.pool)
	})
	r.sub(t, "writes fail", func(r *rig) {
		var err error
		for i := uint64(0); i < 40 && err == nil; i++ {
			err = writeAt(filepath.Join(d.target, "filler"), os.O_CREATE, int64(i)*mib, noise(i, mib))
		}
		if !errors.Is(err, unix.ENOSPC) && !errors.Is(err, unix.EIO) {
			r.Errorf("40 MiB went into 16: %v", err)
		}
	})
	r.sub(t, "deleting works", func(r *rig) {
		testkit.Must(r, spare.remove())
		d.detach()
		r.dropSnapshots(snap.GetSnapshotId())
	})
	r.restart() // opens a full pool
	_, err := r.controller().CreateVolume(t.Context(), ask("one-more", block()))
	r.refused(err, codes.ResourceExhausted)
	free()
	testkit.Eventually(r, "XFS has freed the space", func() bool {
		answer, err := r.controller().GetCapacity(t.Context(), &csi.GetCapacityRequest{})
		return err == nil && answer.GetAvailableCapacity() > 64*mib
	})
	testkit.Must(r, r.create("one-more", block()).remove())
	d.rig = r
	d.attach() // the file system recovers its journal
	d.holdsFile("kept", 1, 4096)
	d.writeFile("new", 2, mib)
	d.drop()
}

// TestReadOnlyPool: existing volumes are listed, and nothing is changed.
func TestReadOnlyPool(t *testing.T) {
	t.Parallel()
	r := newRigOn(t, mkfs.Ext4)
	d := r.create("there", mounted("ext4"))
	snap := d.snapshot("there")
	r.untilReady(snap.GetSnapshotId())
	r.stop()
	testkit.Must(r, mkfstest.Remount(t.Context(), r.pool, true))
	r.start()
	if got := r.storage(); !slices.Contains(got, "STORAGE_DEGRADED PoolReadOnly") {
		t.Errorf("storage: %q", got)
	}
	list, err := r.controller().ListVolumes(t.Context(), &csi.ListVolumesRequest{})
	if err != nil || len(list.GetEntries()) != 1 {
		t.Errorf("listed %v, %v", list, err)
	}
	testkit.Value(r.controller().GetSnapshot(t.Context(), &csi.GetSnapshotRequest{SnapshotId: snap.GetSnapshotId()}))(r)
	_, err = r.controller().CreateVolume(t.Context(), ask("new", block()))
	r.refused(err, codes.ResourceExhausted, "read-only")
	_, err = r.controller().CreateSnapshot(t.Context(), &csi.CreateSnapshotRequest{Name: "new", SourceVolumeId: d.id})
	r.refused(err, codes.FailedPrecondition, "read-only")
	_, err = r.controller().DeleteSnapshot(t.Context(), &csi.DeleteSnapshotRequest{SnapshotId: snap.GetSnapshotId()})
	r.refused(err, codes.FailedPrecondition, "read-only")
	r.refused(d.remove(), codes.FailedPrecondition, "read-only")
	r.refused(d.modify(map[string]string{"readAheadKiB": "64"}), codes.FailedPrecondition, "read-only")
	r.refused(d.stage(), codes.FailedPrecondition, "read-only")
	r.stop()
	testkit.Must(r, mkfstest.Remount(t.Context(), r.pool, false))
	r.start()
	d.attach()
	d.drop()
	r.dropSnapshots(snap.GetSnapshotId())
}
