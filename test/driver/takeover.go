package driver

import (
	"context"
	"maps"
	"slices"
	"testing"

	csi "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/cleatproject/cleat/test/testkit"
)

// Takeover is an installation whose controller is another build of cleat after each
// Start, with the state of the one before. The storage fences two nodes.
type Takeover struct {
	testing.TB
	Start      func(program string) *Process
	Capability *csi.VolumeCapability
	Nodes      [2]string // ids
	Addresses  [2]string
	Fence      func(command, address string) // add or rm
	// Admitted checks which nodes the storage admits to a volume, by index.
	Admitted func(v *csi.Volume, nodes ...int)
	// Use has the first node use a volume, and returns whether it still can; nil: a node
	// cannot use it here.
	Use func(v *csi.Volume) (alive func() bool)

	controller       csi.ControllerClient
	shared, restored *csi.Volume // shared: by both nodes
	snapshot         *csi.Snapshot
	alive            func() bool
}

const size = 64 << 20

// Run has the first build create volumes in use, a snapshot and a fence, continues with the
// second build, and then with the first one again. Each makes all calls.
func (o *Takeover) Run(first, second string) {
	o.Helper()
	o.start(first)
	o.shared = o.create("shared", nil)
	for i := range o.Nodes {
		testkit.Must(o, o.publish(o.shared, i))
	}
	o.alive = o.Use(o.shared)
	o.snapshot = o.takeSnapshot("snapshot")
	o.restored = o.create("restored", o.snapshot)
	o.Fence("add", o.Addresses[1])
	for _, program := range []string{second, first} {
		before := o.listed()
		o.start(program)
		testkit.Diff(o, "volumes and snapshots", before, o.listed())
		o.takenOver()
		o.exercise()
	}
	o.Fence("rm", o.Addresses[1])
	o.Admitted(o.shared, 0, 1)
	for i := range o.Nodes {
		o.unpublish(o.shared, i)
	}
	o.delete(o.restored)
	o.deleteSnapshot(o.snapshot)
	o.delete(o.shared)
	testkit.Diff(o, "what is left", map[string][]string{}, o.listed())
}

func (o *Takeover) start(program string) {
	o.Helper()
	o.controller = csi.NewControllerClient(o.Start(program).Conn)
}

// takenOver checks that volumes are in use and fences in force as before. Repeated calls
// change nothing.
func (o *Takeover) takenOver() {
	o.Helper()
	if o.alive != nil && !o.alive() {
		o.Error("the node with a volume in use has lost it")
	}
	o.Admitted(o.shared, 0)
	testkit.Must(o, o.publish(o.shared, 0))
	if err := o.publish(o.shared, 1); status.Code(err) != codes.FailedPrecondition {
		o.Errorf("a fenced node is admitted: %v", err)
	}
	testkit.Diff(o, "repeated creation", o.restored.GetVolumeId(), o.create("restored", o.snapshot).GetVolumeId())
	testkit.Diff(o, "repeated snapshot", o.snapshot.GetSnapshotId(), o.takeSnapshot("snapshot").GetSnapshotId())
}

// exercise makes the other calls, and leaves everything but sizes as it was.
func (o *Takeover) exercise() {
	o.Helper()
	ctx := testkit.Context(o)
	for _, v := range []*csi.Volume{o.shared, o.restored} {
		now := testkit.Value(o.controller.ControllerGetVolume(ctx, &csi.ControllerGetVolumeRequest{VolumeId: v.GetVolumeId()}))(o).GetVolume()
		o.eventually("expansion", func(ctx context.Context) error {
			grown, err := o.controller.ControllerExpandVolume(ctx, &csi.ControllerExpandVolumeRequest{
				VolumeId: v.GetVolumeId(), CapacityRange: &csi.CapacityRange{RequiredBytes: now.GetCapacityBytes() + size}, VolumeCapability: o.Capability,
			})
			if err == nil {
				testkit.Diff(o, "size", now.GetCapacityBytes()+size, grown.GetCapacityBytes())
			}
			return err
		})
	}
	another := o.takeSnapshot("another")
	copied := o.create("copied", another)
	o.deleteSnapshot(another)
	o.delete(copied)
	o.Fence("add", o.Addresses[0])
	o.Admitted(o.shared)
	if o.alive != nil && o.alive() {
		o.Error("a node can use the volume after it was fenced")
	}
	o.Fence("rm", o.Addresses[0])
	o.unpublish(o.shared, 0)
	testkit.Must(o, o.publish(o.shared, 0))
	o.Admitted(o.shared, 0)
	o.alive = o.Use(o.shared)
}

// listed describes volumes and snapshots by id.
func (o *Takeover) listed() map[string][]string {
	o.Helper()
	ctx, all := testkit.Context(o), map[string][]string{}
	for _, e := range testkit.Value(o.controller.ListVolumes(ctx, &csi.ListVolumesRequest{}))(o).GetEntries() {
		v, described := e.GetVolume(), slices.Sorted(slices.Values(e.GetStatus().GetPublishedNodeIds()))
		for _, key := range slices.Sorted(maps.Keys(v.GetVolumeContext())) {
			described = append(described, key+"="+v.GetVolumeContext()[key])
		}
		all[v.GetVolumeId()] = append(described, v.GetContentSource().String())
	}
	for _, e := range testkit.Value(o.controller.ListSnapshots(ctx, &csi.ListSnapshotsRequest{}))(o).GetEntries() {
		s := e.GetSnapshot()
		all[s.GetSnapshotId()] = []string{s.GetSourceVolumeId(), s.GetCreationTime().AsTime().String()}
	}
	return all
}

func (o *Takeover) create(name string, from *csi.Snapshot) *csi.Volume {
	o.Helper()
	r := &csi.CreateVolumeRequest{Name: name, CapacityRange: &csi.CapacityRange{RequiredBytes: size}, VolumeCapabilities: []*csi.VolumeCapability{o.Capability}}
	if from != nil {
		r.CapacityRange.RequiredBytes = from.GetSizeBytes()
		r.VolumeContentSource = &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: from.GetSnapshotId()}}}
	}
	return testkit.Value(o.controller.CreateVolume(testkit.Context(o), r))(o).GetVolume()
}

func (o *Takeover) takeSnapshot(name string) (s *csi.Snapshot) {
	o.Helper()
	o.eventually("snapshot "+name, func(ctx context.Context) error {
		answer, err := o.controller.CreateSnapshot(ctx, &csi.CreateSnapshotRequest{Name: name, SourceVolumeId: o.shared.GetVolumeId()})
		s = answer.GetSnapshot()
		return err
	})
	return s
}

func (o *Takeover) publish(v *csi.Volume, node int) error {
	_, err := o.controller.ControllerPublishVolume(testkit.Context(o), &csi.ControllerPublishVolumeRequest{
		VolumeId: v.GetVolumeId(), NodeId: o.Nodes[node], VolumeCapability: o.Capability, VolumeContext: v.GetVolumeContext(),
	})
	return err
}

func (o *Takeover) unpublish(v *csi.Volume, node int) {
	o.Helper()
	testkit.Value(o.controller.ControllerUnpublishVolume(testkit.Context(o), &csi.ControllerUnpublishVolumeRequest{VolumeId: v.GetVolumeId(), NodeId: o.Nodes[node]}))(o)
}

func (o *Takeover) delete(v *csi.Volume) {
	o.Helper()
	o.eventually("deletion of a volume", func(ctx context.Context) error {
		_, err := o.controller.DeleteVolume(ctx, &csi.DeleteVolumeRequest{VolumeId: v.GetVolumeId()})
		return err
	})
}

func (o *Takeover) deleteSnapshot(s *csi.Snapshot) {
	o.Helper()
	o.eventually("deletion of a snapshot", func(ctx context.Context) error {
		_, err := o.controller.DeleteSnapshot(ctx, &csi.DeleteSnapshotRequest{SnapshotId: s.GetSnapshotId()})
		return err
	})
}

// eventually repeats a call, as sidecars do while a copy goes on.
func (o *Takeover) eventually(what string, call func(ctx context.Context) error) {
	o.Helper()
	ctx := testkit.Context(o)
	testkit.EventuallyNil(o, what, func() error { return call(ctx) })
}
