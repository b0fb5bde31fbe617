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

// BlockPage is a part of a list of ranges, in ascending order over all pages.
type BlockPage struct {
	Size   int64 // of the volume, in bytes
	Ranges []volume.Range
}

// Allocated lists the ranges of a snapshot (name or id) that may hold data, from
// an offset in bytes on. A stream that breaks is taken up where it broke. An
// error means that what visit saw is not the whole list.
func (d *Driver) Allocated(ctx context.Context, snapshot string, from int64, visit func(BlockPage) error) error {
	if err := d.needMetadata(); err != nil {
		return err
	}
	s, err := d.usableSnapshot(ctx, snapshot)
	if err != nil {
		return err
	}
	return d.stream(ctx, "GetMetadataAllocated", from, visit, func(ctx context.Context, from int64) (receiver, error) {
		stream, err := d.metadata.GetMetadataAllocated(ctx, &csi.GetMetadataAllocatedRequest{SnapshotId: s.ID, StartingOffset: from, Secrets: d.config.Secrets})
		return receive(stream), err
	})
}

// Delta lists the ranges that differ from base to target, two snapshots (names
// or ids) of one volume, as Allocated does. Precondition: the driver cannot
// tell for this pair; everything must be copied.
func (d *Driver) Delta(ctx context.Context, base, target string, from int64, visit func(BlockPage) error) error {
	if err := d.needMetadata(); err != nil {
		return err
	}
	b, err := d.usableSnapshot(ctx, base)
	if err != nil {
		return err
	}
	t, err := d.usableSnapshot(ctx, target)
	if err != nil {
		return err
	}
	return d.stream(ctx, "GetMetadataDelta", from, visit, func(ctx context.Context, from int64) (receiver, error) {
		stream, err := d.metadata.GetMetadataDelta(ctx, &csi.GetMetadataDeltaRequest{
			BaseSnapshotId: b.ID, TargetSnapshotId: t.ID, StartingOffset: from, Secrets: d.config.Secrets,
		})
		return receive(stream), err
	})
}

func (d *Driver) needMetadata() error {
	if !d.offers.plugin[csi.PluginCapability_Service_SNAPSHOT_METADATA_SERVICE] {
		return d.lacks("list the blocks of snapshots", csi.PluginCapability_Service_SNAPSHOT_METADATA_SERVICE)
	}
	return nil
}

// metadataPage is what both streams send.
type metadataPage interface {
	GetVolumeCapacityBytes() int64
	GetBlockMetadata() []*csi.BlockMetadata
}

// receiver returns the next page, io.EOF at the end.
type receiver func() (metadataPage, error)

func receive[P any, Page interface {
	*P
	metadataPage
}](stream grpc.ServerStreamingClient[P]) receiver {
	return func() (metadataPage, error) {
		page, err := stream.Recv()
		return Page(page), err
	}
}

// stream opens and reads a stream to its end, again and again from where it
// broke for as long as the driver may come back.
func (d *Driver) stream(ctx context.Context, method string, from int64, visit func(BlockPage) error, open func(context.Context, int64) (receiver, error)) error {
	for pause := newPause(); ; {
		reached, err := d.readStream(ctx, method, from, visit, open)
		if err == nil {
			return nil
		}
		if e, ok := errors.AsType[*Error](err); !ok || isFinal(e) {
			return err
		}
		if reached > from {
			from, pause = reached, newPause()
		}
		if !pause.wait(ctx) {
			return err
		}
	}
}

// readStream reads one stream and tells how far it came.
func (d *Driver) readStream(ctx context.Context, method string, from int64, visit func(BlockPage) error, open func(context.Context, int64) (receiver, error)) (int64, error) {
	ctx, cancel := context.WithCancel(ctx) // ends the stream when visit refuses to go on
	defer cancel()
	next, err := open(ctx, from)
	if err != nil {
		return from, d.failure(method, err)
	}
	for {
		answer, err := next()
		if errors.Is(err, io.EOF) {
			return from, nil
		}
		if err != nil {
			return from, d.failure(method, err)
		}
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
