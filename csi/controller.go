package csi

import (
	"cmp"
	"context"
	"slices"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/op"
	"github.com/cleatproject/cleat/volume"
)

// Admission admits clients to operations, so that a fence can wait for calls in
// flight; ledger.Ledger implements it.
type Admission interface {
	// Enter admits a client until leave is called. Precondition: the client is
	// fenced.
	Enter(ctx context.Context, c volume.Client) (leave func(), err error)
}

// Grants records which client has which volume; ledger.Ledger implements it.
type Grants interface {
	Admission
	// Grant records a grant. It is idempotent. Exists: the node has a different
	// grant. Precondition: the client is fenced, or another node has the
	// volume.
	Grant(ctx context.Context, g volume.Grant) (volume.Grant, error)
	// Revoke removes the grant of a node (empty: all), once enforce, if it is not
	// nil, has made the storage shut the node out; a missing one is no error.
	Revoke(ctx context.Context, id volume.ID, node string, enforce func(context.Context) error) error
	// Of returns the grants of a volume.
	Of(ctx context.Context, id volume.ID) ([]volume.Grant, error)
	// All returns the grants of volumes with ids greater than after, in that
	// order; limit 0 is no limit.
	All(ctx context.Context, after volume.ID, limit int) ([]volume.Grant, error)
	// Clients returns the nodes with their addresses as last recorded.
	Clients(ctx context.Context) ([]volume.Client, error)
	// Client returns a node's addresses as last recorded.
	Client(ctx context.Context, node string) (c volume.Client, known bool, err error)
	// ByNode returns the grants of a node.
	ByNode(ctx context.Context, node string) ([]volume.Grant, error)
}

// ControllerConfig configures a Controller.
type ControllerConfig struct {
	Backend    volume.Backend
	Deployment Deployment
	Operations *op.Operations
	Grants     Grants // for Deployment.ControllerPublish
}

// Controller serves Controller, GroupController and SnapshotMetadata for one
// backend.
type Controller struct {
	spec.UnimplementedControllerServer
	spec.UnimplementedGroupControllerServer
	spec.UnimplementedSnapshotMetadataServer

	backend    volume.Backend
	deployment Deployment
	operations *op.Operations
	grants     Grants
	nodeLocks  op.Locks // by node id, for Deployment.MaxVolumes
	announced  announcement
}

// NewController returns the services of a backend.
func NewController(c ControllerConfig) *Controller {
	return &Controller{
		backend: c.Backend, deployment: c.Deployment, operations: c.Operations, grants: c.Grants,
		announced: announce(AbilitiesOf(c.Backend), c.Deployment),
	}
}

// Register registers the three services with a gRPC server.
func (s *Controller) Register(r grpc.ServiceRegistrar) {
	spec.RegisterControllerServer(r, s)
	spec.RegisterGroupControllerServer(r, s)
	spec.RegisterSnapshotMetadataServer(r, s)
}

// ControllerGetCapabilities returns what is announced.
func (s *Controller) ControllerGetCapabilities(context.Context, *spec.ControllerGetCapabilitiesRequest) (*spec.ControllerGetCapabilitiesResponse, error) {
	return &spec.ControllerGetCapabilitiesResponse{Capabilities: wrap(s.announced.controller,
		func(t spec.ControllerServiceCapability_RPC_Type) *spec.ControllerServiceCapability {
			return &spec.ControllerServiceCapability{Type: &spec.ControllerServiceCapability_Rpc{Rpc: &spec.ControllerServiceCapability_RPC{Type: t}}}
		})}, nil
}

// GetCapacity returns the space left for new volumes that a topology reaches.
func (s *Controller) GetCapacity(ctx context.Context, r *spec.GetCapacityRequest) (*spec.GetCapacityResponse, error) {
	query, err := s.capacityQuery(r)
	if err != nil {
		return nil, err
	}
	if !s.announced.placed && !volume.Covers(r.GetAccessibleTopology().GetSegments(), s.announced.segments) {
		return &spec.GetCapacityResponse{}, nil
	}
	c, err := s.backend.Engine.Capacity(ctx, query)
	if isUnspecific(r) && errs.KindOf(err) == errs.Invalid {
		c, err = s.backend.Engine.Capacity(ctx, volume.CapacityQuery{Topology: query.Topology})
	}
	if err != nil {
		return nil, err
	}
	response := &spec.GetCapacityResponse{AvailableCapacity: max(c.Available, 0)}
	if c.Maximum > 0 {
		response.MaximumVolumeSize = wrapperspb.Int64(c.Maximum)
	}
	if c.Minimum > 0 {
		response.MinimumVolumeSize = wrapperspb.Int64(c.Minimum)
	}
	return response, nil
}

func (s *Controller) capacityQuery(r *spec.GetCapacityRequest) (q volume.CapacityQuery, err error) {
	topology := r.GetAccessibleTopology().GetSegments()
	if err := cmp.Or(checkMap("parameters", r.GetParameters()), checkTopology("accessible_topology", topology)); err != nil {
		return q, err
	}
	if s.announced.placed {
		q.Topology = topology
	} else if len(topology) > 0 && len(s.announced.segments) == 0 {
		return q, invalidf("accessible_topology is set, but this plugin does not announce accessibility constraints")
	}
	if !isUnspecific(r) {
		if err := checkCapabilities(r.GetVolumeCapabilities()); err != nil {
			return q, err
		}
		if q.Content, q.FSType, err = s.deployment.contentOf(r.GetVolumeCapabilities()); err != nil {
			return q, err
		}
	}
	q.Parameters, q.FSType, err = s.deployment.parseParameters("parameters", r.GetParameters(), q.Content, q.FSType)
	if isUnspecific(r) && err != nil {
		return volume.CapacityQuery{Topology: q.Topology}, nil
	}
	return q, err
}

// isUnspecific reports a request for the scheduler, with only the parameters of
// a class. These are ignored: an error would count as a lack of space, and
// CreateVolume, which reports wrong parameters, would never be called.
func isUnspecific(r *spec.GetCapacityRequest) bool { return len(r.GetVolumeCapabilities()) == 0 }

// ControllerGetVolumeHealth returns the conditions that the backend reports.
func (s *Controller) ControllerGetVolumeHealth(ctx context.Context, r *spec.ControllerGetVolumeHealthRequest) (*spec.ControllerGetVolumeHealthResponse, error) {
	id := volume.ID(r.GetVolumeId())
	if err := cmp.Or(
		s.announced.needs(r, spec.ControllerServiceCapability_RPC_GET_VOLUME_HEALTH),
		checkID("volume_id", r.GetVolumeId()),
	); err != nil {
		return nil, err
	}
	conditions, err := s.backend.Health.VolumeHealth(ctx, id)
	if err != nil {
		return nil, err
	}
	return &spec.ControllerGetVolumeHealthResponse{VolumeHealth: volumeHealth(id, conditions)}, nil
}

// volumeHealth translates the conditions of a volume. The specification allows
// one entry for each severity and reason.
func volumeHealth(id volume.ID, conditions []volume.Condition) *spec.VolumeHealth {
	out := &spec.VolumeHealth{VolumeId: string(id)}
	for _, c := range conditions {
		entry := &spec.VolumeHealth_VolumeHealthEntry{Status: severity(c.Severity), Reason: clip(c.Reason), Message: clip(c.Message)}
		if !slices.ContainsFunc(out.GetHealthStatuses(), func(e *spec.VolumeHealth_VolumeHealthEntry) bool {
			return e.GetStatus() == entry.GetStatus() && e.GetReason() == entry.GetReason()
		}) {
			out.HealthStatuses = append(out.HealthStatuses, entry)
		}
	}
	return out
}

func severity(s volume.Severity) spec.VolumeHealthErrorType {
	switch s {
	case volume.Inaccessible:
		return spec.VolumeHealthErrorType_INACCESSIBLE
	case volume.DataLoss:
		return spec.VolumeHealthErrorType_DATA_LOSS
	}
	return spec.VolumeHealthErrorType_DEGRADED
}
