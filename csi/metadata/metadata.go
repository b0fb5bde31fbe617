// Package metadata is CSI's SnapshotMetadata service over any volume.Backend:
// which blocks of a snapshot hold data, and which differ between two.
package metadata

import (
	"context"

	spec "github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/cleatproject/cleat/csi"
	"github.com/cleatproject/cleat/csi/request"
	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/volume"
)

// defaultBatch is the number of ranges in a message where the caller leaves it
// open, maxBatch the most it can ask for: a message stays far below 4 MiB.
const (
	defaultBatch = 256
	maxBatch     = 64 << 10
)

// Config is what the service works with.
type Config struct {
	Backend    volume.Backend
	Deployment csi.Deployment
}

// Server is the SnapshotMetadata service.
type Server struct {
	spec.UnimplementedSnapshotMetadataServer
	backend   volume.Backend
	announced csi.Announcement
}

// New makes the service. One over an engine that cannot tell blocks apart
// answers that nothing is offered.
func New(c Config) (*Server, error) {
	if err := c.Deployment.Check(); err != nil {
		return nil, err
	}
	return &Server{backend: c.Backend, announced: csi.Announce(csi.AbilitiesOf(c.Backend), c.Deployment)}, nil
}

func (s *Server) offers(call string) error {
	return s.announced.RequireService(call, spec.PluginCapability_Service_SNAPSHOT_METADATA_SERVICE)
}

// GetMetadataAllocated streams the ranges of a snapshot that may hold data.
func (s *Server) GetMetadataAllocated(r *spec.GetMetadataAllocatedRequest, stream spec.SnapshotMetadata_GetMetadataAllocatedServer) error {
	if err := s.offers("GetMetadataAllocated"); err != nil {
		return err
	}
	req, err := request.GetMetadataAllocated(r)
	if err != nil {
		return err
	}
	blocks, err := s.backend.Deltas.Allocated(stream.Context(), req.Snapshot, req.From)
	if err != nil {
		return err
	}
	return send(stream.Context(), req, blocks, func(batch []*spec.BlockMetadata) error {
		return stream.Send(&spec.GetMetadataAllocatedResponse{
			BlockMetadataType: spec.BlockMetadataType_VARIABLE_LENGTH, VolumeCapacityBytes: blocks.Size, BlockMetadata: batch,
		})
	})
}

// GetMetadataDelta streams the ranges that differ between two snapshots of one
// volume.
func (s *Server) GetMetadataDelta(r *spec.GetMetadataDeltaRequest, stream spec.SnapshotMetadata_GetMetadataDeltaServer) error {
	if err := s.offers("GetMetadataDelta"); err != nil {
		return err
	}
	req, err := request.GetMetadataDelta(r)
	if err != nil {
		return err
	}
	if err := s.checkPair(stream.Context(), req); err != nil {
		return err
	}
	blocks, err := s.backend.Deltas.Delta(stream.Context(), req.Base, req.Snapshot, req.From)
	if err != nil {
		return err
	}
	return send(stream.Context(), req, blocks, func(batch []*spec.BlockMetadata) error {
		return stream.Send(&spec.GetMetadataDeltaResponse{
			BlockMetadataType: spec.BlockMetadataType_VARIABLE_LENGTH, VolumeCapacityBytes: blocks.Size, BlockMetadata: batch,
		})
	})
}

// checkPair refuses two snapshots that have no delta: of different volumes, or
// in the wrong order.
func (s *Server) checkPair(ctx context.Context, req request.Metadata) error {
	base, err := s.backend.Snapshots.GetSnapshot(ctx, req.Base)
	if err != nil {
		return err
	}
	target, err := s.backend.Snapshots.GetSnapshot(ctx, req.Snapshot)
	if err != nil {
		return err
	}
	switch {
	case base.Source != target.Source:
		return errs.Errorf(errs.Invalid, "base_snapshot_id %s and target_snapshot_id %s are snapshots of different volumes, %s and %s", base.ID, target.ID, base.Source, target.Source)
	case target.Created.Before(base.Created):
		return errs.Errorf(errs.Invalid, "target_snapshot_id %s is older than base_snapshot_id %s; swap them", target.ID, base.ID)
	}
	return nil
}

// send sends a block map in batches, at least one, so that the capacity is
// told also where no range is. Whatever is wrong ends it with an error: a list
// that only stopped would pass for a complete one.
func send(ctx context.Context, req request.Metadata, blocks volume.BlockMap, message func([]*spec.BlockMetadata) error) error {
	if req.From > blocks.Size {
		return errs.Errorf(errs.OutOfRange, "starting_offset %d is beyond the end of the volume, which has %d bytes", req.From, blocks.Size)
	}
	size := defaultBatch
	if req.Batch > 0 {
		size = min(req.Batch, maxBatch)
	}
	var batch []*spec.BlockMetadata
	sent, end := false, int64(0)
	for r, err := range blocks.Ranges {
		if err := firstError(err, ctx.Err(), checkRange(r, end, req.From)); err != nil {
			return err
		}
		end = r.End()
		if len(batch) == size {
			if err := message(batch); err != nil {
				return err
			}
			batch, sent = nil, true
		}
		batch = append(batch, &spec.BlockMetadata{ByteOffset: r.Offset, SizeBytes: r.Length})
	}
	if len(batch) == 0 && sent {
		return nil
	}
	return message(batch)
}

// checkRange holds the engine to the order that the contract promises.
func checkRange(r volume.Range, end, from int64) error {
	if r.Length > 0 && r.Offset >= end && r.End() > from {
		return nil
	}
	return errs.Errorf(errs.Internal, "the engine's list of blocks is not in order: %s after offset %d, starting from %d", r, end, from)
}

func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
