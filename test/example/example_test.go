package example

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	csi "github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/cleatproject/cleat/test/driver"
	"github.com/cleatproject/cleat/test/testkit"
)

// A vendor's module outside of this tree builds, is tidy, and passes its own tests: the
// suite for engines, and a kill after each step of a call.
func TestOutsideOfTheTree(t *testing.T) {
	m := New(t)
	if out := m.Go(t, "list", "-m", "-f", "{{.Version}}{{with .Replace}} replaced{{end}}", modulePath); strings.TrimSpace(out) != version {
		t.Fatalf("the example is built with %s %s, want %s of the proxy", modulePath, out, version)
	}
	m.Go(t, "vet", ".")
	out := m.Go(t, "test", "-count=1", "-v", ".")
	for _, name := range []string{"TestConformance/Create", "TestConformance/Reopen", "TestKilledAtEachStep/create.filled"} {
		if !strings.Contains(out, "--- PASS: "+name) {
			t.Errorf("%s has not run: %s", name, out)
		}
	}
	t.Run("Killed", func(t *testing.T) { killed(t, m.Build(t)) })
}

// killed kills the driver while a pod has a volume. The volume stays in use, the next
// process takes it over, and at the end nothing is left.
func killed(t *testing.T, program string) {
	dir := testkit.Dir(t)
	share, target := filepath.Join(dir, "share"), filepath.Join(dir, "target")
	testkit.Must(t, os.Mkdir(share, 0o700))
	t.Cleanup(func() { driver.Sweep(t, dir) })
	start := func() *driver.Process {
		return testkit.Value(driver.Launch(t.Context(), program, dir, "csi", nil, "--share", share, "--node-id", "node-1", "--node-address", "192.0.2.1"))(t)
	}
	ctx := testkit.Context(t)
	capability := &csi.VolumeCapability{
		AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{FsType: "ext4"}},
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
	}
	staging := filepath.Join(dir, "staging")
	testkit.Must(t, os.Mkdir(staging, 0o700))

	p := start()
	controller, node := csi.NewControllerClient(p.Conn), csi.NewNodeClient(p.Conn)
	v := testkit.Value(controller.CreateVolume(ctx, &csi.CreateVolumeRequest{
		Name: "data", CapacityRange: &csi.CapacityRange{RequiredBytes: 64 << 20}, VolumeCapabilities: []*csi.VolumeCapability{capability},
	}))(t).GetVolume()
	id := testkit.Value(node.NodeGetInfo(ctx, &csi.NodeGetInfoRequest{}))(t).GetNodeId()
	published := testkit.Value(controller.ControllerPublishVolume(ctx, &csi.ControllerPublishVolumeRequest{
		VolumeId: v.GetVolumeId(), NodeId: id, VolumeCapability: capability, VolumeContext: v.GetVolumeContext(),
	}))(t).GetPublishContext()
	testkit.Value(node.NodeStageVolume(ctx, &csi.NodeStageVolumeRequest{
		VolumeId: v.GetVolumeId(), PublishContext: published, StagingTargetPath: staging, VolumeCapability: capability, VolumeContext: v.GetVolumeContext(),
	}))(t)
	publish := &csi.NodePublishVolumeRequest{
		VolumeId: v.GetVolumeId(), PublishContext: published, StagingTargetPath: staging, TargetPath: target, VolumeCapability: capability, VolumeContext: v.GetVolumeContext(),
	}
	testkit.Value(node.NodePublishVolume(ctx, publish))(t)
	testkit.Must(t, os.WriteFile(filepath.Join(target, "file"), []byte("text"), 0o600), p.Kill())

	p = start()
	defer func() { testkit.Must(t, p.Stop()) }()
	controller, node = csi.NewControllerClient(p.Conn), csi.NewNodeClient(p.Conn)
	testkit.Value(node.NodePublishVolume(ctx, publish))(t)
	if text := testkit.Value(os.ReadFile(filepath.Join(target, "file")))(t); string(text) != "text" {
		t.Errorf("the file of the pod is %q", text)
	}
	testkit.Value(node.NodeUnpublishVolume(ctx, &csi.NodeUnpublishVolumeRequest{VolumeId: v.GetVolumeId(), TargetPath: target}))(t)
	testkit.Value(node.NodeUnstageVolume(ctx, &csi.NodeUnstageVolumeRequest{VolumeId: v.GetVolumeId(), StagingTargetPath: staging}))(t)
	testkit.Value(controller.ControllerUnpublishVolume(ctx, &csi.ControllerUnpublishVolumeRequest{VolumeId: v.GetVolumeId(), NodeId: id}))(t)
	testkit.Value(controller.DeleteVolume(ctx, &csi.DeleteVolumeRequest{VolumeId: v.GetVolumeId()}))(t)
	if left := testkit.Value(os.ReadDir(share))(t); len(left) > 0 {
		t.Errorf("left in the share: %v", left)
	}
	driver.CheckNothingLeft(t, dir)
}
