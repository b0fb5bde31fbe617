package request

import (
	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/volume"
)

// Metadata asks which blocks of a snapshot hold data, or differ from those of
// Base where that is set.
type Metadata struct {
	Base, Snapshot volume.SnapshotID
	From           int64 // bytes
	Batch          int   // most ranges in one message, 0: the plugin's choice
}

// GetMetadataAllocated checks a GetMetadataAllocatedRequest. OutOfRange: the
// offset is negative.
func GetMetadataAllocated(r *csi.GetMetadataAllocatedRequest) (Metadata, error) {
	m := Metadata{Snapshot: volume.SnapshotID(r.GetSnapshotId()), From: r.GetStartingOffset(), Batch: int(r.GetMaxResults())}
	return m, firstError(checkID("snapshot_id", r.GetSnapshotId()), m.check())
}

// GetMetadataDelta checks a GetMetadataDeltaRequest. OutOfRange: the offset is
// negative.
func GetMetadataDelta(r *csi.GetMetadataDeltaRequest) (Metadata, error) {
	m := Metadata{
		Base: volume.SnapshotID(r.GetBaseSnapshotId()), Snapshot: volume.SnapshotID(r.GetTargetSnapshotId()),
		From: r.GetStartingOffset(), Batch: int(r.GetMaxResults()),
	}
	return m, firstError(
		checkID("base_snapshot_id", r.GetBaseSnapshotId()),
		checkID("target_snapshot_id", r.GetTargetSnapshotId()),
		m.check(),
	)
}

func (m Metadata) check() error {
	switch {
	case m.Batch < 0:
		return invalidf("max_results is %d; it cannot be negative", m.Batch)
	case m.From < 0:
		return errs.Errorf(errs.OutOfRange, "starting_offset is %d; it cannot be negative", m.From)
	}
	return nil
}
