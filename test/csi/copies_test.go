package csi_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"testing"

	csi "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/cleatproject/cleat/test/testkit"
)

// TestCopies compares copies with the written data, byte by byte, on a pool
// with reflinks.
func TestCopies(t *testing.T) {
	t.Parallel()
	r := newRig(t, reflinkPool...)
	r.sub(t, "snapshot and restore", restore)
	r.sub(t, "changed blocks", changedBlocks)
	r.sub(t, "group", groupOfMounts)
}

func sourced(source *csi.VolumeContentSource, size int64) func(*csi.CreateVolumeRequest) {
	return func(q *csi.CreateVolumeRequest) {
		q.VolumeContentSource, q.CapacityRange = source, &csi.CapacityRange{RequiredBytes: size}
	}
}

// restore: a snapshot of a volume in use has the data written before it and
// none written later, even when its source is deleted, and in a larger volume.
func restore(r *rig) {
	const size = 256 << 10
	d := r.create("source", mounted("ext4")).attach()
	d.writeFile("kept", 1, size)
	snap := d.snapshot("snap")
	if !snap.GetReadyToUse() || snap.GetSizeBytes() != d.size {
		r.Errorf("snapshot %v", snap)
	}
	d.writeFile("kept", 2, size)
	d.writeFile("later", 3, size)
	clone := r.create("clone", d.capability, sourced(fromVolume(d.id), d.size)).attach()
	clone.holdsFile("kept", 2, size)
	clone.holdsFile("later", 3, size)
	clone.writeFile("kept", 4, size)
	d.holdsFile("kept", 2, size)
	d.drop()
	for i, more := range []int64{0, 16 * mib} {
		back := r.create([]string{"same", "larger"}[i], d.capability, sourced(fromSnapshot(snap.GetSnapshotId()), d.size+more)).attach()
		back.holdsFile("kept", 1, size)
		if _, err := os.Stat(back.target + "/later"); err == nil {
			r.Error("the snapshot has data written after it")
		}
		if total := back.stats().GetUsage()[0].GetTotal(); total < (d.size+more)/2 {
			r.Errorf("restored to %d bytes, the file system has %d", back.size, total)
		}
		back.drop()
	}
	q := ask("smaller", d.capability)
	q.VolumeContentSource, q.CapacityRange = fromSnapshot(snap.GetSnapshotId()), &csi.CapacityRange{LimitBytes: d.size / 2}
	_, err := r.controller().CreateVolume(r.Context(), q)
	r.refused(err, codes.OutOfRange)
	clone.drop()
	r.dropSnapshots(snap.GetSnapshotId(), snap.GetSnapshotId())
}

// changedBlocks: the delta of two snapshots is exactly what differs.
func changedBlocks(r *rig) {
	d := r.create("changed", block()).attach()
	d.writeBlock(0, 1, 64<<10)
	d.writeBlock(4*mib, 2, 64<<10)
	first := d.snapshot("first")
	d.writeBlock(8192, 3, 4096)
	d.writeBlock(8*mib, 4, 128<<10)
	second := d.snapshot("second")
	was, is := r.restored(first), r.restored(second)
	checkMap(r, "delta", r.delta(first, second), is, was)
	checkMap(r, "allocated", r.allocated(first), was, make([]byte, len(was)))
	if same := r.delta(second, second); len(same) != 0 {
		r.Errorf("a snapshot differs from itself in %v", same)
	}
	d.drop()
	r.dropSnapshots(first.GetSnapshotId(), second.GetSnapshotId())
}

// restored returns the bytes of a snapshot of a block volume.
func (r *rig) restored(s *csi.Snapshot) []byte {
	r.Helper()
	d := r.create("restored", block(), sourced(fromSnapshot(s.GetSnapshotId()), s.GetSizeBytes())).attach()
	defer d.drop()
	return d.readBlock(0, int(s.GetSizeBytes()))
}

// checkMap checks that the ranges are sorted and disjoint, and cover exactly
// the 4 KiB blocks that differ.
func checkMap(r *rig, what string, ranges []*csi.BlockMetadata, is, was []byte) {
	r.Helper()
	const step = 4096
	reported := map[int64]bool{}
	end := int64(0)
	for _, b := range ranges {
		if b.GetByteOffset() < end || b.GetSizeBytes() <= 0 {
			r.Errorf("%s: %v begins before %d", what, b, end)
		}
		end = b.GetByteOffset() + b.GetSizeBytes()
		for at := b.GetByteOffset(); at < end; at += step {
			reported[at/step] = true
		}
	}
	for at := 0; at < len(is); at += step {
		differs := !bytes.Equal(is[at:at+step], was[at:at+step])
		if differs != reported[int64(at/step)] {
			r.Errorf("%s: the block at %d differs: %v, reported: %v", what, at, differs, reported[int64(at/step)])
		}
	}
}

func (r *rig) delta(base, target *csi.Snapshot) []*csi.BlockMetadata {
	r.Helper()
	all := testkit.Value(gather(r.metadata().GetMetadataDelta(r.Context(), &csi.GetMetadataDeltaRequest{
		BaseSnapshotId: base.GetSnapshotId(), TargetSnapshotId: target.GetSnapshotId(), MaxResults: 1})))(r)
	return all
}

func (r *rig) allocated(s *csi.Snapshot) []*csi.BlockMetadata {
	r.Helper()
	all := testkit.Value(gather(r.metadata().GetMetadataAllocated(r.Context(), &csi.GetMetadataAllocatedRequest{SnapshotId: s.GetSnapshotId()})))(r)
	return all
}

// gather reads a stream of ranges to its end.
func gather[T interface{ GetBlockMetadata() []*csi.BlockMetadata }](stream interface {
	grpc.ClientStream
	Recv() (T, error)
}, err error) (all []*csi.BlockMetadata, _ error) {
	if err != nil {
		return nil, err
	}
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return nil, err
		}
		all = append(all, m.GetBlockMetadata()...)
	}
}

// groupOfMounts: a writer that alternates between two volumes finds both
// snapshots at the same point in time.
func groupOfMounts(r *rig) {
	one, two := r.create("one", mounted("ext4")).attach(), r.create("two", mounted("ext4")).attach()
	ctx, stop := context.WithCancel(r.Context())
	written := make(chan error, 1)
	go func() { written <- alternate(ctx, one, two) }()
	answer := testkit.Value(r.groups().CreateVolumeGroupSnapshot(r.Context(), &csi.CreateVolumeGroupSnapshotRequest{Name: "group", SourceVolumeIds: []string{one.id, two.id}}))(r)
	stop()
	testkit.Must(r, <-written)
	counts := map[string]int{}
	group := answer.GetGroupSnapshot()
	for _, s := range group.GetSnapshots() {
		_, err := r.controller().DeleteSnapshot(r.Context(), &csi.DeleteSnapshotRequest{SnapshotId: s.GetSnapshotId()})
		r.refused(err, codes.InvalidArgument, group.GetGroupSnapshotId())
		back := r.create("back", mounted("ext4"), sourced(fromSnapshot(s.GetSnapshotId()), s.GetSizeBytes())).attach()
		files := testkit.Value(os.ReadDir(back.target))(r)
		counts[s.GetSourceVolumeId()] = len(files)
		back.drop()
	}
	if ahead := counts[one.id] - counts[two.id]; ahead < 0 || ahead > 1 || len(counts) != 2 {
		r.Errorf("the second volume holds a file created after the last of the first: %v", counts)
	}
	r.dropGroup(group)
	one.drop()
	two.drop()
}

// alternate creates a file in one volume and then one in the other, durably.
func alternate(ctx context.Context, volumes ...*disk) error {
	for i := uint64(1); ctx.Err() == nil && i < 500; i++ {
		for _, d := range volumes {
			if err := writeAt(d.target+"/"+string(rune('A'+i%26))+string(rune('a'+i/26)), os.O_CREATE, 0, noise(i, 16)); err != nil {
				return err
			}
		}
	}
	return nil
}

func (r *rig) dropGroup(g *csi.VolumeGroupSnapshot) {
	r.Helper()
	var ids []string
	for _, s := range g.GetSnapshots() {
		ids = append(ids, s.GetSnapshotId())
	}
	testkit.Value(r.groups().DeleteVolumeGroupSnapshot(r.Context(), &csi.DeleteVolumeGroupSnapshotRequest{GroupSnapshotId: g.GetGroupSnapshotId(), SnapshotIds: ids}))(r)
}
