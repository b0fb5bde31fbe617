package csi

import (
	"cmp"
	"context"
	"maps"
	"slices"

	spec "github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/node"
	"github.com/cleatproject/cleat/volume"
)

// NodeGetCapabilities returns the announced capabilities, which do not depend
// on the engine.
func (s *Node) NodeGetCapabilities(context.Context, *spec.NodeGetCapabilitiesRequest) (*spec.NodeGetCapabilitiesResponse, error) {
	return &spec.NodeGetCapabilitiesResponse{Capabilities: wrap([]spec.NodeServiceCapability_RPC_Type{
		spec.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME,
		spec.NodeServiceCapability_RPC_GET_VOLUME_STATS,
		spec.NodeServiceCapability_RPC_EXPAND_VOLUME,
		spec.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER,
		spec.NodeServiceCapability_RPC_VOLUME_MOUNT_GROUP,
		spec.NodeServiceCapability_RPC_GET_VOLUME_HEALTH,
		spec.NodeServiceCapability_RPC_GET_STORAGE_HEALTH,
	}, func(t spec.NodeServiceCapability_RPC_Type) *spec.NodeServiceCapability {
		return &spec.NodeServiceCapability{Type: &spec.NodeServiceCapability_Rpc{Rpc: &spec.NodeServiceCapability_RPC{Type: t}}}
	})}, nil
}

// NodeGetInfo returns id, topology and limit.
func (s *Node) NodeGetInfo(context.Context, *spec.NodeGetInfoRequest) (*spec.NodeGetInfoResponse, error) {
	d := s.config.Deployment
	r := &spec.NodeGetInfoResponse{NodeId: s.config.NodeID, MaxVolumesPerNode: d.MaxVolumes}
	if d.MultiNode && !d.Static {
		named, err := s.config.Named()
		if err == nil {
			r.NodeId, err = FormatNodeID(named)
		}
		if err != nil {
			return nil, err
		}
	}
	if len(d.Topology) > 0 {
		r.AccessibleTopology = &spec.Topology{Segments: maps.Clone(d.Topology)}
	}
	return r, nil
}

// checkUse checks a request about a volume in use. Its paths are only compared
// with those on record, so that any form is accepted: a path where the volume
// is not is NotFound.
func checkUse(id, path, staging string) error {
	return cmp.Or(
		checkID("volume_id", id),
		requireString("volume_path", path, maxPath),
		checkString("staging_target_path", staging, maxPath),
	)
}

// NodeExpandVolume makes a grown volume use its size.
func (s *Node) NodeExpandVolume(ctx context.Context, r *spec.NodeExpandVolumeRequest) (*spec.NodeExpandVolumeResponse, error) {
	req, err := s.expandRequest(r)
	if err != nil {
		return nil, err
	}
	response := &spec.NodeExpandVolumeResponse{}
	err = s.inTime(ctx, req.Volume, func(ctx context.Context) (err error) {
		response.CapacityBytes, err = do(ctx, s.config.Operations, r, []string{nodeVolumeKey(req.Volume)}, func(ctx context.Context) (int64, error) {
			size, err := s.config.Manager.Expand(ctx, req)
			return size, refused(err, errs.OutOfRange)
		})
		return err
	})
	if err != nil {
		return nil, err
	}
	return response, nil
}

func (s *Node) expandRequest(r *spec.NodeExpandVolumeRequest) (req node.ExpandRequest, err error) {
	if err := checkUse(r.GetVolumeId(), r.GetVolumePath(), r.GetStagingTargetPath()); err != nil {
		return req, err
	}
	req.Volume, req.Path = volume.ID(r.GetVolumeId()), r.GetVolumePath()
	if req.Size, err = parseRange("capacity_range", r.GetCapacityRange()); err != nil {
		return req, err
	}
	req.Capability, err = s.config.Deployment.parseOptionalCapability("volume_capability", r.GetVolumeCapability())
	return req, err
}

// NodeGetVolumeStats returns the usage of a volume.
func (s *Node) NodeGetVolumeStats(ctx context.Context, r *spec.NodeGetVolumeStatsRequest) (*spec.NodeGetVolumeStatsResponse, error) {
	if err := checkUse(r.GetVolumeId(), r.GetVolumePath(), r.GetStagingTargetPath()); err != nil {
		return nil, err
	}
	stats, err := s.config.Manager.Stats(ctx, node.StatsRequest{Volume: volume.ID(r.GetVolumeId()), Path: r.GetVolumePath()})
	if err != nil {
		return nil, err
	}
	response := &spec.NodeGetVolumeStatsResponse{Usage: []*spec.VolumeUsage{usage(spec.VolumeUsage_BYTES, stats.Bytes)}}
	if stats.Inodes.Total > 0 {
		response.Usage = append(response.Usage, usage(spec.VolumeUsage_INODES, stats.Inodes))
	}
	return response, nil
}

func usage(unit spec.VolumeUsage_Unit, a node.Amount) *spec.VolumeUsage {
	return &spec.VolumeUsage{Unit: unit, Total: a.Total, Used: a.Used, Available: a.Available}
}

// NodeGetVolumeHealth returns the conditions of a volume that this node knows,
// staged here or not.
func (s *Node) NodeGetVolumeHealth(ctx context.Context, r *spec.NodeGetVolumeHealthRequest) (*spec.NodeGetVolumeHealthResponse, error) {
	if err := cmp.Or(
		checkID("volume_id", r.GetVolumeId()),
		checkString("volume_publish_path", r.GetVolumePublishPath(), maxPath),
		checkString("staging_target_path", r.GetStagingTargetPath(), maxPath),
	); err != nil {
		return nil, err
	}
	id := volume.ID(r.GetVolumeId())
	conditions, err := s.config.Manager.Health(ctx, id)
	if err != nil {
		return nil, err
	}
	return &spec.NodeGetVolumeHealthResponse{VolumeHealth: volumeHealth(id, conditions)}, nil
}

// NodeGetStorageHealth returns the conditions of the storage that this node
// knows, without those that restrict nothing.
func (s *Node) NodeGetStorageHealth(ctx context.Context, _ *spec.NodeGetStorageHealthRequest) (*spec.NodeGetStorageHealthResponse, error) {
	conditions, err := s.config.Manager.StorageHealth(ctx)
	if err != nil {
		return nil, err
	}
	conditions = slices.DeleteFunc(conditions, func(c volume.Condition) bool { return c.Severity == volume.Notice })
	return &spec.NodeGetStorageHealthResponse{BackendHealth: wrap(conditions, func(c volume.Condition) *spec.NodeGetStorageHealthResponse_StorageBackendHealth {
		status := spec.StorageHealthErrorType_STORAGE_UNREACHABLE // the specification has two severities
		if c.Severity == volume.Degraded {
			status = spec.StorageHealthErrorType_STORAGE_DEGRADED
		}
		return &spec.NodeGetStorageHealthResponse_StorageBackendHealth{Status: status, Reason: clip(c.Reason), Message: clip(c.Message)}
	})}, nil
}
