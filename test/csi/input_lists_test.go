package csi_test

import (
	"context"
	"strings"

	csi "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/cleatproject/cleat/test/testkit"
)

func (w *world) snapshotCases() []badCase {
	type (
		creation = *csi.CreateSnapshotRequest
		deletion = *csi.DeleteSnapshotRequest
		get      = *csi.GetSnapshotRequest
	)
	create := bad(w.controller().CreateSnapshot, &csi.CreateSnapshotRequest{Name: "new", SourceVolumeId: w.loose.id})
	remove := bad(w.controller().DeleteSnapshot, &csi.DeleteSnapshotRequest{SnapshotId: "none"})
	show := bad(w.controller().GetSnapshot, &csi.GetSnapshotRequest{SnapshotId: "none"})
	return []badCase{
		create("without name", codes.InvalidArgument, func(q creation) { q.Name = "" }),
		create("with a long name", codes.InvalidArgument, func(q creation) { q.Name = long }),
		create("with a control character", codes.InvalidArgument, func(q creation) { q.Name = "\x7f" }),
		create("without source", codes.InvalidArgument, func(q creation) { q.SourceVolumeId = "" }),
		create("of what never was", codes.NotFound, func(q creation) { q.SourceVolumeId = traversal }),
		create("of a snapshot", codes.NotFound, func(q creation) { q.SourceVolumeId = w.snap.GetSnapshotId() }),
		create("with an unknown parameter", codes.InvalidArgument, func(q creation) { q.Parameters = map[string]string{"a": "b"} }),
		create("with large parameters", codes.InvalidArgument, func(q creation) { q.Parameters = huge }),
		create("elsewhere", codes.ResourceExhausted, func(q creation) { q.AccessibilityRequirements = elsewhere() }),
		create("of another source again", codes.AlreadyExists, func(q creation) { q.Name = "snap" }),
		remove("without id", codes.InvalidArgument, func(q deletion) { q.SnapshotId = "" }),
		remove("with a long id", codes.InvalidArgument, func(q deletion) { q.SnapshotId = long }),
		remove("of what never was", codes.OK, func(q deletion) { q.SnapshotId = traversal }),
		remove("of a volume", codes.OK, func(q deletion) { q.SnapshotId = w.loose.id }),
		remove("of a group's member", codes.InvalidArgument, func(q deletion) { q.SnapshotId = w.members()[0] }),
		show("without id", codes.InvalidArgument, func(q get) { q.SnapshotId = "" }),
		show("with a long id", codes.InvalidArgument, func(q get) { q.SnapshotId = long }),
		show("of what never was", codes.NotFound, func(q get) { q.SnapshotId = traversal }),
	}
}

func (w *world) members() (ids []string) {
	for _, s := range w.group.GetSnapshots() {
		ids = append(ids, s.GetSnapshotId())
	}
	return ids
}

func (w *world) groupCases() []badCase {
	type (
		creation = *csi.CreateVolumeGroupSnapshotRequest
		deletion = *csi.DeleteVolumeGroupSnapshotRequest
		get      = *csi.GetVolumeGroupSnapshotRequest
	)
	create := bad(w.groups().CreateVolumeGroupSnapshot, &csi.CreateVolumeGroupSnapshotRequest{Name: "new", SourceVolumeIds: []string{w.loose.id}})
	remove := bad(w.groups().DeleteVolumeGroupSnapshot, &csi.DeleteVolumeGroupSnapshotRequest{GroupSnapshotId: w.group.GetGroupSnapshotId()})
	show := bad(w.groups().GetVolumeGroupSnapshot, &csi.GetVolumeGroupSnapshotRequest{GroupSnapshotId: w.group.GetGroupSnapshotId()})
	return []badCase{
		create("without name", codes.InvalidArgument, func(q creation) { q.Name = "" }),
		create("with a long name", codes.InvalidArgument, func(q creation) { q.Name = long }),
		create("of nothing", codes.InvalidArgument, func(q creation) { q.SourceVolumeIds = nil }),
		create("of one twice", codes.InvalidArgument, func(q creation) { q.SourceVolumeIds = []string{w.loose.id, w.raw.id, w.loose.id} }),
		create("with an empty id", codes.InvalidArgument, func(q creation) { q.SourceVolumeIds = []string{w.loose.id, ""} }),
		create("of what never was", codes.NotFound, func(q creation) { q.SourceVolumeIds = []string{w.loose.id, traversal} }),
		create("with an unknown parameter", codes.InvalidArgument, func(q creation) { q.Parameters = map[string]string{"a": "b"} }),
		create("with an unknown consistency", codes.InvalidArgument, func(q creation) { q.Parameters = map[string]string{"consistency": "eventual"} }),
		create("of other members again", codes.AlreadyExists, func(q creation) { q.Name = "group" }),
		remove("without id", codes.InvalidArgument, func(q deletion) { q.GroupSnapshotId = "" }),
		remove("with a long id", codes.InvalidArgument, func(q deletion) { q.GroupSnapshotId = long }),
		remove("of what never was", codes.OK, func(q deletion) { q.GroupSnapshotId = traversal }),
		remove("without members", codes.InvalidArgument, func(deletion) {}),
		remove("with one member", codes.InvalidArgument, func(q deletion) { q.SnapshotIds = w.members()[:1] }),
		remove("with one more", codes.InvalidArgument, func(q deletion) { q.SnapshotIds = append(w.members(), w.snap.GetSnapshotId()) }),
		show("without id", codes.InvalidArgument, func(q get) { q.GroupSnapshotId = "" }),
		show("of what never was", codes.NotFound, func(q get) { q.GroupSnapshotId = traversal }),
		show("with another member", codes.InvalidArgument, func(q get) { q.SnapshotIds = []string{w.snap.GetSnapshotId()} }),
	}
}

func (w *world) metadataCases() []badCase {
	type (
		held    = *csi.GetMetadataAllocatedRequest
		changed = *csi.GetMetadataDeltaRequest
	)
	allocated := bad(func(ctx context.Context, q held, _ ...grpc.CallOption) ([]*csi.BlockMetadata, error) {
		return gather(w.metadata().GetMetadataAllocated(ctx, q))
	}, &csi.GetMetadataAllocatedRequest{SnapshotId: w.snap.GetSnapshotId()})
	delta := bad(func(ctx context.Context, q changed, _ ...grpc.CallOption) ([]*csi.BlockMetadata, error) {
		return gather(w.metadata().GetMetadataDelta(ctx, q))
	}, &csi.GetMetadataDeltaRequest{BaseSnapshotId: w.snap.GetSnapshotId(), TargetSnapshotId: w.snap.GetSnapshotId()})
	return []badCase{
		allocated("without id", codes.InvalidArgument, func(q held) { q.SnapshotId = "" }),
		allocated("with a long id", codes.InvalidArgument, func(q held) { q.SnapshotId = long }),
		allocated("of what never was", codes.NotFound, func(q held) { q.SnapshotId = traversal }),
		allocated("from before the start", codes.OutOfRange, func(q held) { q.StartingOffset = -1 }),
		allocated("from beyond the end", codes.OutOfRange, func(q held) { q.StartingOffset = w.snap.GetSizeBytes() + 1 }),
		allocated("in batches of less than none", codes.InvalidArgument, func(q held) { q.MaxResults = -1 }),
		delta("without base", codes.InvalidArgument, func(q changed) { q.BaseSnapshotId = "" }),
		delta("without target", codes.InvalidArgument, func(q changed) { q.TargetSnapshotId = "" }),
		delta("from what never was", codes.NotFound, func(q changed) { q.BaseSnapshotId = traversal }),
		delta("to what never was", codes.NotFound, func(q changed) { q.TargetSnapshotId = traversal }),
		delta("of two volumes", codes.InvalidArgument, func(q changed) { q.TargetSnapshotId = w.foreign.GetSnapshotId() }),
		delta("backwards in time", codes.InvalidArgument, func(q changed) { q.BaseSnapshotId = w.memberOf(w.used.id) }),
		delta("from before the start", codes.OutOfRange, func(q changed) { q.StartingOffset = -1 }),
		delta("from beyond the end", codes.OutOfRange, func(q changed) { q.StartingOffset = 1 << 62 }),
		delta("in batches of less than none", codes.InvalidArgument, func(q changed) { q.MaxResults = -1 }),
	}
}

func (w *world) memberOf(volume string) string {
	for _, s := range w.group.GetSnapshots() {
		if s.GetSourceVolumeId() == volume {
			return s.GetSnapshotId()
		}
	}
	return ""
}

func (w *world) listCases() []badCase {
	type (
		volumes         = *csi.ListVolumesRequest
		snapshots       = *csi.ListSnapshotsRequest
		sick            = *csi.ControllerListVolumeHealthRequest
		one             = *csi.ControllerGetVolumeHealthRequest
		capacityRequest = *csi.GetCapacityRequest
	)
	listVolumes := bad(w.controller().ListVolumes, &csi.ListVolumesRequest{})
	listSnapshots := bad(w.controller().ListSnapshots, &csi.ListSnapshotsRequest{})
	listHealth := bad(w.controller().ControllerListVolumeHealth, &csi.ControllerListVolumeHealthRequest{})
	health := bad(w.controller().ControllerGetVolumeHealth, &csi.ControllerGetVolumeHealthRequest{VolumeId: "none"})
	capacity := bad(w.controller().GetCapacity, &csi.GetCapacityRequest{})
	page := testkit.Value(w.controller().ListVolumes(w.Context(), &csi.ListVolumesRequest{MaxEntries: 1}))(w)
	return []badCase{
		listVolumes("with a bad token", codes.Aborted, func(q volumes) { q.StartingToken = "invalid-token" }),
		listVolumes("with a long token", codes.Aborted, func(q volumes) { q.StartingToken = strings.Repeat("A", 1000) }),
		listVolumes("with an id as token", codes.Aborted, func(q volumes) { q.StartingToken = w.used.id }),
		listVolumes("of less than nothing", codes.InvalidArgument, func(q volumes) { q.MaxEntries = -1 }),
		listSnapshots("with a volumes' token", codes.Aborted, func(q snapshots) { q.StartingToken = page.GetNextToken() }),
		listSnapshots("of less than nothing", codes.InvalidArgument, func(q snapshots) { q.MaxEntries = -1 }),
		listSnapshots("with a long id", codes.InvalidArgument, func(q snapshots) { q.SnapshotId = long }),
		listSnapshots("of a long id", codes.InvalidArgument, func(q snapshots) { q.SourceVolumeId = long }),
		listSnapshots("of what never was", codes.OK, func(q snapshots) { q.SourceVolumeId = traversal }),
		listHealth("with a bad token", codes.Aborted, func(q sick) { q.StartingToken = traversal }),
		listHealth("of less than nothing", codes.InvalidArgument, func(q sick) { q.MaxEntries = -1 }),
		health("without id", codes.InvalidArgument, func(q one) { q.VolumeId = "" }),
		health("with a long id", codes.InvalidArgument, func(q one) { q.VolumeId = long }),
		health("of what never was", codes.NotFound, func(q one) { q.VolumeId = traversal }),
		capacity("for many nodes", codes.InvalidArgument, func(q capacityRequest) { q.VolumeCapabilities = []*csi.VolumeCapability{withMode(block(), 5)} }),
		capacity("with an unknown parameter", codes.InvalidArgument, func(q capacityRequest) {
			q.VolumeCapabilities, q.Parameters = []*csi.VolumeCapability{withMode(block(), 1)}, map[string]string{"a": "b"}
		}),
		capacity("with large parameters", codes.InvalidArgument, func(q capacityRequest) { q.Parameters = huge }),
		capacity("at a bad place", codes.InvalidArgument, func(q capacityRequest) {
			q.AccessibleTopology = &csi.Topology{Segments: map[string]string{"a b": "c"}}
		}),
	}
}
