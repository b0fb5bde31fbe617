package csi

import (
	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/cleatproject/cleat/csi/request"
	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/volume"
)

// Snapshot says in the contract's words what a snapshot is.
func Snapshot(s volume.Snapshot, a Announcement) *spec.Snapshot {
	out := &spec.Snapshot{
		SnapshotId: string(s.ID), SourceVolumeId: string(s.Source), SizeBytes: s.Size,
		CreationTime: timestamppb.New(s.Created), ReadyToUse: s.Ready, GroupSnapshotId: string(s.Group),
	}
	if a.HasService(spec.PluginCapability_Service_SNAPSHOT_ACCESSIBILITY_CONSTRAINTS) {
		out.AccessibleTopology = a.AccessibleTopology()
	}
	return out
}

// VolumeHealth says in the contract's words what is wrong with a volume. Of
// conditions with the same severity and reason only the first one is told, as
// the contract demands.
func VolumeHealth(id volume.ID, conditions []volume.Condition) *spec.VolumeHealth {
	type key struct {
		severity volume.Severity
		reason   string
	}
	out := &spec.VolumeHealth{VolumeId: string(id)}
	told := map[key]bool{}
	for _, c := range conditions {
		k := key{c.Severity, c.Reason}
		if told[k] {
			continue
		}
		told[k] = true
		out.HealthStatuses = append(out.HealthStatuses, &spec.VolumeHealth_VolumeHealthEntry{
			Status: severity(c.Severity), Reason: Clip(c.Reason), Message: Clip(c.Message),
		})
	}
	return out
}

func severity(s volume.Severity) spec.VolumeHealthErrorType {
	switch s {
	case volume.Inaccessible:
		return spec.VolumeHealthErrorType_INACCESSIBLE
	case volume.DataLoss:
		return spec.VolumeHealthErrorType_DATA_LOSS
	default:
		return spec.VolumeHealthErrorType_DEGRADED
	}
}

// Clip shortens a text to the longest string that the specification allows.
func Clip(s string) string { return errs.Clip(s, request.MaxString) }
