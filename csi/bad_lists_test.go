package csi_test

import (
	"context"
	"strings"
	"testing"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func snapshotCases() []badCase {
	type (
		createRequest = *spec.CreateSnapshotRequest
		deleteRequest = *spec.DeleteSnapshotRequest
		getRequest    = *spec.GetSnapshotRequest
	)
	create := bad(controller, spec.ControllerClient.CreateSnapshot, func(w *world) createRequest {
		return &spec.CreateSnapshotRequest{Name: "new", SourceVolumeId: w.mount.GetVolumeId(), Secrets: map[string]string{"password": marker}}
	})
	remove := bad(controller, spec.ControllerClient.DeleteSnapshot, func(*world) deleteRequest { return &spec.DeleteSnapshotRequest{} })
	get := bad(controller, spec.ControllerClient.GetSnapshot, func(*world) getRequest { return &spec.GetSnapshotRequest{} })
	return []badCase{
		create("snapshot without name", codes.InvalidArgument, func(_ *world, r createRequest) { r.Name = "" }),
		create("snapshot with a long name", codes.InvalidArgument, func(_ *world, r createRequest) { r.Name = long }),
		create("snapshot with a control character", codes.InvalidArgument, func(_ *world, r createRequest) { r.Name = "\x7f" }),
		create("snapshot without source", codes.InvalidArgument, func(_ *world, r createRequest) { r.SourceVolumeId = "" }),
		create("snapshot of an unknown id", codes.NotFound, func(_ *world, r createRequest) { r.SourceVolumeId = traversal }),
		create("snapshot with an unknown parameter", codes.InvalidArgument, func(_ *world, r createRequest) { r.Parameters = map[string]string{"a": "b"} }),
		create("snapshot with large parameters", codes.InvalidArgument, func(_ *world, r createRequest) { r.Parameters = huge }),
		create("snapshot elsewhere", codes.ResourceExhausted, func(_ *world, r createRequest) { r.AccessibilityRequirements = elsewhere }),
		create("snapshot of another source", codes.AlreadyExists, func(w *world, r createRequest) { r.Name, r.SourceVolumeId = "snap", w.other.GetVolumeId() }),
		remove("delete snapshot without id", codes.InvalidArgument, func(*world, deleteRequest) {}),
		remove("delete snapshot with a long id", codes.InvalidArgument, func(_ *world, r deleteRequest) { r.SnapshotId = long }),
		remove("delete a volume as a snapshot", codes.OK, func(w *world, r deleteRequest) { r.SnapshotId = w.other.GetVolumeId() }),
		create("snapshot of a snapshot", codes.NotFound, func(w *world, r createRequest) { r.SourceVolumeId = w.snap.GetSnapshotId() }),
		remove("delete snapshot that never was", codes.OK, func(_ *world, r deleteRequest) { r.SnapshotId = traversal }),
		remove("delete snapshot of a group", codes.InvalidArgument, func(w *world, r deleteRequest) { r.SnapshotId = w.group.GetSnapshots()[0].GetSnapshotId() }),
		get("get snapshot without id", codes.InvalidArgument, func(*world, getRequest) {}),
		get("get snapshot that never was", codes.NotFound, func(_ *world, r getRequest) { r.SnapshotId = traversal }),
		get("get snapshot with a long id", codes.InvalidArgument, func(_ *world, r getRequest) { r.SnapshotId = long }),
	}
}

func groupCases() []badCase {
	type (
		createRequest = *spec.CreateVolumeGroupSnapshotRequest
		deleteRequest = *spec.DeleteVolumeGroupSnapshotRequest
		getRequest    = *spec.GetVolumeGroupSnapshotRequest
	)
	create := bad(groups, spec.GroupControllerClient.CreateVolumeGroupSnapshot, func(w *world) createRequest {
		return &spec.CreateVolumeGroupSnapshotRequest{Name: "new", SourceVolumeIds: []string{w.mount.GetVolumeId()}}
	})
	remove := bad(groups, spec.GroupControllerClient.DeleteVolumeGroupSnapshot, func(w *world) deleteRequest {
		return &spec.DeleteVolumeGroupSnapshotRequest{GroupSnapshotId: w.group.GetGroupSnapshotId()}
	})
	get := bad(groups, spec.GroupControllerClient.GetVolumeGroupSnapshot, func(w *world) getRequest {
		return &spec.GetVolumeGroupSnapshotRequest{GroupSnapshotId: w.group.GetGroupSnapshotId()}
	})
	return []badCase{
		create("group without name", codes.InvalidArgument, func(_ *world, r createRequest) { r.Name = "" }),
		create("group with a long name", codes.InvalidArgument, func(_ *world, r createRequest) { r.Name = long }),
		create("group of nothing", codes.InvalidArgument, func(_ *world, r createRequest) { r.SourceVolumeIds = nil }),
		create("group of one twice", codes.InvalidArgument, func(w *world, r createRequest) { r.SourceVolumeIds = append(r.SourceVolumeIds, w.mount.GetVolumeId()) }),
		create("group with an empty id", codes.InvalidArgument, func(_ *world, r createRequest) { r.SourceVolumeIds = []string{""} }),
		create("group of an unknown id", codes.NotFound, func(_ *world, r createRequest) { r.SourceVolumeIds = []string{traversal} }),
		create("group with an unknown parameter", codes.InvalidArgument, func(_ *world, r createRequest) { r.Parameters = map[string]string{"a": "b"} }),
		create("group with an invalid policy", codes.InvalidArgument, func(_ *world, r createRequest) { r.Parameters = map[string]string{"deletionPolicy": "Keep"} }),
		create("group with other members", codes.AlreadyExists, func(_ *world, r createRequest) { r.Name = "group" }),
		remove("delete group without id", codes.InvalidArgument, func(_ *world, r deleteRequest) { r.GroupSnapshotId = "" }),
		remove("delete group with a long id", codes.InvalidArgument, func(_ *world, r deleteRequest) { r.GroupSnapshotId = long }),
		remove("delete group that never was", codes.OK, func(_ *world, r deleteRequest) { r.GroupSnapshotId = traversal }),
		remove("delete group without members", codes.InvalidArgument, func(*world, deleteRequest) {}),
		remove("delete group with a foreign member", codes.InvalidArgument, func(w *world, r deleteRequest) {
			r.SnapshotIds = append(members(w.group), w.snap.GetSnapshotId())
		}),
		remove("delete group with one member", codes.InvalidArgument, func(w *world, r deleteRequest) { r.SnapshotIds = members(w.group)[:1] }),
		get("get group without id", codes.InvalidArgument, func(_ *world, r getRequest) { r.GroupSnapshotId = "" }),
		get("get group that never was", codes.NotFound, func(_ *world, r getRequest) { r.GroupSnapshotId = traversal }),
		get("get group with other members", codes.InvalidArgument, func(w *world, r getRequest) { r.SnapshotIds = []string{w.snap.GetSnapshotId()} }),
	}
}

func metadataCases() []badCase {
	allocated := func(name string, want codes.Code, r func(*world) *spec.GetMetadataAllocatedRequest) badCase {
		return badCase{name, want, func(ctx context.Context, w *world) error { return drain(w.Metadata.GetMetadataAllocated(ctx, r(w))) }}
	}
	delta := func(name string, want codes.Code, r func(*world) *spec.GetMetadataDeltaRequest) badCase {
		return badCase{name, want, func(ctx context.Context, w *world) error { return drain(w.Metadata.GetMetadataDelta(ctx, r(w))) }}
	}
	return []badCase{
		allocated("allocated without id", codes.InvalidArgument, func(*world) *spec.GetMetadataAllocatedRequest { return &spec.GetMetadataAllocatedRequest{} }),
		allocated("allocated of an unknown id", codes.NotFound, func(*world) *spec.GetMetadataAllocatedRequest {
			return &spec.GetMetadataAllocatedRequest{SnapshotId: traversal}
		}),
		allocated("allocated from before the start", codes.OutOfRange, func(w *world) *spec.GetMetadataAllocatedRequest {
			return &spec.GetMetadataAllocatedRequest{SnapshotId: w.snap.GetSnapshotId(), StartingOffset: -1}
		}),
		allocated("allocated from beyond the end", codes.OutOfRange, func(w *world) *spec.GetMetadataAllocatedRequest {
			return &spec.GetMetadataAllocatedRequest{SnapshotId: w.snap.GetSnapshotId(), StartingOffset: w.snap.GetSizeBytes() + 1}
		}),
		allocated("allocated from the end", codes.OK, func(w *world) *spec.GetMetadataAllocatedRequest {
			return &spec.GetMetadataAllocatedRequest{SnapshotId: w.snap.GetSnapshotId(), StartingOffset: w.snap.GetSizeBytes()}
		}),
		allocated("allocated, less than none", codes.InvalidArgument, func(w *world) *spec.GetMetadataAllocatedRequest {
			return &spec.GetMetadataAllocatedRequest{SnapshotId: w.snap.GetSnapshotId(), MaxResults: -1}
		}),
		allocated("allocated with a long id", codes.InvalidArgument, func(*world) *spec.GetMetadataAllocatedRequest {
			return &spec.GetMetadataAllocatedRequest{SnapshotId: long}
		}),
		delta("delta without target", codes.InvalidArgument, func(w *world) *spec.GetMetadataDeltaRequest {
			return &spec.GetMetadataDeltaRequest{BaseSnapshotId: w.snap.GetSnapshotId()}
		}),
		delta("delta from what never was", codes.NotFound, func(w *world) *spec.GetMetadataDeltaRequest {
			return &spec.GetMetadataDeltaRequest{BaseSnapshotId: traversal, TargetSnapshotId: w.snap.GetSnapshotId()}
		}),
		delta("delta from beyond the end", codes.OutOfRange, func(w *world) *spec.GetMetadataDeltaRequest {
			return &spec.GetMetadataDeltaRequest{BaseSnapshotId: w.snap.GetSnapshotId(), TargetSnapshotId: w.snap.GetSnapshotId(), StartingOffset: 1 << 62}
		}),
		delta("delta, less than none", codes.InvalidArgument, func(w *world) *spec.GetMetadataDeltaRequest {
			return &spec.GetMetadataDeltaRequest{BaseSnapshotId: w.snap.GetSnapshotId(), TargetSnapshotId: w.snap.GetSnapshotId(), MaxResults: -1}
		}),
		delta("delta without base", codes.InvalidArgument, func(w *world) *spec.GetMetadataDeltaRequest {
			return &spec.GetMetadataDeltaRequest{TargetSnapshotId: w.snap.GetSnapshotId()}
		}),
		delta("delta to what never was", codes.NotFound, func(w *world) *spec.GetMetadataDeltaRequest {
			return &spec.GetMetadataDeltaRequest{BaseSnapshotId: w.snap.GetSnapshotId(), TargetSnapshotId: traversal}
		}),
		delta("delta of two volumes", codes.InvalidArgument, func(w *world) *spec.GetMetadataDeltaRequest {
			return &spec.GetMetadataDeltaRequest{BaseSnapshotId: w.snap.GetSnapshotId(), TargetSnapshotId: w.foreign.GetSnapshotId()}
		}),
		delta("delta backwards in time", codes.InvalidArgument, func(w *world) *spec.GetMetadataDeltaRequest {
			return &spec.GetMetadataDeltaRequest{BaseSnapshotId: members(w.group)[0], TargetSnapshotId: w.snap.GetSnapshotId()}
		}),
		delta("delta from before the start", codes.OutOfRange, func(w *world) *spec.GetMetadataDeltaRequest {
			return &spec.GetMetadataDeltaRequest{BaseSnapshotId: w.snap.GetSnapshotId(), TargetSnapshotId: w.snap.GetSnapshotId(), StartingOffset: -1}
		}),
	}
}

func listCases() []badCase {
	type (
		volumes   = *spec.ListVolumesRequest
		snapshots = *spec.ListSnapshotsRequest
		health    = *spec.ControllerListVolumeHealthRequest
		one       = *spec.ControllerGetVolumeHealthRequest
		capacity  = *spec.GetCapacityRequest
	)
	listVolumes := bad(controller, spec.ControllerClient.ListVolumes, func(*world) volumes { return &spec.ListVolumesRequest{} })
	listSnapshots := bad(controller, spec.ControllerClient.ListSnapshots, func(*world) snapshots { return &spec.ListSnapshotsRequest{} })
	listHealth := bad(controller, spec.ControllerClient.ControllerListVolumeHealth, func(*world) health { return &spec.ControllerListVolumeHealthRequest{} })
	getHealth := bad(controller, spec.ControllerClient.ControllerGetVolumeHealth, func(*world) one { return &spec.ControllerGetVolumeHealthRequest{} })
	getCapacity := bad(controller, spec.ControllerClient.GetCapacity, func(*world) capacity { return &spec.GetCapacityRequest{} })
	return []badCase{
		listVolumes("list with a bad token", codes.Aborted, func(_ *world, r volumes) { r.StartingToken = "invalid-token" }),
		listVolumes("list with a long token", codes.Aborted, func(_ *world, r volumes) { r.StartingToken = strings.Repeat("A", 1000) }),
		listVolumes("list with an id as token", codes.Aborted, func(w *world, r volumes) { r.StartingToken = w.mount.GetVolumeId() }),
		listVolumes("list less than nothing", codes.InvalidArgument, func(_ *world, r volumes) { r.MaxEntries = -1 }),
		listSnapshots("list snapshots with a bad token", codes.Aborted, func(_ *world, r snapshots) { r.StartingToken = "1" }),
		listSnapshots("list less than no snapshot", codes.InvalidArgument, func(_ *world, r snapshots) { r.MaxEntries = -1 }),
		listSnapshots("list snapshots with a long id", codes.InvalidArgument, func(_ *world, r snapshots) { r.SnapshotId = long }),
		listSnapshots("list snapshots of a long id", codes.InvalidArgument, func(_ *world, r snapshots) { r.SourceVolumeId = long }),
		listSnapshots("list a snapshot that never was", codes.OK, func(_ *world, r snapshots) { r.SnapshotId = traversal }),
		listSnapshots("list snapshots of an unknown id", codes.OK, func(_ *world, r snapshots) { r.SourceVolumeId = traversal }),
		listHealth("list health with a bad token", codes.Aborted, func(_ *world, r health) { r.StartingToken = traversal }),
		listHealth("list less than no health", codes.InvalidArgument, func(_ *world, r health) { r.MaxEntries = -1 }),
		getHealth("health without id", codes.InvalidArgument, func(*world, one) {}),
		getHealth("health with a long id", codes.InvalidArgument, func(_ *world, r one) { r.VolumeId = long }),
		getHealth("health of an unknown id", codes.NotFound, func(_ *world, r one) { r.VolumeId = traversal }),
		getCapacity("capacity for many nodes", codes.InvalidArgument, func(_ *world, r capacity) {
			r.VolumeCapabilities = []*spec.VolumeCapability{mountCap()}
			r.VolumeCapabilities[0].AccessMode.Mode = 5
		}),
		getCapacity("capacity with an unknown parameter", codes.InvalidArgument, func(_ *world, r capacity) {
			r.VolumeCapabilities, r.Parameters = []*spec.VolumeCapability{mountCap()}, map[string]string{"a": "b"}
		}),
		getCapacity("capacity at a bad place", codes.InvalidArgument, func(_ *world, r capacity) {
			r.AccessibleTopology = &spec.Topology{Segments: map[string]string{"a b": "c"}}
		}),
		getCapacity("capacity with large parameters", codes.InvalidArgument, func(_ *world, r capacity) { r.Parameters = huge }),
	}
}

// Errors must have the code of the specification, a message, no details and no
// secret, and must not change any state.
func TestBadInput(t *testing.T) {
	w := newWorld(t)
	before := w.State(t)
	var all []badCase
	for _, some := range [][]badCase{createCases(), volumeCases(), changeCases(), publishCases(), snapshotCases(), groupCases(), metadataCases(), listCases()} {
		all = append(all, some...)
	}
	for _, c := range all {
		t.Run(c.name, func(t *testing.T) {
			err := c.call(t.Context(), w)
			s := status.Convert(err)
			if s.Code() != c.want {
				t.Errorf("got %v, want code %v", err, c.want)
			}
			if err != nil && (s.Message() == "" || len(s.Message()) > 1000 || len(s.Details()) != 0 || strings.Contains(s.Message(), marker)) {
				t.Errorf("message %q, details %v", s.Message(), s.Details())
			}
			if after := w.State(t); after != before {
				t.Fatalf("something changed:\n%s", after)
			}
		})
	}
	checkLog(t, w.Log.String())
}

func checkLog(t *testing.T, log string) {
	t.Helper()
	if strings.Contains(log, marker) {
		t.Error("the log has a secret")
	}
	for _, service := range []*grpc.ServiceDesc{&spec.Controller_ServiceDesc, &spec.GroupController_ServiceDesc, &spec.SnapshotMetadata_ServiceDesc} {
		var names []string
		for _, m := range service.Methods {
			names = append(names, m.MethodName)
		}
		for _, s := range service.Streams {
			names = append(names, s.StreamName)
		}
		for _, name := range names {
			if !strings.Contains(log, service.ServiceName+"/"+name) && !strings.HasSuffix(name, "GetCapabilities") {
				t.Errorf("no bad request to %s is in the table", name)
			}
		}
	}
}
