package csi_test

import (
	"context"
	"errors"
	"io"
	"iter"
	"slices"
	"testing"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/volume"
)

type message interface {
	GetBlockMetadataType() spec.BlockMetadataType
	GetVolumeCapacityBytes() int64
	GetBlockMetadata() []*spec.BlockMetadata
}

func read[M message](t *testing.T, stream interface{ Recv() (M, error) }, err error) (ranges []volume.Range, messages []int, failed error) {
	t.Helper()
	testkit.Must(t, err)
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return ranges, messages, nil
		}
		if err != nil {
			return ranges, messages, err
		}
		if m.GetBlockMetadataType() != spec.BlockMetadataType_VARIABLE_LENGTH || m.GetVolumeCapacityBytes() != 8<<20 {
			t.Errorf("style %v, capacity %d", m.GetBlockMetadataType(), m.GetVolumeCapacityBytes())
		}
		messages = append(messages, len(m.GetBlockMetadata()))
		for _, b := range m.GetBlockMetadata() {
			ranges = append(ranges, volume.Range{Offset: b.GetByteOffset(), Length: b.GetSizeBytes()})
		}
	}
}

// one byte per block of 4 KiB
func write(t *testing.T, rig *plugin, v *spec.Volume, blocks ...int64) {
	t.Helper()
	d := testkit.Value(rig.Reference.Open(volume.ID(v.GetVolumeId())))(t)
	for _, b := range blocks {
		testkit.Value(d.WriteAt([]byte{byte(b) + 1}, b*4096))(t)
	}
}

func blocks(numbers ...int64) (ranges []volume.Range) {
	for _, n := range numbers {
		ranges = append(ranges, volume.Range{Offset: n * 4096, Length: 4096})
	}
	return ranges
}

func TestAllocatedAndDelta(t *testing.T) {
	rig := newPlugin(t, options{})
	v := rig.MustCreate(t, "v", blockCap())
	empty := rig.MustSnapshot(t, "empty", v.GetVolumeId()).GetSnapshotId()
	write(t, rig, v, 1, 3, 5, 7, 9)
	base := rig.MustSnapshot(t, "base", v.GetVolumeId()).GetSnapshotId()
	write(t, rig, v, 20, 21)
	target := rig.MustSnapshot(t, "target", v.GetVolumeId()).GetSnapshotId()
	allocated := func(r *spec.GetMetadataAllocatedRequest) ([]volume.Range, []int) {
		t.Helper()
		stream, err := rig.Metadata.GetMetadataAllocated(t.Context(), r)
		got, messages, err := read(t, stream, err)
		if err != nil {
			t.Error(err)
		}
		return got, messages
	}
	if got, messages := allocated(&spec.GetMetadataAllocatedRequest{SnapshotId: empty}); len(got) != 0 || !slices.Equal(messages, []int{0}) {
		t.Errorf("an empty snapshot has %v in messages of %v", got, messages)
	}
	want := blocks(1, 3, 5, 7, 9)
	for most, sizes := range map[int32][]int{0: {5}, 1: {1, 1, 1, 1, 1}, 2: {2, 2, 1}, 5: {5}, 100: {5}} {
		got, messages := allocated(&spec.GetMetadataAllocatedRequest{SnapshotId: base, MaxResults: most, Secrets: map[string]string{"a": "b"}})
		if !slices.Equal(got, want) || !slices.Equal(messages, sizes) {
			t.Errorf("at most %d: got %v in messages of %v, want %v in %v", most, got, messages, want, sizes)
		}
	}
	// An offset within a range returns that range.
	if got, _ := allocated(&spec.GetMetadataAllocatedRequest{SnapshotId: base, StartingOffset: want[1].End()}); !slices.Equal(got, want[2:]) {
		t.Errorf("continued: %v", got)
	}
	if got, _ := allocated(&spec.GetMetadataAllocatedRequest{SnapshotId: base, StartingOffset: want[2].Offset + 1}); !slices.Equal(got, want[2:]) {
		t.Errorf("from within: %v", got)
	}
	stream, err := rig.Metadata.GetMetadataDelta(t.Context(), &spec.GetMetadataDeltaRequest{BaseSnapshotId: base, TargetSnapshotId: target})
	got, _, err := read(t, stream, err)
	if delta := []volume.Range{{Offset: 20 * 4096, Length: 2 * 4096}}; err != nil || !slices.Equal(got, delta) {
		t.Errorf("delta %v, %v, want %v", got, err, delta)
	}
}

type odd struct {
	volume.Deltas
	ranges iter.Seq2[volume.Range, error]
	err    error
}

func (o odd) Allocated(context.Context, volume.SnapshotID, int64) (volume.BlockMap, error) {
	return volume.BlockMap{Size: 8 << 20, Ranges: o.ranges}, o.err
}

func TestFailuresEndTheStreamAsErrors(t *testing.T) {
	list := func(err error, ranges ...volume.Range) iter.Seq2[volume.Range, error] {
		return func(yield func(volume.Range, error) bool) {
			for _, r := range ranges {
				if !yield(r, nil) {
					return
				}
			}
			if err != nil {
				yield(volume.Range{}, err)
			}
		}
	}
	for name, c := range map[string]struct {
		engine odd
		want   codes.Code
	}{
		"error in the middle": {odd{ranges: list(errs.Errorf(errs.Unavailable, "the disk is gone"), blocks(1, 2)...)}, codes.Unavailable},
		"no tracking":         {odd{err: errs.Errorf(errs.Precondition, "copy everything")}, codes.FailedPrecondition},
		"backwards":           {odd{ranges: list(nil, blocks(2, 1)...)}, codes.Internal},
		"overlap":             {odd{ranges: list(nil, volume.Range{Offset: 0, Length: 5000}, volume.Range{Offset: 4096, Length: 4096})}, codes.Internal},
		"empty range":         {odd{ranges: list(nil, volume.Range{Offset: 4096})}, codes.Internal},
	} {
		t.Run(name, func(t *testing.T) {
			rig := newPlugin(t, options{Backend: func(b *volume.Backend) {
				c.engine.Deltas = b.Deltas
				b.Deltas = c.engine
			}})
			snap := rig.MustSnapshot(t, "s", rig.MustCreate(t, "v", blockCap()).GetVolumeId())
			stream, err := rig.Metadata.GetMetadataAllocated(t.Context(), &spec.GetMetadataAllocatedRequest{SnapshotId: snap.GetSnapshotId(), MaxResults: 1})
			if _, _, err = read(t, stream, err); status.Code(err) != c.want {
				t.Errorf("got %v, want code %v", err, c.want)
			}
		})
	}
}

// Also for a long list.
func TestCancelledStreamEnds(t *testing.T) {
	stopped := make(chan struct{})
	endless := func(yield func(volume.Range, error) bool) {
		defer close(stopped)
		for n := int64(0); yield(volume.Range{Offset: n * 2, Length: 1}, nil); n++ {
		}
	}
	rig := newPlugin(t, options{Backend: func(b *volume.Backend) { b.Deltas = odd{Deltas: b.Deltas, ranges: endless} }})
	snap := rig.MustSnapshot(t, "s", rig.MustCreate(t, "v", blockCap()).GetVolumeId())
	ctx, cancel := context.WithCancel(t.Context())
	stream := testkit.Value(rig.Metadata.GetMetadataAllocated(ctx, &spec.GetMetadataAllocatedRequest{SnapshotId: snap.GetSnapshotId()}))(t)
	if m, err := stream.Recv(); err != nil || len(m.GetBlockMetadata()) != 256 {
		t.Errorf("first message of %d ranges, %v", len(m.GetBlockMetadata()), err)
	}
	cancel()
	<-stopped
}
