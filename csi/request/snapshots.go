package request

import (
	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/cleatproject/cleat/volume"
)

// NewSnapshot asks for a snapshot.
type NewSnapshot struct {
	Name          string
	Source        volume.ID
	Parameters    map[string]string
	Accessibility *Accessibility
}

// CreateSnapshot checks a CreateSnapshotRequest.
func CreateSnapshot(r *csi.CreateSnapshotRequest, offer Offer) (NewSnapshot, error) {
	if err := firstError(
		checkName("name", r.GetName()),
		checkID("source_volume_id", r.GetSourceVolumeId()),
		checkMap("parameters", r.GetParameters()),
	); err != nil {
		return NewSnapshot{}, err
	}
	a, err := parseAccessibility(r.GetAccessibilityRequirements(), offer.SnapshotTopology)
	return NewSnapshot{
		Name: r.GetName(), Source: volume.ID(r.GetSourceVolumeId()), Parameters: ownKeys(r.GetParameters()), Accessibility: a,
	}, err
}

// DeleteSnapshot checks a DeleteSnapshotRequest.
func DeleteSnapshot(r *csi.DeleteSnapshotRequest) (volume.SnapshotID, error) {
	return volume.SnapshotID(r.GetSnapshotId()), checkID("snapshot_id", r.GetSnapshotId())
}

// GetSnapshot checks a GetSnapshotRequest.
func GetSnapshot(r *csi.GetSnapshotRequest) (volume.SnapshotID, error) {
	return volume.SnapshotID(r.GetSnapshotId()), checkID("snapshot_id", r.GetSnapshotId())
}
