package csi_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	csi "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/cleatproject/cleat/test/testkit"
)

// split starts a controller and a node process on one pool.
func split(t *testing.T, flags ...string) (controller, node *rig) {
	dir := t.TempDir()
	controller = makeRig(t, "controller", dir, append([]string{"--services", "controller"}, flags...)...)
	node = makeRig(t, "node", dir, append([]string{"--services", "node"}, flags...)...)
	controller.start()
	node.start()
	return controller, node
}

// onNode returns a volume of the controller as the node process sees it.
func (d *disk) onNode(node *rig) *disk {
	there := *d
	there.rig = node
	return &there
}

// TestSeparateControllerAndNode: the node process needs only the locator and the pool.
func TestSeparateControllerAndNode(t *testing.T) {
	t.Parallel()
	c, n := split(t)
	sameAnnouncement(t, c, n)
	d := c.create("split", mounted("ext4")).onNode(n).attach()
	raw := c.create("split-raw", block()).onNode(n).attach()
	d.writeFile("x", 1, 4096)
	raw.writeBlock(0, 2, 4096)
	t.Run("each serves its own", func(t *testing.T) {
		_, err := n.controller().ListVolumes(t.Context(), &csi.ListVolumesRequest{})
		n.refused(err, codes.Unimplemented)
		_, err = c.node().NodeGetInfo(t.Context(), &csi.NodeGetInfoRequest{})
		c.refused(err, codes.Unimplemented)
		without := d.stageRequest()
		without.VolumeId, without.VolumeContext = "other", nil
		_, err = n.node().NodeStageVolume(t.Context(), without)
		n.refused(err, codes.InvalidArgument, "volume_context")
		c.refused(d.onNode(c).remove(), codes.FailedPrecondition, "mounted on "+d.staging)
		inline := d.publishRequest()
		inline.VolumeId, inline.TargetPath = "csi-1", d.target+"-inline"
		inline.VolumeContext = map[string]string{"csi.storage.k8s.io/ephemeral": "true"}
		_, err = n.node().NodePublishVolume(t.Context(), inline)
		n.refused(err, codes.Unimplemented, "controller")
	})
	t.Run("expand", func(t *testing.T) {
		want := sizes(raw.size+8*mib, 0)
		q := &csi.NodeExpandVolumeRequest{VolumeId: raw.id, VolumePath: raw.target, CapacityRange: want}
		_, err := n.node().NodeExpandVolume(t.Context(), q)
		n.refused(err, codes.FailedPrecondition, "ControllerExpandVolume first")
		testkit.Value(c.controller().ControllerExpandVolume(t.Context(), &csi.ControllerExpandVolumeRequest{VolumeId: raw.id, CapacityRange: want}))(c)
		testkit.Value(n.node().NodeExpandVolume(t.Context(), q))(n)
		raw.writeBlock(raw.size+4*mib, 3, 4096)
	})
	t.Run("node store lost", func(t *testing.T) {
		n.stop()
		testkit.Must(n, os.Remove(filepath.Join(n.dir, "node-state", "node.db")))
		n.start()
		d.rig, raw.rig = n, n
		d.holdsFile("x", 1, 4096)
		raw.holdsBlock(0, 2, 4096)
		n.refused(raw.unstage(), codes.FailedPrecondition, raw.target)
		n.refused(d.unstage(), codes.FailedPrecondition, d.target)
		d.attach() // all known again, and not mounted twice
		raw.attach()
		d.detach()
		d.attach()
		d.holdsFile("x", 1, 4096)
		raw.holdsBlock(0, 2, 4096)
		for _, undo := range []func() error{d.unpublish, d.unstage, raw.unpublish, raw.unstage} {
			d.released(undo)
		}
		d.attach()
		raw.attach()
		n.stop()
		testkit.Must(n, os.Remove(filepath.Join(n.dir, "node-state", "node.db")))
		n.start() // and without attaching again
		d.rig, raw.rig = n, n
		testkit.Must(n, errors.Join(d.unpublish(), d.unstage(), raw.unpublish(), raw.unstage()))
		if left := n.left(); len(left) > 0 {
			t.Errorf("left over by a node that lost its store: %q", left)
		}
	})
	testkit.Must(c, errors.Join(d.onNode(c).remove(), raw.onNode(c).remove()))
}

// sameAnnouncement checks that the processes announce the same plugin
// capabilities.
func sameAnnouncement(t *testing.T, rigs ...*rig) {
	t.Helper()
	var first *csi.GetPluginCapabilitiesResponse
	for _, r := range rigs {
		answer := testkit.Value(r.identity().GetPluginCapabilities(t.Context(), &csi.GetPluginCapabilitiesRequest{}))(r)
		if first == nil {
			first = answer
		}
		if len(answer.GetCapabilities()) == 0 || !proto.Equal(first, answer) {
			t.Errorf("two processes of one configuration announce %v and %v", first, answer)
		}
	}
}

func controllerCapabilities(r *rig) (all []csi.ControllerServiceCapability_RPC_Type) {
	answer := testkit.Value(r.controller().ControllerGetCapabilities(r.Context(), &csi.ControllerGetCapabilitiesRequest{}))(r)
	for _, c := range answer.GetCapabilities() {
		all = append(all, c.GetRpc().GetType())
	}
	return all
}

// TestPerNode: where each node has its own controller, sidecars cannot publish,
// expand or modify through it; the node expands the file itself.
func TestPerNode(t *testing.T) {
	t.Parallel()
	r := newRig(t, "--per-node", "--topology", "zone=a,rack=r1", "--max-volumes", "7")
	all := controllerCapabilities(r)
	for _, c := range []csi.ControllerServiceCapability_RPC_Type{
		csi.ControllerServiceCapability_RPC_EXPAND_VOLUME, csi.ControllerServiceCapability_RPC_MODIFY_VOLUME,
		csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME, csi.ControllerServiceCapability_RPC_LIST_VOLUMES_PUBLISHED_NODES,
	} {
		if slices.Contains(all, c) {
			t.Errorf("%v is announced", c)
		}
	}
	info, err := r.node().NodeGetInfo(t.Context(), &csi.NodeGetInfoRequest{})
	testkit.Must(r, err)
	segments := info.GetAccessibleTopology().GetSegments()
	if info.GetNodeId() != nodeID || info.GetMaxVolumesPerNode() != 7 || segments["zone"] != "a" || segments["rack"] != "r1" || segments["topology.cleat.dev/node"] != nodeID {
		t.Errorf("node info %v", info)
	}
	d := r.create("own", block()).attach()
	_, err = r.controller().ControllerExpandVolume(t.Context(), &csi.ControllerExpandVolumeRequest{VolumeId: d.id, CapacityRange: sizes(64*mib, 0)})
	r.refused(err, codes.Unimplemented, "EXPAND_VOLUME")
	r.refused(d.modify(map[string]string{"readAheadKiB": "64"}), codes.Unimplemented, "MODIFY_VOLUME")
	_, err = r.controller().ControllerPublishVolume(t.Context(), &csi.ControllerPublishVolumeRequest{VolumeId: d.id, NodeId: nodeID, VolumeCapability: block()})
	r.refused(err, codes.Unimplemented, "PUBLISH_UNPUBLISH_VOLUME")
	q := ask("mutable", block())
	q.MutableParameters = map[string]string{"readAheadKiB": "64"}
	_, err = r.controller().CreateVolume(t.Context(), q)
	r.refused(err, codes.InvalidArgument, "MODIFY_VOLUME")
	grown, err := r.node().NodeExpandVolume(t.Context(), &csi.NodeExpandVolumeRequest{VolumeId: d.id, VolumePath: d.target, CapacityRange: sizes(64*mib, 0)})
	if err != nil || grown.GetCapacityBytes() != 64*mib {
		t.Errorf("expanded on the node: %v, %v", grown, err)
	}
	d.writeBlock(64*mib-4096, 1, 4096)
	shown, err := r.controller().ControllerGetVolume(t.Context(), &csi.ControllerGetVolumeRequest{VolumeId: d.id})
	if err != nil || shown.GetVolume().GetCapacityBytes() != 64*mib {
		t.Errorf("the controller has %v, %v", shown, err)
	}
	d.drop()
}

// TestControllerPublish: where grants are required, no volume is usable without
// one.
func TestControllerPublish(t *testing.T) {
	t.Parallel()
	r := newRig(t, "--controller-publish")
	d := r.create("granted", mounted("ext4"))
	r.refused(d.stage(), codes.FailedPrecondition, "ControllerPublishVolume", nodeID)
	q := &csi.ControllerPublishVolumeRequest{VolumeId: d.id, NodeId: nodeID, VolumeCapability: d.capability, VolumeContext: d.context, Readonly: true}
	answer := testkit.Value(r.controller().ControllerPublishVolume(t.Context(), q))(r)
	d.grant = answer.GetPublishContext()
	d.attach()
	if err := os.WriteFile(d.target+"/x", nil, 0o600); err == nil {
		t.Error("a write succeeded under a read-only grant")
	}
	r.restart()
	list := testkit.Value(r.controller().ListVolumes(t.Context(), &csi.ListVolumesRequest{}))(r)
	if got := list.GetEntries()[0].GetStatus().GetPublishedNodeIds(); !slices.Equal(got, []string{nodeID}) {
		t.Errorf("published nodes after a restart: %q", got)
	}
	r.refused(d.remove(), codes.FailedPrecondition, nodeID)
	d.detach()
	d.unpublishFromAll()
	d.unpublishFromAll()
	testkit.Must(r, d.remove())
}

// restart stops and starts the driver.
func (r *rig) restart(env ...string) {
	r.Helper()
	r.stop()
	r.start(env...)
}

// TestAnnouncement: the capabilities of the three deployments, and the effect
// of each setting.
func TestAnnouncement(t *testing.T) {
	t.Parallel()
	all := newRig(t)
	controller, node := split(t)
	sameAnnouncement(t, all, controller, node)
	plain := controllerCapabilities(all)
	publishing := controllerCapabilities(newRig(t, "--controller-publish"))
	if !slices.Contains(publishing, csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME) || slices.Contains(plain, csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME) {
		t.Errorf("announced with --controller-publish: %v, without: %v", publishing, plain)
	}
	// Calls that are not announced return UNIMPLEMENTED, announced ones do not.
	_, err := all.controller().ControllerUnpublishVolume(t.Context(), &csi.ControllerUnpublishVolumeRequest{VolumeId: "x"})
	all.refused(err, codes.Unimplemented)
	for _, service := range []string{"csi.v1.GroupController", "csi.v1.SnapshotMetadata"} {
		if strings.Contains(node.process.Log.String(), service) {
			t.Errorf("the node process serves %s", service)
		}
	}
	_, err = node.groups().GroupControllerGetCapabilities(t.Context(), &csi.GroupControllerGetCapabilitiesRequest{})
	node.refused(err, codes.Unimplemented)
}
