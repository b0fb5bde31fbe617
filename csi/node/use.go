package node

import (
	"context"

	spec "github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/cleatproject/cleat/attach"
	"github.com/cleatproject/cleat/csi"
	"github.com/cleatproject/cleat/csi/request"
	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/op"
	"github.com/cleatproject/cleat/volume"
)

// NodeExpandVolume makes a volume in use as large as wanted.
func (s *Server) NodeExpandVolume(ctx context.Context, r *spec.NodeExpandVolumeRequest) (*spec.NodeExpandVolumeResponse, error) {
	q, err := request.NodeExpandVolume(r)
	if err != nil {
		return nil, err
	}
	e := attach.ExpandRequest{Volume: q.Volume, Path: q.Path, Size: q.Size}
	if q.Capability != nil {
		c := capability(*q.Capability)
		e.Capability = &c
	}
	size, err := op.Do(ctx, s.config.Operations, op.Request{
		Keys: []string{volumeKey(q.Volume)}, Fingerprint: request.Fingerprint(r), What: "NodeExpandVolume",
	}, func(ctx context.Context) (int64, error) {
		size, err := s.config.Machine.Expand(ctx, e)
		return size, csi.Refused(err, errs.OutOfRange)
	})
	if err != nil {
		return nil, err
	}
	return &spec.NodeExpandVolumeResponse{CapacityBytes: size}, nil
}

// NodeGetVolumeStats tells how full a volume is.
func (s *Server) NodeGetVolumeStats(ctx context.Context, r *spec.NodeGetVolumeStatsRequest) (*spec.NodeGetVolumeStatsResponse, error) {
	q, err := request.NodeGetVolumeStats(r)
	if err != nil {
		return nil, err
	}
	stats, err := s.config.Machine.Stats(ctx, attach.StatsRequest{Volume: q.Volume, Path: q.Path})
	if err != nil {
		return nil, err
	}
	response := &spec.NodeGetVolumeStatsResponse{Usage: []*spec.VolumeUsage{usage(spec.VolumeUsage_BYTES, stats.Bytes)}}
	if stats.Inodes.Total > 0 {
		response.Usage = append(response.Usage, usage(spec.VolumeUsage_INODES, stats.Inodes))
	}
	return response, nil
}

func usage(unit spec.VolumeUsage_Unit, a attach.Amount) *spec.VolumeUsage {
	return &spec.VolumeUsage{Unit: unit, Total: a.Total, Used: a.Used, Available: a.Available}
}

// NodeGetVolumeHealth tells what this node knows to be wrong with a volume.
func (s *Server) NodeGetVolumeHealth(ctx context.Context, r *spec.NodeGetVolumeHealthRequest) (*spec.NodeGetVolumeHealthResponse, error) {
	q, err := request.NodeGetVolumeHealth(r)
	if err != nil {
		return nil, err
	}
	conditions, err := s.config.Machine.Health(ctx, q.Volume)
	if err != nil {
		return nil, err
	}
	return &spec.NodeGetVolumeHealthResponse{VolumeHealth: csi.VolumeHealth(q.Volume, conditions)}, nil
}

// NodeGetStorageHealth tells what this node knows to be wrong with the storage.
func (s *Server) NodeGetStorageHealth(ctx context.Context, _ *spec.NodeGetStorageHealthRequest) (*spec.NodeGetStorageHealthResponse, error) {
	conditions, err := s.config.Machine.StorageHealth(ctx)
	if err != nil {
		return nil, err
	}
	response := &spec.NodeGetStorageHealthResponse{}
	for _, c := range conditions {
		response.BackendHealth = append(response.BackendHealth, &spec.NodeGetStorageHealthResponse_StorageBackendHealth{
			Status: storageStatus(c.Severity), Reason: csi.Clip(c.Reason), Message: csi.Clip(c.Message),
		})
	}
	return response, nil
}

// storageStatus: of a storage the contract knows two grades.
func storageStatus(s volume.Severity) spec.StorageHealthErrorType {
	if s == volume.Degraded {
		return spec.StorageHealthErrorType_STORAGE_DEGRADED
	}
	return spec.StorageHealthErrorType_STORAGE_UNREACHABLE
}
