// Package group is CSI's GroupController service over any volume.Backend:
// several volumes cut at one moment.
package group

import (
	"context"
	"slices"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/cleatproject/cleat/csi"
	"github.com/cleatproject/cleat/csi/request"
	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/op"
	"github.com/cleatproject/cleat/volume"
)

// Config is what the service works with.
type Config struct {
	Backend    volume.Backend
	Deployment csi.Deployment
	Operations *op.Operations
}

// Server is the GroupController service.
type Server struct {
	spec.UnimplementedGroupControllerServer
	groups     volume.Groups // nil when the engine has none
	operations *op.Operations
	announced  csi.Announcement
}

// New makes the service. One over an engine without groups answers that
// nothing is offered.
func New(c Config) (*Server, error) {
	if err := c.Deployment.Check(); err != nil {
		return nil, err
	}
	return &Server{
		groups: c.Backend.Groups, operations: c.Operations, announced: csi.Announce(csi.AbilitiesOf(c.Backend), c.Deployment),
	}, nil
}

func (s *Server) offers(call string) error {
	return s.announced.RequireService(call, spec.PluginCapability_Service_GROUP_CONTROLLER_SERVICE)
}

func nameKey(name string) string        { return "group-name:" + name }
func groupKey(id volume.GroupID) string { return "group:" + string(id) }

// GroupControllerGetCapabilities tells what is offered.
func (s *Server) GroupControllerGetCapabilities(context.Context, *spec.GroupControllerGetCapabilitiesRequest) (*spec.GroupControllerGetCapabilitiesResponse, error) {
	return &spec.GroupControllerGetCapabilitiesResponse{Capabilities: s.announced.GroupCapabilities()}, nil
}

// CreateVolumeGroupSnapshot cuts several volumes at one moment, or answers
// with the group cut for an equal request.
func (s *Server) CreateVolumeGroupSnapshot(ctx context.Context, r *spec.CreateVolumeGroupSnapshotRequest) (*spec.CreateVolumeGroupSnapshotResponse, error) {
	if err := s.offers("CreateVolumeGroupSnapshot"); err != nil {
		return nil, err
	}
	req, err := request.CreateVolumeGroupSnapshot(r)
	if err != nil {
		return nil, err
	}
	g, err := op.Do(ctx, s.operations, op.Request{
		What: "CreateVolumeGroupSnapshot", Keys: []string{nameKey(req.Name)}, Fingerprint: request.Fingerprint(r),
	}, func(ctx context.Context) (volume.Group, error) {
		return s.groups.CreateGroup(ctx, req)
	})
	if err != nil {
		return nil, err
	}
	return &spec.CreateVolumeGroupSnapshotResponse{GroupSnapshot: s.group(g)}, nil
}

// group says in the contract's words what a group is.
func (s *Server) group(g volume.Group) *spec.VolumeGroupSnapshot {
	out := &spec.VolumeGroupSnapshot{GroupSnapshotId: string(g.ID), CreationTime: timestamppb.New(g.Created), ReadyToUse: g.Ready}
	for _, snap := range g.Snapshots {
		out.Snapshots = append(out.Snapshots, csi.Snapshot(snap, s.announced))
		out.ReadyToUse = out.ReadyToUse && snap.Ready
	}
	return out
}

// DeleteVolumeGroupSnapshot removes a group with its snapshots. Invalid: the
// list of snapshots is not the group's.
func (s *Server) DeleteVolumeGroupSnapshot(ctx context.Context, r *spec.DeleteVolumeGroupSnapshotRequest) (*spec.DeleteVolumeGroupSnapshotResponse, error) {
	if err := s.offers("DeleteVolumeGroupSnapshot"); err != nil {
		return nil, err
	}
	req, err := request.DeleteVolumeGroupSnapshot(r)
	if err != nil {
		return nil, err
	}
	g, err := s.groups.GetGroup(ctx, req.Group)
	switch {
	case errs.KindOf(err) == errs.NotFound:
		return s.remove(ctx, r, req.Group)
	case err != nil:
		return nil, err
	}
	if err := checkMembers(g, req.Snapshots); err != nil {
		return nil, err
	}
	return s.remove(ctx, r, req.Group, nameKey(g.Name))
}

// remove deletes also what is not known (any more): a deletion that was cut
// half-way may have something left to do.
func (s *Server) remove(ctx context.Context, r *spec.DeleteVolumeGroupSnapshotRequest, id volume.GroupID, keys ...string) (*spec.DeleteVolumeGroupSnapshotResponse, error) {
	_, err := op.Do(ctx, s.operations, op.Request{
		What: "DeleteVolumeGroupSnapshot", Keys: append(keys, groupKey(id)), Fingerprint: request.Fingerprint(r), Negates: true,
	}, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, s.groups.DeleteGroup(ctx, id)
	})
	if err != nil {
		return nil, err
	}
	return &spec.DeleteVolumeGroupSnapshotResponse{}, nil
}

// GetVolumeGroupSnapshot answers what is known of a group. Invalid: the list
// of snapshots is not the group's.
func (s *Server) GetVolumeGroupSnapshot(ctx context.Context, r *spec.GetVolumeGroupSnapshotRequest) (*spec.GetVolumeGroupSnapshotResponse, error) {
	if err := s.offers("GetVolumeGroupSnapshot"); err != nil {
		return nil, err
	}
	req, err := request.GetVolumeGroupSnapshot(r)
	if err != nil {
		return nil, err
	}
	g, err := s.groups.GetGroup(ctx, req.Group)
	if err != nil {
		return nil, err
	}
	if err := checkMembers(g, req.Snapshots); err != nil {
		return nil, err
	}
	return &spec.GetVolumeGroupSnapshotResponse{GroupSnapshot: s.group(g)}, nil
}

// checkMembers holds the list of a request, sorted, against the group.
func checkMembers(g volume.Group, named []volume.SnapshotID) error {
	members := make([]volume.SnapshotID, len(g.Snapshots))
	for i, snap := range g.Snapshots {
		members[i] = snap.ID
	}
	slices.Sort(members)
	if slices.Equal(members, named) {
		return nil
	}
	return errs.Errorf(errs.Invalid, "snapshot_ids %q are not those of group %s, which are %q", named, g.ID, members)
}
