package client_test

import (
	"context"
	"errors"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/cleatproject/cleat/csi/client"
	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/volume"
)

func snapshotting() *other {
	o := newOther()
	o.controller = append(o.controller, csi.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT, csi.ControllerServiceCapability_RPC_CLONE_VOLUME)
	return o
}

// The request is repeated until the driver reports ready.
func TestSnapshotWaitsUntilReady(t *testing.T) {
	o := snapshotting()
	o.notReady = 3
	d, _ := start(t, o)
	testkit.Value(d.Create(t.Context(), sized("v")))(t)
	s, err := d.CreateSnapshot(t.Context(), "s", "v", map[string]string{"a": "b"})
	if err != nil || !s.Ready || s.Size != mib {
		t.Fatalf("%+v, %v", s, err)
	}
	if got := len(o.made("CreateSnapshot")); got != 4 {
		t.Errorf("asked %d times, want 4", got)
	}
	o.notReady = 1 << 30
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	answers := 0
	o.after = func(method string) error {
		if method == "CreateSnapshot" {
			if answers++; answers == 3 {
				cancel()
			}
		}
		return nil
	}
	_, err = d.CreateSnapshot(ctx, "never", "v", nil)
	wantKind(t, err, errs.Unavailable, "never", "not ready")
	all, err := d.Snapshots(t.Context(), "v")
	if err != nil || len(all) != 2 || all[0].Ready || !all[1].Ready {
		t.Errorf("Snapshots without LIST_SNAPSHOTS: %+v, %v", all, err)
	}
}

// A restored or cloned volume has the kind of its source, and survives it.
func TestCopiesAreUsedAsTheirSource(t *testing.T) {
	o := snapshotting()
	o.controller = append(o.controller, csi.ControllerServiceCapability_RPC_EXPAND_VOLUME)
	d, _ := start(t, o)
	ctx := t.Context()
	block := &client.Capability{Block: true}
	origin := sized("v")
	origin.Capability = block
	v := testkit.Value(d.Create(ctx, origin))(t)
	s, err := d.CreateSnapshot(ctx, "s", v.ID, nil)
	testkit.Must(t, err)
	restore, clone := sized("restored"), sized("cloned")
	restore.FromSnapshot, clone.FromVolume = "s", "v"
	for req, want := range map[*client.CreateRequest]client.Source{&restore: {Snapshot: s.ID}, &clone: {Volume: v.ID}} {
		got, err := d.Create(ctx, *req)
		if err != nil || !got.Capability.Block || got.Source != want {
			t.Errorf("%s: %+v, %v; want a block volume from %+v", req.Name, got, err, want)
		}
	}
	// Without a size, a copy has that of its source, also when repeated.
	unsized := client.CreateRequest{Name: "unsized", FromVolume: "v"}
	testkit.Value(d.Create(ctx, unsized))(t)
	testkit.Value(d.Expand(ctx, "v", volume.SizeRange{Required: 2 * v.Size}))(t)
	testkit.Value(d.Create(ctx, unsized))(t)
	for _, m := range o.asked("CreateVolume") {
		if r := m.(*csi.CreateVolumeRequest); r.GetName() == "unsized" && r.GetCapacityRange().GetRequiredBytes() != v.Size {
			t.Errorf("a clone without size requests %d bytes, want %d", r.GetCapacityRange().GetRequiredBytes(), v.Size)
		}
	}
	testkit.Must(t, errors.Join(d.DeleteSnapshot(ctx, "s"), d.Delete(ctx, "v")))
	if _, err := d.Create(ctx, restore); err != nil {
		t.Errorf("the same create after the source is gone: %v", err)
	}
	other := sized("another")
	other.FromSnapshot = "s"
	_, err = d.Create(ctx, other)
	wantKind(t, err, errs.Unsupported, "s", "GET_SNAPSHOT", "LIST_SNAPSHOTS")
	other.FromVolume = "v"
	_, err = d.Create(ctx, other)
	wantKind(t, err, errs.Invalid)
	wantKind(t, d.DeleteSnapshot(ctx, "s"), errs.Unsupported, "not known")
}

// A group is known by its record, found after an interrupted call, and deleted
// with its members.
func TestGroups(t *testing.T) {
	o := snapshotting()
	o.plugin = append(o.plugin, csi.PluginCapability_Service_GROUP_CONTROLLER_SERVICE)
	d, config := start(t, o)
	ctx := t.Context()
	v, w := sized("v"), sized("w")
	v.Capability = &client.Capability{Block: true}
	for _, req := range []client.CreateRequest{v, w} {
		testkit.Value(d.Create(ctx, req))(t)
	}
	short, cancel := context.WithCancel(ctx)
	defer cancel()
	o.after = func(method string) error {
		if method != "CreateVolumeGroupSnapshot" || short.Err() != nil {
			return nil
		}
		cancel() // the client does not receive the group's id
		return status.FromContextError(short.Err()).Err()
	}
	_, err := d.CreateGroup(short, "both", []string{"w", "v"}, nil)
	wantKind(t, err, errs.Unavailable)
	d = dial(t, config)
	all, err := d.Groups(ctx)
	if err != nil || len(all) != 1 || all[0].State != client.StateCreating {
		t.Errorf("Groups after an interrupted create: %+v, %v", all, err)
	}
	g, err := d.CreateGroup(ctx, "both", []string{"v", "w"}, nil)
	if err != nil || len(g.Snapshots) != 2 || !g.Ready || len(o.groups) != 1 {
		t.Fatalf("the same again: %+v, %v", g, err)
	}
	if shown, err := d.ShowGroup(ctx, g.ID); err != nil || len(shown.Snapshots) != 2 || shown.Snapshots[0].SourceName != "v" || !shown.Snapshots[0].Capability.Block {
		t.Errorf("ShowGroup: %+v, %v", shown, err)
	}
	member := sized("of a member")
	member.FromSnapshot = g.Snapshots[0].ID
	if got, err := d.Create(ctx, member); err != nil || !got.Capability.Block {
		t.Errorf("restored from a member: %+v, %v", got, err)
	}
	wantKind(t, d.DeleteSnapshot(ctx, g.Snapshots[0].ID), errs.Invalid, g.ID)
	clear(o.groups)
	if shown, err := d.ShowGroup(ctx, "both"); err != nil || shown.State != client.StateMissing {
		t.Errorf("ShowGroup of one that the driver has lost: %+v, %v", shown, err)
	}
	if err := d.DeleteGroup(ctx, "both"); err != nil {
		t.Error(err)
	}
	wantKind(t, d.DeleteGroup(ctx, "both"), errs.NotFound, "both")
}

func (o *other) GroupControllerGetCapabilities(context.Context, *csi.GroupControllerGetCapabilitiesRequest) (*csi.GroupControllerGetCapabilitiesResponse, error) {
	return &csi.GroupControllerGetCapabilitiesResponse{Capabilities: []*csi.GroupControllerServiceCapability{{Type: &csi.GroupControllerServiceCapability_Rpc{
		Rpc: &csi.GroupControllerServiceCapability_RPC{Type: csi.GroupControllerServiceCapability_RPC_CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT},
	}}}}, nil
}

func (o *other) CreateVolumeGroupSnapshot(_ context.Context, r *csi.CreateVolumeGroupSnapshotRequest) (*csi.CreateVolumeGroupSnapshotResponse, error) {
	g := &csi.VolumeGroupSnapshot{GroupSnapshotId: "group of " + r.GetName(), ReadyToUse: true}
	for _, id := range r.GetSourceVolumeIds() {
		g.Snapshots = append(g.Snapshots, &csi.Snapshot{SnapshotId: r.GetName() + " of " + id, SourceVolumeId: id, SizeBytes: mib, GroupSnapshotId: g.GetGroupSnapshotId(), ReadyToUse: true})
	}
	o.groups[g.GetGroupSnapshotId()] = g
	return &csi.CreateVolumeGroupSnapshotResponse{GroupSnapshot: g}, nil
}

func (o *other) GetVolumeGroupSnapshot(_ context.Context, r *csi.GetVolumeGroupSnapshotRequest) (*csi.GetVolumeGroupSnapshotResponse, error) {
	g := o.groups[r.GetGroupSnapshotId()]
	if g == nil {
		return nil, status.Error(codes.NotFound, "no such group")
	}
	if len(r.GetSnapshotIds()) != len(g.GetSnapshots()) {
		return nil, status.Error(codes.InvalidArgument, "not the members of the group")
	}
	return &csi.GetVolumeGroupSnapshotResponse{GroupSnapshot: g}, nil
}

func (o *other) DeleteVolumeGroupSnapshot(_ context.Context, r *csi.DeleteVolumeGroupSnapshotRequest) (*csi.DeleteVolumeGroupSnapshotResponse, error) {
	delete(o.groups, r.GetGroupSnapshotId())
	return &csi.DeleteVolumeGroupSnapshotResponse{}, nil
}

// The driver dies after each page.
func TestBlocksContinueWhereTheStreamBroke(t *testing.T) {
	o := snapshotting()
	o.plugin = append(o.plugin, csi.PluginCapability_Service_SNAPSHOT_METADATA_SERVICE)
	d, _ := start(t, o)
	ctx := t.Context()
	testkit.Value(d.Create(ctx, sized("v")))(t)
	for _, name := range []string{"s", "t"} {
		testkit.Value(d.CreateSnapshot(ctx, name, "v", nil))(t)
	}
	var got []volume.Range
	collect := func(p client.BlockPage) error {
		if p.Size != mib {
			t.Errorf("size %d", p.Size)
		}
		got = append(got, p.Ranges...)
		return nil
	}
	testkit.Must(t, d.Allocated(ctx, "s", 0, collect))
	want := []volume.Range{{Offset: 0, Length: 4096}, {Offset: 8192, Length: 4096}, {Offset: 16384, Length: 8192}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("Allocated (-want +got):\n%s", diff)
	}
	wantKind(t, d.Delta(ctx, "s", "t", 0, collect), errs.Precondition, "everything")
	wantKind(t, d.Delta(ctx, "t", "s", 0, collect), errs.Internal, "order")
	enough := errors.New("enough")
	if err := d.Allocated(ctx, "s", 0, func(client.BlockPage) error { return enough }); !errors.Is(err, enough) {
		t.Errorf("visit's error came back as %v", err)
	}
}

// GetMetadataAllocated sends one range and fails, until none is left.
func (o *other) GetMetadataAllocated(r *csi.GetMetadataAllocatedRequest, s csi.SnapshotMetadata_GetMetadataAllocatedServer) error {
	for _, b := range []*csi.BlockMetadata{{ByteOffset: 0, SizeBytes: 4096}, {ByteOffset: 8192, SizeBytes: 4096}, {ByteOffset: 16384, SizeBytes: 8192}} {
		if b.GetByteOffset()+b.GetSizeBytes() <= r.GetStartingOffset() {
			continue
		}
		if err := s.Send(&csi.GetMetadataAllocatedResponse{VolumeCapacityBytes: mib, BlockMetadata: []*csi.BlockMetadata{b}}); err != nil {
			return err
		}
		return status.Error(codes.Unavailable, "the driver is killed")
	}
	return nil
}

// GetMetadataDelta has no list from s, and one out of order from t.
func (o *other) GetMetadataDelta(r *csi.GetMetadataDeltaRequest, s csi.SnapshotMetadata_GetMetadataDeltaServer) error {
	if r.GetBaseSnapshotId() == "snap of s" {
		return status.Error(codes.FailedPrecondition, "copy everything")
	}
	return s.Send(&csi.GetMetadataDeltaResponse{VolumeCapacityBytes: mib, BlockMetadata: []*csi.BlockMetadata{
		{ByteOffset: 8192, SizeBytes: 4096}, {ByteOffset: 0, SizeBytes: 4096},
	}})
}
