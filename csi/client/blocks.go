package client

import (
	"context"
	"errors"
	"io"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/volume"
)

// BlockPage is a part of an ascending list of ranges.
type BlockPage struct {
	Size   int64 // of the volume, in bytes
	Ranges []volume.Range
}

// Allocated lists the ranges of a snapshot (name or id) that can hold data,
// from an offset in bytes. A broken stream is continued. After an error the
// list is incomplete.
func (d *Driver) Allocated(ctx context.Context, snapshot string, from int64, visit func(BlockPage) error) error {
	s, err := d.blockSource(ctx, snapshot)
	if err != nil {
		return err
	}
	request := &csi.GetMetadataAllocatedRequest{SnapshotId: s.ID, Secrets: d.config.Secrets}
	return readBlocks(ctx, d, "GetMetadataAllocated", from, visit, func(ctx context.Context, from int64) (grpc.ServerStreamingClient[csi.GetMetadataAllocatedResponse], error) {
		request.StartingOffset = from
		return d.metadata.GetMetadataAllocated(ctx, request)
	})
}

// Delta is like Allocated, for the ranges that differ between two snapshots of
// one volume. Precondition: not available for this pair; everything must be
// copied.
func (d *Driver) Delta(ctx context.Context, base, target string, from int64, visit func(BlockPage) error) error {
	b, err := d.blockSource(ctx, base)
	if err != nil {
		return err
	}
	t, err := d.blockSource(ctx, target)
	if err != nil {
		return err
	}
	request := &csi.GetMetadataDeltaRequest{BaseSnapshotId: b.ID, TargetSnapshotId: t.ID, Secrets: d.config.Secrets}
	return readBlocks(ctx, d, "GetMetadataDelta", from, visit, func(ctx context.Context, from int64) (grpc.ServerStreamingClient[csi.GetMetadataDeltaResponse], error) {
		request.StartingOffset = from
		return d.metadata.GetMetadataDelta(ctx, request)
	})
}

func (d *Driver) blockSource(ctx context.Context, snapshot string) (*snapshotRecord, error) {
	if err := d.need("list the blocks of snapshots", csi.PluginCapability_Service_SNAPSHOT_METADATA_SERVICE); err != nil {
		return nil, err
	}
	return usable(d.findSnapshot(ctx, snapshot))
}

type blockAnswer[M any] interface {
	*M
	GetVolumeCapacityBytes() int64
	GetBlockMetadata() []*csi.BlockMetadata
}

type openStream[M any] func(ctx context.Context, from int64) (grpc.ServerStreamingClient[M], error)

// readBlocks reopens a stream where it broke while the driver can come back.
func readBlocks[M any, A blockAnswer[M]](ctx context.Context, d *Driver, method string, from int64, visit func(BlockPage) error, open openStream[M]) error {
	for pause := newBackoff(); ; {
		reached, err := readStream[M, A](ctx, d, method, from, visit, open)
		if err == nil {
			return nil
		}
		if _, answered := errors.AsType[*Error](err); !answered || isFinal(err) {
			return err
		}
		if reached > from {
			from = reached
			pause.Reset()
		}
		if pause.Wait(ctx) != nil {
			return err
		}
	}
}

// readStream returns the offset that it reached.
func readStream[M any, A blockAnswer[M]](ctx context.Context, d *Driver, method string, from int64, visit func(BlockPage) error, open openStream[M]) (int64, error) {
	ctx, cancel := context.WithCancel(ctx) // ends the stream after an error of visit
	defer cancel()
	stream, err := open(ctx, from)
	if err != nil {
		return from, d.failure(method, err)
	}
	for {
		message, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return from, nil
		}
		if err != nil {
			return from, d.failure(method, err)
		}
		answer := A(message)
		page := BlockPage{Size: answer.GetVolumeCapacityBytes()}
		for _, b := range answer.GetBlockMetadata() {
			r := volume.Range{Offset: b.GetByteOffset(), Length: b.GetSizeBytes()}
			if r.Length <= 0 || r.Offset < 0 || r.End() <= from || r.Offset < from && len(page.Ranges) > 0 {
				return from, errs.Errorf(errs.Internal, "driver %s sent a list of blocks that is not in order: %s after offset %d", d.info.Name, r, from)
			}
			page.Ranges = append(page.Ranges, r)
			from = r.End()
		}
		if err := visit(page); err != nil {
			return from, err
		}
	}
}
