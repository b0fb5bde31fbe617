package csi

import (
	"cmp"
	"context"
	"slices"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/volume"
)

// CreateSnapshot creates a snapshot. It is idempotent.
func (s *Controller) CreateSnapshot(ctx context.Context, r *spec.CreateSnapshotRequest) (*spec.CreateSnapshotResponse, error) {
	if err := cmp.Or(
		s.announced.needs(r, spec.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT),
		checkName("name", r.GetName()),
		checkID("source_volume_id", r.GetSourceVolumeId()),
		checkMap("parameters", r.GetParameters()),
		s.announced.checkAccessibility("snapshots", r.GetAccessibilityRequirements()),
	); err != nil {
		return nil, err
	}
	req := volume.SnapshotRequest{Name: r.GetName(), Source: volume.ID(r.GetSourceVolumeId()), Parameters: ownKeys(r.GetParameters())}
	snap, err := do(ctx, s.operations, r, []string{snapshotNameKey(req.Name)}, func(ctx context.Context) (volume.Snapshot, error) {
		return s.backend.Snapshots.CreateSnapshot(ctx, req)
	})
	if err != nil {
		return nil, err
	}
	return &spec.CreateSnapshotResponse{Snapshot: s.snapshot(snap)}, nil
}

func (s *Controller) snapshot(snap volume.Snapshot) *spec.Snapshot {
	return &spec.Snapshot{
		SnapshotId: string(snap.ID), SourceVolumeId: string(snap.Source), SizeBytes: snap.Size, GroupSnapshotId: string(snap.Group),
		CreationTime: timestamppb.New(snap.Created), ReadyToUse: snap.Ready, AccessibleTopology: s.announced.accessibleTopology(nil),
	}
}

// DeleteSnapshot deletes a snapshot that is not part of a group, and cancels a
// pending CreateSnapshot of the same name.
func (s *Controller) DeleteSnapshot(ctx context.Context, r *spec.DeleteSnapshotRequest) (*spec.DeleteSnapshotResponse, error) {
	if err := cmp.Or(
		s.announced.needs(r, spec.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT),
		checkID("snapshot_id", r.GetSnapshotId()),
	); err != nil {
		return nil, err
	}
	id := volume.SnapshotID(r.GetSnapshotId())
	keys := []string{snapshotKey(id)}
	snap, err := s.backend.Snapshots.GetSnapshot(ctx, id)
	switch {
	case err == nil && snap.Group == "":
		keys = append(keys, snapshotNameKey(snap.Name))
	case err != nil && errs.KindOf(err) != errs.NotFound:
		return nil, err
	}
	return &spec.DeleteSnapshotResponse{}, undo(ctx, s.operations, r, keys, nil, func(ctx context.Context) error {
		return s.backend.Snapshots.DeleteSnapshot(ctx, id)
	})
}

// GetSnapshot returns a snapshot.
func (s *Controller) GetSnapshot(ctx context.Context, r *spec.GetSnapshotRequest) (*spec.GetSnapshotResponse, error) {
	if err := cmp.Or(
		s.announced.needs(r, spec.ControllerServiceCapability_RPC_GET_SNAPSHOT),
		checkID("snapshot_id", r.GetSnapshotId()),
	); err != nil {
		return nil, err
	}
	snap, err := s.backend.Snapshots.GetSnapshot(ctx, volume.SnapshotID(r.GetSnapshotId()))
	if err != nil {
		return nil, err
	}
	return &spec.GetSnapshotResponse{Snapshot: s.snapshot(snap)}, nil
}

// GroupControllerGetCapabilities returns what is announced.
func (s *Controller) GroupControllerGetCapabilities(context.Context, *spec.GroupControllerGetCapabilitiesRequest) (*spec.GroupControllerGetCapabilitiesResponse, error) {
	response := &spec.GroupControllerGetCapabilitiesResponse{}
	if slices.Contains(s.announced.services, spec.PluginCapability_Service_GROUP_CONTROLLER_SERVICE) {
		response.Capabilities = []*spec.GroupControllerServiceCapability{{Type: &spec.GroupControllerServiceCapability_Rpc{
			Rpc: &spec.GroupControllerServiceCapability_RPC{Type: spec.GroupControllerServiceCapability_RPC_CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT},
		}}}
	}
	return response, nil
}

// CreateVolumeGroupSnapshot creates snapshots of several volumes at one moment.
// It is idempotent; the order of the sources does not matter.
func (s *Controller) CreateVolumeGroupSnapshot(ctx context.Context, r *spec.CreateVolumeGroupSnapshotRequest) (*spec.CreateVolumeGroupSnapshotResponse, error) {
	if err := cmp.Or(
		s.announced.needsService(r, spec.PluginCapability_Service_GROUP_CONTROLLER_SERVICE),
		checkName("name", r.GetName()),
		checkMap("parameters", r.GetParameters()),
	); err != nil {
		return nil, err
	}
	if len(r.GetSourceVolumeIds()) == 0 {
		return nil, invalidf("source_volume_ids is empty; at least one is needed")
	}
	sources, err := parseSet[volume.ID]("source_volume_ids", r.GetSourceVolumeIds())
	if err != nil {
		return nil, err
	}
	parameters, err := groupParameters(r.GetParameters())
	if err != nil {
		return nil, err
	}
	req := volume.GroupRequest{Name: r.GetName(), Sources: sources, Parameters: parameters}
	g, err := do(ctx, s.operations, r, []string{groupNameKey(req.Name)}, func(ctx context.Context) (volume.Group, error) {
		return s.backend.Groups.CreateGroup(ctx, req)
	})
	if err != nil {
		return nil, err
	}
	return &spec.CreateVolumeGroupSnapshotResponse{GroupSnapshot: s.group(g)}, nil
}

// groupParameters returns the parameters for the engine. deletionPolicy is a
// field of a VolumeGroupSnapshotClass that Kubernetes' storage tests also pass
// as a parameter. It is for the snapshotter and means nothing to a driver, but
// a value that the field cannot have is a mistake.
func groupParameters(parameters map[string]string) (map[string]string, error) {
	const key = "deletionPolicy"
	own := ownKeys(parameters)
	if policy, ok := own[key]; ok && policy != "Delete" && policy != "Retain" {
		return nil, invalidf("parameter %s is %s; it is Delete or Retain, and only the field of that name in the VolumeGroupSnapshotClass has an effect", key, errs.Quote(policy))
	}
	delete(own, key)
	return own, nil
}

func (s *Controller) group(g volume.Group) *spec.VolumeGroupSnapshot {
	out := &spec.VolumeGroupSnapshot{GroupSnapshotId: string(g.ID), CreationTime: timestamppb.New(g.Created), ReadyToUse: g.Ready}
	for _, snap := range g.Snapshots {
		out.Snapshots = append(out.Snapshots, s.snapshot(snap))
		out.ReadyToUse = out.ReadyToUse && snap.Ready
	}
	return out
}

// groupRequest names a group and, as a cross-check, its snapshots.
type groupRequest interface {
	proto.Message
	GetGroupSnapshotId() string
	GetSnapshotIds() []string
}

// namedGroup returns the group that a request names. NotFound: it does not
// exist. Invalid: it has other snapshots than the request says.
func (s *Controller) namedGroup(ctx context.Context, r groupRequest) (volume.Group, error) {
	if err := cmp.Or(
		s.announced.needsService(r, spec.PluginCapability_Service_GROUP_CONTROLLER_SERVICE),
		checkID("group_snapshot_id", r.GetGroupSnapshotId()),
	); err != nil {
		return volume.Group{}, err
	}
	named, err := parseSet[volume.SnapshotID]("snapshot_ids", r.GetSnapshotIds())
	if err != nil {
		return volume.Group{}, err
	}
	g, err := s.backend.Groups.GetGroup(ctx, volume.GroupID(r.GetGroupSnapshotId()))
	if err != nil {
		return volume.Group{}, err
	}
	members := wrap(g.Snapshots, func(snap volume.Snapshot) volume.SnapshotID { return snap.ID })
	if slices.Sort(members); !slices.Equal(members, named) {
		return volume.Group{}, invalidf("snapshot_ids %q are not those of group %s, which are %q", named, g.ID, members)
	}
	return g, nil
}

// DeleteVolumeGroupSnapshot deletes a group with its snapshots, also an unknown
// one: an interrupted deletion can have work left.
func (s *Controller) DeleteVolumeGroupSnapshot(ctx context.Context, r *spec.DeleteVolumeGroupSnapshotRequest) (*spec.DeleteVolumeGroupSnapshotResponse, error) {
	id := volume.GroupID(r.GetGroupSnapshotId())
	keys := []string{groupKey(id)}
	g, err := s.namedGroup(ctx, r)
	switch {
	case err == nil:
		keys = append(keys, groupNameKey(g.Name))
	case errs.KindOf(err) != errs.NotFound:
		return nil, err
	}
	return &spec.DeleteVolumeGroupSnapshotResponse{}, undo(ctx, s.operations, r, keys, nil, func(ctx context.Context) error {
		return s.backend.Groups.DeleteGroup(ctx, id)
	})
}

// GetVolumeGroupSnapshot returns a group.
func (s *Controller) GetVolumeGroupSnapshot(ctx context.Context, r *spec.GetVolumeGroupSnapshotRequest) (*spec.GetVolumeGroupSnapshotResponse, error) {
	g, err := s.namedGroup(ctx, r)
	if err != nil {
		return nil, err
	}
	return &spec.GetVolumeGroupSnapshotResponse{GroupSnapshot: s.group(g)}, nil
}
