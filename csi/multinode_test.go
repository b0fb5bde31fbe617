package csi_test

import (
	"context"
	"slices"
	"strings"
	"testing"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/cleatproject/cleat/csi"
	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/volume"
	"github.com/cleatproject/cleat/volume/access"
)

const (
	idOne = "node-1@192.0.2.1"
	idTwo = "node-2@192.0.2.2,2001:db8::2"
)

// newMultiNode serves volumes that every node reaches, and whose file systems
// nodes create.
func newMultiNode(t *testing.T) *plugin {
	t.Helper()
	return newPlugin(t, options{
		Deployment: &csi.Deployment{Services: csi.Services{Controller: true}, ControllerPublish: true, MultiNode: true},
		Backend:    func(b *volume.Backend) { b.MultiNode, b.FormatOnNode = true, true },
	})
}

func withAccess(c *spec.VolumeCapability, mode spec.VolumeCapability_AccessMode_Mode) *spec.VolumeCapability {
	c.AccessMode.Mode = mode
	return c
}

func TestModesOfSeveralNodes(t *testing.T) {
	rig := newMultiNode(t)
	const single = spec.VolumeCapability_AccessMode_MULTI_NODE_SINGLE_WRITER
	for name, c := range map[string]struct {
		capability *spec.VolumeCapability
		code       codes.Code
		word       string
	}{
		"block, writers":       {withAccess(blockCap(), writers), codes.OK, ""},
		"block, readers":       {withAccess(blockCap(), readers), codes.OK, ""},
		"block, single writer": {withAccess(blockCap(), single), codes.InvalidArgument, "MULTI_NODE_MULTI_WRITER"},
		"mount, writers":       {withAccess(mountCap(), writers), codes.InvalidArgument, "volumeMode: Block"},
		"mount, readers":       {withAccess(mountCap(), readers), codes.InvalidArgument, "ReadWriteOncePod"},
		"mount, single writer": {withAccess(mountCap(), single), codes.InvalidArgument, "SINGLE_NODE"},
	} {
		_, err := rig.Controller.CreateVolume(t.Context(), createRequest(name, c.capability))
		wantCode(t, err, c.code)
		if !strings.Contains(status.Convert(err).Message(), c.word) {
			t.Errorf("%s: %v does not say %q", name, err, c.word)
		}
	}
	v := rig.MustCreate(t, "shared", withAccess(blockCap(), writers))
	for _, id := range []string{idOne, idTwo, idOne} {
		r := publishRequest(v, id)
		r.VolumeCapability = withAccess(blockCap(), writers)
		answer, err := rig.Controller.ControllerPublishVolume(t.Context(), r)
		wantCode(t, err, codes.OK)
		if name, _, _ := strings.Cut(id, "@"); answer.GetPublishContext()["grantedTo"] != name {
			t.Errorf("publish_context %v of node %s", answer.GetPublishContext(), id)
		}
	}
	rig.wantPublished(t, v, idOne, idTwo)
	r := publishRequest(v, "node-3@192.0.2.3")
	r.VolumeCapability = blockCap()
	_, err := rig.Controller.ControllerPublishVolume(t.Context(), r)
	wantCode(t, err, codes.FailedPrecondition)
}

func (rig *plugin) wantPublished(t *testing.T, v *spec.Volume, ids ...string) {
	t.Helper()
	got := testkit.Value(rig.Controller.ControllerGetVolume(t.Context(), &spec.ControllerGetVolumeRequest{VolumeId: v.GetVolumeId()}))(t)
	if nodes := got.GetStatus().GetPublishedNodeIds(); !slices.Equal(nodes, ids) {
		t.Errorf("volume %s is published to %q, want %q", v.GetVolumeId(), nodes, ids)
	}
}

// A node keeps its volumes when its address changes, and lists show the id that
// the CSINode object has since.
func TestNodeChangesItsAddress(t *testing.T) {
	rig := newMultiNode(t)
	ctx, c := t.Context(), rig.Controller
	v := rig.MustCreate(t, "v", mountCap())
	_, err := c.ControllerPublishVolume(ctx, publishRequest(v, idOne))
	wantCode(t, err, codes.OK)
	const moved = "node-1@192.0.2.77"
	_, err = c.ControllerPublishVolume(ctx, publishRequest(v, moved))
	wantCode(t, err, codes.OK)
	rig.wantPublished(t, v, moved)
	for _, id := range []string{"node-1", "", "@192.0.2.1", "other", "node-1@"} {
		_, err = c.ControllerPublishVolume(ctx, publishRequest(v, id))
		if want := codes.NotFound; id != "" {
			wantCode(t, err, want)
		} else {
			wantCode(t, err, codes.InvalidArgument)
		}
	}
	_, err = c.ControllerUnpublishVolume(ctx, &spec.ControllerUnpublishVolumeRequest{VolumeId: v.GetVolumeId(), NodeId: "@192.0.2.77"})
	wantCode(t, err, codes.OK)
	rig.wantPublished(t, v, moved)
	// The external-attacher detaches with the id from before.
	_, err = c.ControllerUnpublishVolume(ctx, &spec.ControllerUnpublishVolumeRequest{VolumeId: v.GetVolumeId(), NodeId: idOne})
	wantCode(t, err, codes.OK)
	rig.wantPublished(t, v)
}

// The node learns from the volume_context that it has to create the file
// system: not of a block volume, nor of a copy, which has its source's.
func TestFormatInTheVolumeContext(t *testing.T) {
	rig := newMultiNode(t)
	xfs := mountCap()
	xfs.GetMount().FsType = "xfs"
	source := rig.MustCreate(t, "mount", mountCap())
	copied := createRequest("copy", mountCap())
	copied.VolumeContentSource = &spec.VolumeContentSource{Type: &spec.VolumeContentSource_Volume{
		Volume: &spec.VolumeContentSource_VolumeSource{VolumeId: source.GetVolumeId()},
	}}
	restored := testkit.Value(rig.Controller.CreateVolume(t.Context(), copied))(t).GetVolume()
	for name, c := range map[string]struct {
		v    *spec.Volume
		want string
	}{
		"mount": {source, "ext4"}, "xfs": {rig.MustCreate(t, "xfs", xfs), "xfs"},
		"block": {rig.MustCreate(t, "block", blockCap()), ""}, "copy": {restored, ""},
	} {
		if got := c.v.GetVolumeContext()[access.KeyFormat]; got != c.want {
			t.Errorf("%s: format %q, want %q", name, got, c.want)
		}
	}
	local := newPlugin(t, options{}).MustCreate(t, "local", mountCap())
	if got, set := local.GetVolumeContext()[access.KeyFormat]; set {
		t.Errorf("an engine that creates the file system itself: format %q", got)
	}
}

func TestInfoOfAMultiNode(t *testing.T) {
	client, unreadable := volume.Client{Node: nodeID, Addrs: addrs("192.0.2.1")}, error(nil)
	r := newNodeRig(t, nil, func(c *csi.NodeConfig) {
		c.Deployment = csi.Deployment{Services: csi.Services{Node: true}, ControllerPublish: true, MultiNode: true}
		c.Client = func() (volume.Client, error) { return client, unreadable }
	})
	info := testkit.Value(r.NodeGetInfo(t.Context(), &spec.NodeGetInfoRequest{}))(t)
	if info.GetNodeId() != idOne || info.GetAccessibleTopology() != nil {
		t.Errorf("info %v", info)
	}
	s := r.stage("v", mountCap())
	s.PublishContext = map[string]string{"grantedTo": "node-2"}
	_, err := r.NodeStageVolume(t.Context(), s)
	r.code(err, codes.FailedPrecondition, "node-2")
	s.PublishContext["grantedTo"] = nodeID
	client.Addrs = addrs("192.0.2.77") // the grant is of the name
	testkit.Value(r.NodeStageVolume(t.Context(), s))(t)
	r.undo(s)
	client.Addrs = nil
	_, err = r.NodeGetInfo(t.Context(), &spec.NodeGetInfoRequest{})
	r.code(err, codes.FailedPrecondition, "--node-address")
	unreadable = errs.Errorf(errs.Unavailable, "netlink: no memory")
	_, err = r.NodeGetInfo(t.Context(), &spec.NodeGetInfoRequest{})
	r.code(err, codes.Unavailable, "no memory")
	_, err = r.NodeStageVolume(t.Context(), s)
	r.code(err, codes.Unavailable, "no memory")
}

func TestSecretsOfAStageAreNotLogged(t *testing.T) {
	r := newNodeRig(t, nil)
	s := r.stage("v", mountCap())
	s.Secrets = map[string]string{"userID": "csi-node", "userKey": "AQhush=="}
	testkit.Value(r.NodeStageVolume(context.WithoutCancel(t.Context()), s))(t)
	r.undo(s)
	if strings.Contains(r.log.String(), "hush") {
		t.Error("the log has the secret")
	}
}
