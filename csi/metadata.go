package csi

import (
	"cmp"
	"context"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/proto"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/volume"
)

// Ranges per message, which stays far below 4 MiB.
const (
	defaultBatch = 256
	maxBatch     = 64 << 10
)

type blocksRequest interface {
	proto.Message
	GetStartingOffset() int64
	GetMaxResults() int32
}

// checkBlocks checks what both requests have. OutOfRange: the offset.
func (s *Controller) checkBlocks(r blocksRequest) error {
	if err := s.announced.needsService(r, spec.PluginCapability_Service_SNAPSHOT_METADATA_SERVICE); err != nil {
		return err
	}
	switch {
	case r.GetMaxResults() < 0:
		return invalidf("max_results is %d; it cannot be negative", r.GetMaxResults())
	case r.GetStartingOffset() < 0:
		return errs.Errorf(errs.OutOfRange, "starting_offset is %d; it cannot be negative", r.GetStartingOffset())
	}
	return nil
}

// GetMetadataAllocated streams ranges that can hold data.
func (s *Controller) GetMetadataAllocated(r *spec.GetMetadataAllocatedRequest, stream spec.SnapshotMetadata_GetMetadataAllocatedServer) error {
	if err := cmp.Or(s.checkBlocks(r), checkID("snapshot_id", r.GetSnapshotId())); err != nil {
		return err
	}
	blocks, err := s.backend.Deltas.Allocated(stream.Context(), volume.SnapshotID(r.GetSnapshotId()), r.GetStartingOffset())
	if err != nil {
		return err
	}
	return send(stream.Context(), r, blocks, func(batch []*spec.BlockMetadata) error {
		return stream.Send(&spec.GetMetadataAllocatedResponse{
			BlockMetadataType: spec.BlockMetadataType_VARIABLE_LENGTH, VolumeCapacityBytes: blocks.Size, BlockMetadata: batch,
		})
	})
}

// GetMetadataDelta streams the differences of two snapshots of one volume.
func (s *Controller) GetMetadataDelta(r *spec.GetMetadataDeltaRequest, stream spec.SnapshotMetadata_GetMetadataDeltaServer) error {
	if err := cmp.Or(
		s.checkBlocks(r),
		checkID("base_snapshot_id", r.GetBaseSnapshotId()),
		checkID("target_snapshot_id", r.GetTargetSnapshotId()),
	); err != nil {
		return err
	}
	base, target := volume.SnapshotID(r.GetBaseSnapshotId()), volume.SnapshotID(r.GetTargetSnapshotId())
	if err := s.checkPair(stream.Context(), base, target); err != nil {
		return err
	}
	blocks, err := s.backend.Deltas.Delta(stream.Context(), base, target, r.GetStartingOffset())
	if err != nil {
		return err
	}
	return send(stream.Context(), r, blocks, func(batch []*spec.BlockMetadata) error {
		return stream.Send(&spec.GetMetadataDeltaResponse{
			BlockMetadataType: spec.BlockMetadataType_VARIABLE_LENGTH, VolumeCapacityBytes: blocks.Size, BlockMetadata: batch,
		})
	})
}

// checkPair refuses snapshots of different volumes, or in the wrong order.
func (s *Controller) checkPair(ctx context.Context, baseID, targetID volume.SnapshotID) error {
	base, err := s.backend.Snapshots.GetSnapshot(ctx, baseID)
	if err != nil {
		return err
	}
	target, err := s.backend.Snapshots.GetSnapshot(ctx, targetID)
	if err != nil {
		return err
	}
	switch {
	case base.Source != target.Source:
		return invalidf("base_snapshot_id %s and target_snapshot_id %s are snapshots of different volumes, %s and %s", base.ID, target.ID, base.Source, target.Source)
	case target.Created.Before(base.Created):
		return invalidf("target_snapshot_id %s is older than base_snapshot_id %s; swap them", target.ID, base.ID)
	}
	return nil
}

// send sends at least one batch, so that the caller learns the capacity. Every
// failure ends the stream with an error: a list that only stopped would look
// complete.
func send(ctx context.Context, r blocksRequest, blocks volume.BlockMap, message func([]*spec.BlockMetadata) error) error {
	from := r.GetStartingOffset()
	if from > blocks.Size {
		return errs.Errorf(errs.OutOfRange, "starting_offset %d is beyond the end of the volume, which has %d bytes", from, blocks.Size)
	}
	size := min(cmp.Or(int(r.GetMaxResults()), defaultBatch), maxBatch)
	var batch []*spec.BlockMetadata
	sent, end := false, int64(0)
	for block, err := range blocks.Ranges {
		switch err := cmp.Or(err, ctx.Err()); {
		case err != nil:
			return err
		case block.Length <= 0 || block.Offset < end || block.End() <= from:
			return errs.Errorf(errs.Internal, "the engine's list of blocks is not in order: %s after offset %d, starting from %d", block, end, from)
		}
		end = block.End()
		if len(batch) == size {
			if err := message(batch); err != nil {
				return err
			}
			batch, sent = nil, true
		}
		batch = append(batch, &spec.BlockMetadata{ByteOffset: block.Offset, SizeBytes: block.Length})
	}
	if len(batch) == 0 && sent {
		return nil
	}
	return message(batch)
}
