package csi_test

import (
	"context"
	"math"
	"strings"
	"testing"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/cleatproject/cleat/test/testkit"
)

type world struct {
	*plugin
	mount, block, other *spec.Volume
	snap, foreign       *spec.Snapshot
	group               *spec.VolumeGroupSnapshot
}

func newWorld(t *testing.T) *world {
	w := &world{plugin: newPlugin(t, options{})}
	w.mount, w.block, w.other = w.MustCreate(t, "mount", mountCap()), w.MustCreate(t, "block", blockCap()), w.MustCreate(t, "other", mountCap())
	w.snap, w.foreign = w.MustSnapshot(t, "snap", w.mount.GetVolumeId()), w.MustSnapshot(t, "foreign", w.other.GetVolumeId())
	g := testkit.Value(w.Group.CreateVolumeGroupSnapshot(t.Context(), &spec.CreateVolumeGroupSnapshotRequest{
		Name: "group", SourceVolumeIds: []string{w.mount.GetVolumeId(), w.block.GetVolumeId()},
	}))(t)
	w.group = g.GetGroupSnapshot()
	testkit.Value(w.Controller.ControllerPublishVolume(t.Context(), &spec.ControllerPublishVolumeRequest{
		VolumeId: w.mount.GetVolumeId(), NodeId: nodeID, VolumeCapability: mountCap(),
	}))(t)
	return w
}

type badCase struct {
	name string
	want codes.Code
	call func(context.Context, *world) error
}

// The edit makes a valid request invalid.
func bad[C, R, A any](client func(*world) C, method func(C, context.Context, R, ...grpc.CallOption) (A, error), sound func(*world) R) func(string, codes.Code, func(*world, R)) badCase {
	return func(name string, want codes.Code, edit func(*world, R)) badCase {
		return badCase{name, want, func(ctx context.Context, w *world) error {
			r := sound(w)
			edit(w, r)
			_, err := method(client(w), ctx, r)
			return err
		}}
	}
}

func controller(w *world) spec.ControllerClient  { return w.Controller }
func groups(w *world) spec.GroupControllerClient { return w.Group }

const (
	traversal = "../../../etc/passwd"
	marker    = "hush-hush-secret"
)

var (
	long      = strings.Repeat("x", 129)
	huge      = map[string]string{"k": strings.Repeat("v", 4096)}
	elsewhere = &spec.TopologyRequirement{Requisite: []*spec.Topology{{Segments: map[string]string{"topology.csi.cleat.dev/node": "elsewhere"}}}}
)

func createCases() []badCase {
	c := bad(controller, spec.ControllerClient.CreateVolume, func(*world) *spec.CreateVolumeRequest {
		r := createRequest("new", mountCap())
		r.Secrets = map[string]string{"password": marker}
		return r
	})
	type request = *spec.CreateVolumeRequest
	size := func(required, limit int64) func(*world, request) {
		return func(_ *world, r request) {
			r.CapacityRange = &spec.CapacityRange{RequiredBytes: required, LimitBytes: limit}
		}
	}
	return []badCase{
		c("create without name", codes.InvalidArgument, func(_ *world, r request) { r.Name = "" }),
		c("create with a long name", codes.InvalidArgument, func(_ *world, r request) { r.Name = long }),
		c("create with a control character", codes.InvalidArgument, func(_ *world, r request) { r.Name = "a\x00b" }),
		c("create without capability", codes.InvalidArgument, func(_ *world, r request) { r.VolumeCapabilities = nil }),
		c("create with an unknown mode", codes.InvalidArgument, func(_ *world, r request) { r.VolumeCapabilities[0].AccessMode.Mode = 77 }),
		c("create for many nodes", codes.InvalidArgument, func(_ *world, r request) { r.VolumeCapabilities[0].AccessMode.Mode = 5 }),
		c("create with ntfs", codes.InvalidArgument, func(_ *world, r request) { r.VolumeCapabilities[0].GetMount().FsType = "ntfs" }),
		c("create with a negative size", codes.InvalidArgument, size(-1, 0)),
		c("create with a negative limit", codes.InvalidArgument, size(1, -1)),
		c("create with limit < required", codes.InvalidArgument, size(2<<20, 1<<20)),
		c("create with no size in the range", codes.InvalidArgument, size(0, 0)),
		c("create with an absurd size", codes.OutOfRange, size(math.MaxInt64, 0)),
		c("create too small", codes.OutOfRange, size(0, 1)),
		c("create too large", codes.ResourceExhausted, size(2<<40, 0)),
		c("create with large parameters", codes.InvalidArgument, func(_ *world, r request) { r.Parameters = huge }),
		c("create with an unknown parameter", codes.InvalidArgument, func(_ *world, r request) { r.Parameters = map[string]string{"provisoning": "thin"} }),
		c("create with a bad value", codes.InvalidArgument, func(_ *world, r request) { r.Parameters = map[string]string{"provisioning": traversal} }),
		c("create with an unknown mutable", codes.InvalidArgument, func(_ *world, r request) { r.MutableParameters = map[string]string{"XXX_FakeKey": "v"} }),
		c("create with fsType as mutable", codes.InvalidArgument, func(_ *world, r request) { r.MutableParameters = map[string]string{"fsType": "xfs"} }),
		c("create with large mutable parameters", codes.InvalidArgument, func(_ *world, r request) {
			r.MutableParameters = map[string]string{"csi.storage.k8s.io/pv/name": huge["k"]}
		}),
		c("create from nothing", codes.InvalidArgument, func(_ *world, r request) { r.VolumeContentSource = &spec.VolumeContentSource{} }),
		c("create from an unknown snapshot", codes.NotFound, func(_ *world, r request) { r.VolumeContentSource = fromSnapshot(traversal) }),
		c("create from no snapshot", codes.InvalidArgument, func(_ *world, r request) { r.VolumeContentSource = fromSnapshot("") }),
		c("create from an unknown volume", codes.NotFound, func(_ *world, r request) { r.VolumeContentSource = fromVolume("vol-0") }),
		c("create smaller than the source", codes.OutOfRange, func(w *world, r request) {
			r.VolumeContentSource, r.CapacityRange = fromVolume(w.mount.GetVolumeId()), &spec.CapacityRange{LimitBytes: 4 << 20}
		}),
		c("create elsewhere", codes.ResourceExhausted, func(_ *world, r request) { r.AccessibilityRequirements = elsewhere }),
		c("create nowhere", codes.InvalidArgument, func(_ *world, r request) { r.AccessibilityRequirements = &spec.TopologyRequirement{} }),
		c("create what exists with another size", codes.AlreadyExists, func(_ *world, r request) { r.Name, r.CapacityRange.RequiredBytes = "mount", 99<<20 }),
		c("create what exists as block", codes.AlreadyExists, func(_ *world, r request) { r.Name, r.VolumeCapabilities[0] = "mount", blockCap() }),
		c("create what exists with other parameters", codes.AlreadyExists, func(_ *world, r request) { r.Name, r.Parameters = "mount", map[string]string{"provisioning": "thick"} }),
		c("create what exists from a source", codes.AlreadyExists, func(w *world, r request) { r.Name, r.VolumeContentSource = "mount", fromVolume(w.other.GetVolumeId()) }),
		c("create with an escape in the name", codes.InvalidArgument, func(_ *world, r request) { r.Name = "a\x1b[2J" }),
		c("create from a long snapshot", codes.InvalidArgument, func(_ *world, r request) { r.VolumeContentSource = fromSnapshot(long) }),
		c("create from a volume as a snapshot", codes.NotFound, func(w *world, r request) { r.VolumeContentSource = fromSnapshot(w.mount.GetVolumeId()) }),
		c("create at a bad place", codes.InvalidArgument, func(_ *world, r request) {
			r.AccessibilityRequirements = &spec.TopologyRequirement{Requisite: []*spec.Topology{{Segments: map[string]string{"a b": "c"}}}}
		}),
	}
}

func fromSnapshot(id string) *spec.VolumeContentSource {
	return &spec.VolumeContentSource{Type: &spec.VolumeContentSource_Snapshot{Snapshot: &spec.VolumeContentSource_SnapshotSource{SnapshotId: id}}}
}

func fromVolume(id string) *spec.VolumeContentSource {
	return &spec.VolumeContentSource{Type: &spec.VolumeContentSource_Volume{Volume: &spec.VolumeContentSource_VolumeSource{VolumeId: id}}}
}

func volumeCases() []badCase {
	type (
		deleteRequest   = *spec.DeleteVolumeRequest
		getRequest      = *spec.ControllerGetVolumeRequest
		validateRequest = *spec.ValidateVolumeCapabilitiesRequest
	)
	remove := bad(controller, spec.ControllerClient.DeleteVolume, func(*world) deleteRequest { return &spec.DeleteVolumeRequest{} })
	get := bad(controller, spec.ControllerClient.ControllerGetVolume, func(*world) getRequest { return &spec.ControllerGetVolumeRequest{} })
	validate := bad(controller, spec.ControllerClient.ValidateVolumeCapabilities, func(w *world) validateRequest {
		return &spec.ValidateVolumeCapabilitiesRequest{VolumeId: w.mount.GetVolumeId(), VolumeCapabilities: []*spec.VolumeCapability{mountCap()}}
	})
	return []badCase{
		remove("delete without id", codes.InvalidArgument, func(*world, deleteRequest) {}),
		remove("delete with a long id", codes.InvalidArgument, func(_ *world, r deleteRequest) { r.VolumeId = long }),
		remove("delete what never was", codes.OK, func(_ *world, r deleteRequest) { r.VolumeId = traversal }),
		remove("delete what is published", codes.FailedPrecondition, func(w *world, r deleteRequest) { r.VolumeId = w.mount.GetVolumeId() }),
		get("get without id", codes.InvalidArgument, func(*world, getRequest) {}),
		get("get what never was", codes.NotFound, func(_ *world, r getRequest) { r.VolumeId = traversal }),
		get("get with a long id", codes.InvalidArgument, func(_ *world, r getRequest) { r.VolumeId = long }),
		remove("delete a snapshot as a volume", codes.OK, func(w *world, r deleteRequest) { r.VolumeId = w.snap.GetSnapshotId() }),
		validate("validate without id", codes.InvalidArgument, func(_ *world, r validateRequest) { r.VolumeId = "" }),
		validate("validate without capability", codes.InvalidArgument, func(_ *world, r validateRequest) { r.VolumeCapabilities = nil }),
		validate("validate without access mode", codes.InvalidArgument, func(_ *world, r validateRequest) { r.VolumeCapabilities[0].AccessMode = nil }),
		validate("validate without access type", codes.InvalidArgument, func(_ *world, r validateRequest) { r.VolumeCapabilities[0].AccessType = nil }),
		validate("validate nothing", codes.InvalidArgument, func(_ *world, r validateRequest) { r.VolumeCapabilities[0] = nil }),
		validate("validate with a large context", codes.InvalidArgument, func(_ *world, r validateRequest) { r.VolumeContext = huge }),
		validate("validate what never was", codes.NotFound, func(_ *world, r validateRequest) { r.VolumeId = traversal }),
		validate("validate the impossible of what never was", codes.NotFound, func(_ *world, r validateRequest) {
			r.VolumeId, r.VolumeCapabilities[0].AccessMode.Mode = "x", 5
		}),
	}
}

func changeCases() []badCase {
	type (
		expandRequest = *spec.ControllerExpandVolumeRequest
		modifyRequest = *spec.ControllerModifyVolumeRequest
	)
	expand := bad(controller, spec.ControllerClient.ControllerExpandVolume, func(w *world) expandRequest {
		return &spec.ControllerExpandVolumeRequest{VolumeId: w.block.GetVolumeId(), CapacityRange: &spec.CapacityRange{RequiredBytes: 16 << 20}}
	})
	modify := bad(controller, spec.ControllerClient.ControllerModifyVolume, func(w *world) modifyRequest {
		return &spec.ControllerModifyVolumeRequest{VolumeId: w.block.GetVolumeId(), MutableParameters: map[string]string{"provisioning": "thick"}}
	})
	return []badCase{
		expand("expand without id", codes.InvalidArgument, func(_ *world, r expandRequest) { r.VolumeId = "" }),
		expand("expand with a long id", codes.InvalidArgument, func(_ *world, r expandRequest) { r.VolumeId = long }),
		expand("expand what never was", codes.NotFound, func(_ *world, r expandRequest) { r.VolumeId = traversal }),
		expand("expand without range", codes.InvalidArgument, func(_ *world, r expandRequest) { r.CapacityRange = nil }),
		expand("expand to an empty range", codes.InvalidArgument, func(_ *world, r expandRequest) { r.CapacityRange = &spec.CapacityRange{} }),
		expand("expand to less than nothing", codes.InvalidArgument, func(_ *world, r expandRequest) { r.CapacityRange.RequiredBytes = -5 }),
		expand("expand with limit < required", codes.InvalidArgument, func(_ *world, r expandRequest) { r.CapacityRange.LimitBytes = 1 }),
		expand("expand to an absurd size", codes.OutOfRange, func(_ *world, r expandRequest) { r.CapacityRange.RequiredBytes = math.MaxInt64 }),
		expand("expand beyond the pool", codes.OutOfRange, func(_ *world, r expandRequest) { r.CapacityRange.RequiredBytes = 2 << 40 }),
		expand("expand below the size", codes.OutOfRange, func(_ *world, r expandRequest) { r.CapacityRange = &spec.CapacityRange{LimitBytes: 4 << 20} }),
		expand("expand a block volume as a mount", codes.InvalidArgument, func(_ *world, r expandRequest) { r.VolumeCapability = mountCap() }),
		expand("expand for many nodes", codes.InvalidArgument, func(_ *world, r expandRequest) {
			r.VolumeCapability = blockCap()
			r.VolumeCapability.AccessMode.Mode = 5
		}),
		modify("modify without id", codes.InvalidArgument, func(_ *world, r modifyRequest) { r.VolumeId = "" }),
		modify("modify nothing", codes.InvalidArgument, func(_ *world, r modifyRequest) { r.MutableParameters = nil }),
		modify("modify what never was", codes.NotFound, func(_ *world, r modifyRequest) { r.VolumeId = traversal }),
		modify("modify one right, one wrong", codes.InvalidArgument, func(_ *world, r modifyRequest) { r.MutableParameters["color"] = "red" }),
		modify("modify too much", codes.InvalidArgument, func(_ *world, r modifyRequest) { r.MutableParameters = huge }),
	}
}

func publishCases() []badCase {
	type (
		publishRequest   = *spec.ControllerPublishVolumeRequest
		unpublishRequest = *spec.ControllerUnpublishVolumeRequest
	)
	publish := bad(controller, spec.ControllerClient.ControllerPublishVolume, func(w *world) publishRequest {
		return &spec.ControllerPublishVolumeRequest{
			VolumeId: w.other.GetVolumeId(), NodeId: nodeID, VolumeCapability: mountCap(), Secrets: map[string]string{"password": marker},
		}
	})
	unpublish := bad(controller, spec.ControllerClient.ControllerUnpublishVolume, func(*world) unpublishRequest { return &spec.ControllerUnpublishVolumeRequest{} })
	taken := func(edit func(publishRequest)) func(*world, publishRequest) {
		return func(w *world, r publishRequest) {
			r.VolumeId = w.mount.GetVolumeId()
			edit(r)
		}
	}
	return []badCase{
		publish("publish without id", codes.InvalidArgument, func(_ *world, r publishRequest) { r.VolumeId = "" }),
		publish("publish with a long id", codes.InvalidArgument, func(_ *world, r publishRequest) { r.VolumeId = long }),
		publish("publish with a large context", codes.InvalidArgument, func(_ *world, r publishRequest) { r.VolumeContext = huge }),
		publish("publish raw bytes as a mount", codes.InvalidArgument, func(w *world, r publishRequest) { r.VolumeId = w.block.GetVolumeId() }),
		publish("publish without node", codes.InvalidArgument, func(_ *world, r publishRequest) { r.NodeId = "" }),
		publish("publish without capability", codes.InvalidArgument, func(_ *world, r publishRequest) { r.VolumeCapability = nil }),
		publish("publish to a long node", codes.InvalidArgument, func(_ *world, r publishRequest) { r.NodeId = strings.Repeat("n", 257) }),
		publish("publish what never was", codes.NotFound, func(_ *world, r publishRequest) { r.VolumeId = traversal }),
		publish("publish to an unknown node", codes.NotFound, func(_ *world, r publishRequest) { r.NodeId = traversal }),
		publish("publish for many nodes", codes.InvalidArgument, func(_ *world, r publishRequest) { r.VolumeCapability.AccessMode.Mode = 5 }),
		publish("publish a file system of another type", codes.InvalidArgument, func(_ *world, r publishRequest) { r.VolumeCapability.GetMount().FsType = "btrfs" }),
		publish("publish with another's context", codes.InvalidArgument, func(w *world, r publishRequest) { r.VolumeContext = w.block.GetVolumeContext() }),
		publish("publish with an evil context", codes.InvalidArgument, func(w *world, r publishRequest) {
			r.VolumeContext = map[string]string{"targetType": "file", "file": traversal, "pool": w.mount.GetVolumeContext()["pool"]}
		}),
		publish("publish to a second node", codes.FailedPrecondition, taken(func(r publishRequest) { r.NodeId = "node-2" })),
		publish("publish again read-only", codes.AlreadyExists, taken(func(r publishRequest) { r.Readonly = true })),
		publish("publish again in another mode", codes.AlreadyExists, taken(func(r publishRequest) { r.VolumeCapability.AccessMode.Mode = 7 })),
		publish("publish again as block", codes.AlreadyExists, taken(func(r publishRequest) { r.VolumeCapability = blockCap() })),
		unpublish("unpublish without id", codes.InvalidArgument, func(*world, unpublishRequest) {}),
		unpublish("unpublish with a long id", codes.InvalidArgument, func(_ *world, r unpublishRequest) { r.VolumeId = long }),
		unpublish("unpublish with a long node", codes.InvalidArgument, func(_ *world, r unpublishRequest) { r.VolumeId, r.NodeId = "v", strings.Repeat("n", 257) }),
		unpublish("unpublish what never was", codes.OK, func(_ *world, r unpublishRequest) { r.VolumeId = traversal }),
		unpublish("unpublish where it is not", codes.OK, func(w *world, r unpublishRequest) { r.VolumeId, r.NodeId = w.mount.GetVolumeId(), "node-2" }),
	}
}
