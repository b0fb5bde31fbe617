package csi_test

import (
	"context"

	csi "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
)

func sizes(required, limit int64) *csi.CapacityRange {
	return &csi.CapacityRange{RequiredBytes: required, LimitBytes: limit}
}

// controllerCases has one bad request of each call of the controller, with what
// only the pool's directory shows. csi's TestBadInput has all the others.
func (w *world) controllerCases() []badCase {
	create := bad(w.controller().CreateVolume, ask("new", mounted("ext4")))
	remove := bad(w.controller().DeleteVolume, &csi.DeleteVolumeRequest{})
	publish := bad(w.controller().ControllerPublishVolume, &csi.ControllerPublishVolumeRequest{VolumeId: w.loose.id, NodeId: nodeID, VolumeCapability: mounted("ext4")})
	same := func(*csi.DeleteVolumeRequest) {}
	return []badCase{
		create("of negative size", codes.InvalidArgument, func(q *csi.CreateVolumeRequest) { q.CapacityRange = sizes(-1, 0) }),
		create("with two file systems", codes.InvalidArgument, func(q *csi.CreateVolumeRequest) { q.Parameters = map[string]string{"fsType": "xfs"} }),
		create("of a size between two blocks", codes.OutOfRange, func(q *csi.CreateVolumeRequest) { q.CapacityRange = sizes(16*mib+1, 16*mib+2) }),
		create("with a negative read-ahead", codes.InvalidArgument, func(q *csi.CreateVolumeRequest) { q.Parameters = map[string]string{"readAheadKiB": "-1"} }),
		create("larger than the pool", codes.ResourceExhausted, func(q *csi.CreateVolumeRequest) { q.CapacityRange = sizes(1<<40, 0) }),
		create("from a volume that never was", codes.NotFound, func(q *csi.CreateVolumeRequest) { q.VolumeContentSource = fromVolume("../" + w.used.id) }),
		create("with a file system from raw bytes", codes.InvalidArgument, func(q *csi.CreateVolumeRequest) { q.VolumeContentSource = fromVolume(w.raw.id) }),
		remove("without id", codes.InvalidArgument, same),
		remove("of a file in the pool", codes.OK, func(q *csi.DeleteVolumeRequest) { q.VolumeId = "../engine.db" }),
		remove("of what is in use", codes.FailedPrecondition, func(q *csi.DeleteVolumeRequest) { q.VolumeId = w.used.id }),
		publish("without node", codes.InvalidArgument, func(q *csi.ControllerPublishVolumeRequest) { q.NodeId = "" }),
		publish("with an evil context", codes.InvalidArgument, func(q *csi.ControllerPublishVolumeRequest) { q.VolumeContext = w.located(traversal) }),
		invalid(w.controller().ControllerUnpublishVolume, &csi.ControllerUnpublishVolumeRequest{}),
		invalid(w.controller().ControllerGetVolume, &csi.ControllerGetVolumeRequest{}),
		invalid(w.controller().ValidateVolumeCapabilities, &csi.ValidateVolumeCapabilitiesRequest{VolumeId: w.used.id}),
		invalid(w.controller().ControllerExpandVolume, &csi.ControllerExpandVolumeRequest{VolumeId: w.raw.id}),
		invalid(w.controller().ControllerModifyVolume, &csi.ControllerModifyVolumeRequest{VolumeId: w.raw.id, MutableParameters: map[string]string{"readAheadKiB": "64", "color": "red"}}),
		invalid(w.controller().ControllerGetVolumeHealth, &csi.ControllerGetVolumeHealthRequest{}),
		invalid(w.controller().ControllerListVolumeHealth, &csi.ControllerListVolumeHealthRequest{MaxEntries: -1}),
		invalid(w.controller().ListVolumes, &csi.ListVolumesRequest{MaxEntries: -1}),
		invalid(w.controller().ListSnapshots, &csi.ListSnapshotsRequest{MaxEntries: -1}),
		invalid(w.controller().GetCapacity, &csi.GetCapacityRequest{Parameters: huge}),
		invalid(w.controller().CreateSnapshot, &csi.CreateSnapshotRequest{Name: long, SourceVolumeId: w.loose.id}),
		invalid(w.controller().DeleteSnapshot, &csi.DeleteSnapshotRequest{SnapshotId: w.group.GetSnapshots()[0].GetSnapshotId()}),
		invalid(w.controller().GetSnapshot, &csi.GetSnapshotRequest{}),
		invalid(w.groups().CreateVolumeGroupSnapshot, &csi.CreateVolumeGroupSnapshotRequest{Name: "new"}),
		invalid(w.groups().DeleteVolumeGroupSnapshot, &csi.DeleteVolumeGroupSnapshotRequest{GroupSnapshotId: w.group.GetGroupSnapshotId()}),
		invalid(w.groups().GetVolumeGroupSnapshot, &csi.GetVolumeGroupSnapshotRequest{}),
		invalid(func(ctx context.Context, q *csi.GetMetadataAllocatedRequest, _ ...grpc.CallOption) ([]*csi.BlockMetadata, error) {
			return gather(w.metadata().GetMetadataAllocated(ctx, q))
		}, &csi.GetMetadataAllocatedRequest{}),
		invalid(func(ctx context.Context, q *csi.GetMetadataDeltaRequest, _ ...grpc.CallOption) ([]*csi.BlockMetadata, error) {
			return gather(w.metadata().GetMetadataDelta(ctx, q))
		}, &csi.GetMetadataDeltaRequest{BaseSnapshotId: w.snap.GetSnapshotId(), TargetSnapshotId: w.foreign.GetSnapshotId()}),
	}
}

// invalid is a case of a request that is invalid as it is.
func invalid[Q proto.Message, A any](call func(context.Context, Q, ...grpc.CallOption) (A, error), q Q) badCase {
	return bad(call, q)("invalid", codes.InvalidArgument, func(Q) {})
}

// located is a volume context that leads to a name in the pool.
func (w *world) located(name string) map[string]string {
	return map[string]string{"targetType": "file", "pool": w.used.context["pool"], "file": name}
}
