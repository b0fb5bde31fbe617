package csi_test

import (
	"context"
	"strings"
	"testing"

	csi "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/cleatproject/cleat/test/testkit"
)

// secretly makes a call with every secret of the contract filled in.
func secretly[Q proto.Message, A any](r *rig, call func(context.Context, Q, ...grpc.CallOption) (A, error), q Q) A {
	r.Helper()
	addSecrets(q)
	answer := testkit.Value(call(r.Context(), q))(r)
	return answer
}

// TestSecrets: successful calls leave no secrets in the debug log, records,
// files or process arguments.
func TestSecrets(t *testing.T) {
	t.Parallel()
	r := newRig(t, "--controller-publish")
	watch := watchArguments(t, r.process.PID())
	c := mounted("ext4", "noatime", "x-password="+marker)
	c.GetMount().VolumeMountGroup = "77"
	v := secretly(r, r.controller().CreateVolume, ask("secret", c)).GetVolume()
	d := r.disk(v, "secret", c)
	d.grant = secretly(r, r.controller().ControllerPublishVolume, &csi.ControllerPublishVolumeRequest{
		VolumeId: d.id, NodeId: nodeID, VolumeCapability: c, VolumeContext: d.context}).GetPublishContext()
	for range 2 { // the second call compares with the existing state
		secretly(r, r.node().NodeStageVolume, d.stageRequest())
		secretly(r, r.node().NodePublishVolume, d.publishRequest())
	}
	d.detach()
	snap := secretly(r, r.controller().CreateSnapshot, &csi.CreateSnapshotRequest{Name: "secret", SourceVolumeId: d.id}).GetSnapshot()
	secretly(r, r.controller().ListSnapshots, &csi.ListSnapshotsRequest{SnapshotId: snap.GetSnapshotId()})
	secretly(r, r.controller().ControllerExpandVolume, &csi.ControllerExpandVolumeRequest{VolumeId: d.id, CapacityRange: sizes(d.size*2, 0), VolumeCapability: c})
	secretly(r, r.controller().ControllerModifyVolume, &csi.ControllerModifyVolumeRequest{VolumeId: d.id, MutableParameters: map[string]string{"trimInterval": "1h"}})
	secretly(r, r.controller().ValidateVolumeCapabilities, &csi.ValidateVolumeCapabilitiesRequest{VolumeId: d.id, VolumeCapabilities: []*csi.VolumeCapability{c}})
	secretly(r, r.node().NodeStageVolume, d.stageRequest()) // grows the file system with a tool
	testkit.Must(r, d.unstage())
	secretly(r, r.controller().ControllerUnpublishVolume, &csi.ControllerUnpublishVolumeRequest{VolumeId: d.id, NodeId: nodeID})
	r.untilReady(snap.GetSnapshotId())
	secretly(r, r.controller().DeleteSnapshot, &csi.DeleteSnapshotRequest{SnapshotId: snap.GetSnapshotId()})
	secretly(r, r.controller().DeleteVolume, &csi.DeleteVolumeRequest{VolumeId: d.id})
	if found := watch(); found != "" {
		t.Errorf("a process was started with the secret in its arguments: %s", found)
	}
	p := r.process
	r.stop()
	checkNoSecret(t, r)
	if !strings.Contains(p.Log.String(), `"msg":"call started"`) {
		t.Error("the log contains no requests: the test is not valid")
	}
}

// untilReady waits for a snapshot's background copy.
func (r *rig) untilReady(id string) {
	r.Helper()
	testkit.Eventually(r, "snapshot "+id+" is ready", func() bool {
		answer := testkit.Value(r.controller().GetSnapshot(r.Context(), &csi.GetSnapshotRequest{SnapshotId: id}))(r)
		return answer.GetSnapshot().GetReadyToUse()
	})
}
