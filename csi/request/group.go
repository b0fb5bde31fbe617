package request

import (
	"fmt"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/volume"
)

// CreateVolumeGroupSnapshot checks a CreateVolumeGroupSnapshotRequest. The
// sources come back in the order of their ids: they are a set.
func CreateVolumeGroupSnapshot(r *csi.CreateVolumeGroupSnapshotRequest) (volume.GroupRequest, error) {
	if err := firstError(
		checkName("name", r.GetName()),
		checkMap("parameters", r.GetParameters()),
	); err != nil {
		return volume.GroupRequest{}, err
	}
	if len(r.GetSourceVolumeIds()) == 0 {
		return volume.GroupRequest{}, invalidf("source_volume_ids is empty; at least one is needed")
	}
	sources, err := parseSet[volume.ID]("source_volume_ids", r.GetSourceVolumeIds())
	if err != nil {
		return volume.GroupRequest{}, err
	}
	parameters, err := parseGroupParameters(r.GetParameters())
	return volume.GroupRequest{Name: r.GetName(), Sources: sources, Parameters: parameters}, err
}

// keyDeletionPolicy is a field of a VolumeGroupSnapshotClass, which Kubernetes'
// storage tests hand to the driver among the parameters too. The field, which
// every class has, tells the snapshotter whether to delete; this says nothing to
// a driver, and a value that the field cannot have is a mistake.
const keyDeletionPolicy = "deletionPolicy"

// parseGroupParameters returns what the engine is to see of a group's parameters.
func parseGroupParameters(parameters map[string]string) (map[string]string, error) {
	own := ownKeys(parameters)
	policy, ok := own[keyDeletionPolicy]
	if ok && policy != "Delete" && policy != "Retain" {
		return nil, invalidf("parameter %s is %s; it is Delete or Retain, and only the field of that name in the VolumeGroupSnapshotClass has an effect", keyDeletionPolicy, errs.Quote(policy))
	}
	delete(own, keyDeletionPolicy)
	return own, nil
}

// GroupMembers names a group and, as a cross-check, its snapshots.
type GroupMembers struct {
	Group volume.GroupID
	// Snapshots are in the order of their ids. An empty list is no member's:
	// it matches no group, but an unknown group is told first.
	Snapshots []volume.SnapshotID
}

// DeleteVolumeGroupSnapshot checks a DeleteVolumeGroupSnapshotRequest.
func DeleteVolumeGroupSnapshot(r *csi.DeleteVolumeGroupSnapshotRequest) (GroupMembers, error) {
	return parseGroupMembers(r.GetGroupSnapshotId(), r.GetSnapshotIds())
}

// GetVolumeGroupSnapshot checks a GetVolumeGroupSnapshotRequest.
func GetVolumeGroupSnapshot(r *csi.GetVolumeGroupSnapshotRequest) (GroupMembers, error) {
	return parseGroupMembers(r.GetGroupSnapshotId(), r.GetSnapshotIds())
}

func parseGroupMembers(group string, snapshots []string) (GroupMembers, error) {
	if err := checkID("group_snapshot_id", group); err != nil {
		return GroupMembers{}, err
	}
	set, err := parseSet[volume.SnapshotID]("snapshot_ids", snapshots)
	return GroupMembers{Group: volume.GroupID(group), Snapshots: set}, err
}

// parseSet translates a list of ids in which none may stand twice, and sorts it.
func parseSet[T ~string](field string, ids []string) ([]T, error) {
	set := make([]T, len(ids))
	for i, id := range ids {
		if err := checkID(fmt.Sprintf("%s[%d]", field, i), id); err != nil {
			return nil, err
		}
		set[i] = T(id)
	}
	slices.Sort(set)
	for i := 1; i < len(set); i++ {
		if set[i] == set[i-1] {
			return nil, invalidf("%s holds %s twice", field, errs.Quote(string(set[i])))
		}
	}
	return set, nil
}
