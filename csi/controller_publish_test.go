package csi_test

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/cleatproject/cleat/csi"
	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/ledger"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/volume"
	"github.com/cleatproject/cleat/volume/access"
)

func TestPublish(t *testing.T) {
	rig := newPlugin(t, options{})
	ctx, c := t.Context(), rig.Controller
	v := rig.MustCreate(t, "p", mountCap())
	req := &spec.ControllerPublishVolumeRequest{
		VolumeId: v.GetVolumeId(), NodeId: nodeID, VolumeCapability: mountCap(), Readonly: true, VolumeContext: v.GetVolumeContext(),
	}
	for range 2 {
		r, err := c.ControllerPublishVolume(ctx, req)
		wantCode(t, err, codes.OK)
		wantEqual(t, r, &spec.ControllerPublishVolumeResponse{PublishContext: map[string]string{"grantedTo": nodeID, "grantedReadOnly": "true"}})
	}
	recorded, err := rig.Ledger.Of(ctx, volume.ID(v.GetVolumeId()))
	if err != nil || len(recorded) != 1 || recorded[0].Mode != "SINGLE_NODE_WRITER/mount" {
		t.Errorf("%+v, %v: grants of earlier releases would differ", recorded, err)
	}
	got, err := c.ControllerGetVolume(ctx, &spec.ControllerGetVolumeRequest{VolumeId: v.GetVolumeId()})
	wantCode(t, err, codes.OK)
	list, err := c.ListVolumes(ctx, &spec.ListVolumesRequest{})
	wantCode(t, err, codes.OK)
	for _, nodes := range [][]string{got.GetStatus().GetPublishedNodeIds(), list.GetEntries()[0].GetStatus().GetPublishedNodeIds()} {
		if !slices.Equal(nodes, []string{nodeID}) {
			t.Errorf("published to %q", nodes)
		}
	}
	other := proto.CloneOf(req)
	other.NodeId = "node-2"
	_, err = c.ControllerPublishVolume(ctx, other)
	wantCode(t, err, codes.FailedPrecondition)
	if message := status.Convert(err).Message(); !strings.Contains(message, nodeID) {
		t.Errorf("%q does not name the node that has the volume", message)
	}
	for _, node := range []string{"node-2", nodeID, nodeID, ""} {
		_, err = c.ControllerUnpublishVolume(ctx, &spec.ControllerUnpublishVolumeRequest{VolumeId: v.GetVolumeId(), NodeId: node})
		wantCode(t, err, codes.OK)
	}
	_, err = c.ControllerPublishVolume(ctx, other)
	wantCode(t, err, codes.OK)
	_, err = c.DeleteVolume(ctx, &spec.DeleteVolumeRequest{VolumeId: v.GetVolumeId()})
	wantCode(t, err, codes.FailedPrecondition)
	_, err = c.ControllerUnpublishVolume(ctx, &spec.ControllerUnpublishVolumeRequest{VolumeId: v.GetVolumeId()})
	wantCode(t, err, codes.OK)
	_, err = c.DeleteVolume(ctx, &spec.DeleteVolumeRequest{VolumeId: v.GetVolumeId()})
	wantCode(t, err, codes.OK)
}

func TestPublishUpToTheNodesLimit(t *testing.T) {
	deployment := fullDeployment()
	deployment.MaxVolumes = 2
	rig := newPlugin(t, options{Deployment: &deployment})
	publish := func(name string) error {
		v := rig.MustCreate(t, name, mountCap())
		_, err := rig.Controller.ControllerPublishVolume(t.Context(), &spec.ControllerPublishVolumeRequest{
			VolumeId: v.GetVolumeId(), NodeId: nodeID, VolumeCapability: mountCap(),
		})
		return err
	}
	wantCode(t, publish("a"), codes.OK)
	wantCode(t, publish("b"), codes.OK)
	wantCode(t, publish("c"), codes.ResourceExhausted)
	wantCode(t, publish("b"), codes.OK) // it counts already
}

func fence(t *testing.T, l *ledger.Ledger, blocks ...string) {
	t.Helper()
	_, _, err := l.ChangeFences(t.Context(), func([]volume.Fence) (next []volume.Fence, err error) {
		for _, b := range blocks {
			next = append(next, volume.Fence{
				Block: netip.MustParsePrefix(b), Phase: volume.Fenced, Since: time.Now(), Owner: volume.FenceOwner{Digest: "a", Keys: []string{"clusterID"}},
			})
		}
		return next, nil
	})
	testkit.Must(t, err)
}

// The first node has an address of each family.
func dualStack(t *testing.T, l *ledger.Ledger) {
	t.Helper()
	c := volume.Client{Node: nodeID, Addrs: []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")}}
	testkit.Must(t, l.RecordClient(t.Context(), c))
}

func publishRequest(v *spec.Volume, node string) *spec.ControllerPublishVolumeRequest {
	return &spec.ControllerPublishVolumeRequest{VolumeId: v.GetVolumeId(), NodeId: node, VolumeCapability: mountCap()}
}

func TestPublishToAFencedNode(t *testing.T) {
	rig := newPlugin(t, options{})
	ctx, c := t.Context(), rig.Controller
	dualStack(t, rig.Ledger)
	held, other := rig.MustCreate(t, "held", mountCap()), rig.MustCreate(t, "other", mountCap())
	_, err := c.ControllerPublishVolume(ctx, publishRequest(held, nodeID))
	wantCode(t, err, codes.OK)
	granted, err := rig.Ledger.Of(ctx, volume.ID(held.GetVolumeId()))
	if err != nil || len(granted) != 1 || len(granted[0].Client.Addrs) != 2 {
		t.Errorf("the grant does not say by which addresses: %v, %v", granted, err)
	}
	for _, block := range []string{"192.0.2.0/24", "2001:db8::1/128"} {
		fence(t, rig.Ledger, block)
		before := rig.State(t)
		for _, v := range []*spec.Volume{held, other} {
			_, err := c.ControllerPublishVolume(ctx, publishRequest(v, nodeID))
			wantCode(t, err, codes.FailedPrecondition)
			for _, word := range []string{nodeID, block, "UnfenceClusterNetwork", "clusterID"} {
				if message := status.Convert(err).Message(); !strings.Contains(message, word) {
					t.Errorf("%q does not say %q", message, word)
				}
			}
		}
		if after := rig.State(t); after != before {
			t.Errorf("refused, and changed:\n%s\n%s", before, after)
		}
	}
	_, err = c.ControllerPublishVolume(ctx, publishRequest(other, "node-2"))
	wantCode(t, err, codes.OK)
	_, err = c.ControllerPublishVolume(ctx, publishRequest(other, "node-9"))
	wantCode(t, err, codes.NotFound)
	if _, known, err := rig.Ledger.Client(ctx, "node-9"); known || err != nil {
		t.Errorf("a node that does not exist is on record: %t, %v", known, err)
	}
	// Grants of a fenced node can move to another node.
	for range 2 {
		_, err = c.ControllerUnpublishVolume(ctx, &spec.ControllerUnpublishVolumeRequest{VolumeId: held.GetVolumeId(), NodeId: nodeID})
		wantCode(t, err, codes.OK)
	}
	_, err = c.ControllerPublishVolume(ctx, publishRequest(held, "node-2"))
	wantCode(t, err, codes.OK)
	_, err = c.ControllerUnpublishVolume(ctx, &spec.ControllerUnpublishVolumeRequest{VolumeId: held.GetVolumeId()})
	wantCode(t, err, codes.OK)
	_, err = c.DeleteVolume(ctx, &spec.DeleteVolumeRequest{VolumeId: held.GetVolumeId()})
	wantCode(t, err, codes.OK)
	_, err = c.ControllerUnpublishVolume(ctx, &spec.ControllerUnpublishVolumeRequest{VolumeId: other.GetVolumeId(), NodeId: "node-2"})
	wantCode(t, err, codes.OK)
	fence(t, rig.Ledger)
	_, err = c.ControllerPublishVolume(ctx, publishRequest(other, nodeID))
	wantCode(t, err, codes.OK)
}

// slowGrants block until the test opens them.
type slowGrants struct {
	csi.Grants
	begun, open chan struct{}
}

func (s slowGrants) Grant(ctx context.Context, g volume.Grant) (volume.Grant, error) {
	s.begun <- struct{}{}
	<-s.open
	return s.Grants.Grant(ctx, g)
}

// A fence waits for a grant in flight; a later grant is refused.
func TestFenceWaitsForPublish(t *testing.T) {
	slow := slowGrants{begun: make(chan struct{}), open: make(chan struct{})}
	rig := newPlugin(t, options{Grants: func(g csi.Grants) csi.Grants { slow.Grants = g; return slow }})
	dualStack(t, rig.Ledger)
	v := rig.MustCreate(t, "v", mountCap())
	published := make(chan error, 1)
	go func() {
		_, err := rig.Controller.ControllerPublishVolume(t.Context(), publishRequest(v, nodeID))
		published <- err
	}()
	<-slow.begun
	fence(t, rig.Ledger, "192.0.2.1/32")
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	blocks := []netip.Prefix{netip.MustParsePrefix("192.0.2.1/32")}
	if err := rig.Ledger.Quiet(ended, blocks); !errors.Is(err, errs.Unavailable) || !strings.Contains(err.Error(), nodeID) {
		t.Errorf("quiet while a grant runs: %v", err)
	}
	close(slow.open)
	if err := rig.Ledger.Quiet(t.Context(), blocks); err != nil {
		t.Error(err)
	}
	wantCode(t, <-published, codes.FailedPrecondition)
	if granted, err := rig.Ledger.Of(t.Context(), volume.ID(v.GetVolumeId())); err != nil || len(granted) != 0 {
		t.Errorf("granted after the fence: %v, %v", granted, err)
	}
}

type remote struct {
	volume.Engine
	locator access.Access
}

func (r remote) Get(ctx context.Context, id volume.ID) (volume.Volume, error) {
	v, err := r.Engine.Get(ctx, id)
	v.Locator = r.locator
	return v, err
}

// A node learns with the grant that the image was migrated since the volume
// context was made.
func TestPublishMigratedImage(t *testing.T) {
	made := access.RBD{Ceph: access.Ceph{ClusterID: "c"}, Pool: "p", Image: "i", ImageID: "1"}
	now := made
	now.ImageID = "2"
	rig := newPlugin(t, options{Backend: func(b *volume.Backend) { b.Engine = remote{b.Engine, now} }})
	id := rig.MustCreate(t, "migrated", blockCap()).GetVolumeId()
	answer, err := rig.Controller.ControllerPublishVolume(t.Context(), &spec.ControllerPublishVolumeRequest{
		VolumeId: id, NodeId: nodeID, VolumeContext: access.Encode(made), VolumeCapability: blockCap(),
	})
	testkit.Must(t, err)
	if got := testkit.Value(access.Decode(access.Encode(made), answer.GetPublishContext()))(t); !access.Equal(got, now) {
		t.Errorf("the node gets %+v, want %+v", got, now)
	}
}

// Locators are compared with Equal; == would panic.
func TestLocatorsWithLists(t *testing.T) {
	locator := access.NVMe{
		Transport: "tcp", NQN: "nqn.2016-06.io.spdk:a",
		Paths: []netip.AddrPort{netip.MustParseAddrPort("192.0.2.1:4420"), netip.MustParseAddrPort("192.0.2.2:4420")},
	}
	other := locator
	other.NQN += "b"
	rig := newPlugin(t, options{Backend: func(b *volume.Backend) { b.Engine = remote{b.Engine, locator} }})
	id := rig.MustCreate(t, "remote", blockCap()).GetVolumeId()
	for name, c := range map[string]struct {
		context map[string]string
		same    bool
		code    codes.Code
	}{
		"its own":   {access.Encode(locator), true, codes.OK},
		"another's": {access.Encode(other), false, codes.InvalidArgument},
	} {
		t.Run(name, func(t *testing.T) {
			valid, err := rig.Controller.ValidateVolumeCapabilities(t.Context(), &spec.ValidateVolumeCapabilitiesRequest{
				VolumeId: id, VolumeContext: c.context, VolumeCapabilities: []*spec.VolumeCapability{blockCap()},
			})
			if err != nil || (valid.GetConfirmed() != nil) != c.same {
				t.Errorf("Validate = %v, %v", valid, err)
			}
			_, err = rig.Controller.ControllerPublishVolume(t.Context(), &spec.ControllerPublishVolumeRequest{
				VolumeId: id, NodeId: nodeID, VolumeContext: c.context, VolumeCapability: blockCap(),
			})
			wantCode(t, err, c.code)
		})
	}
}

// unreadable fails one of its reads.
type unreadable struct {
	csi.Grants
	failing *string
}

func (u unreadable) fails(read string) error {
	if *u.failing == read {
		return errs.Errorf(errs.Unavailable, "the record of grants cannot be read")
	}
	return nil
}

func (u unreadable) Of(ctx context.Context, id volume.ID) ([]volume.Grant, error) {
	if err := u.fails("Of"); err != nil {
		return nil, err
	}
	return u.Grants.Of(ctx, id)
}

func (u unreadable) Client(ctx context.Context, node string) (volume.Client, bool, error) {
	if err := u.fails("Client"); err != nil {
		return volume.Client{}, false, err
	}
	return u.Grants.Client(ctx, node)
}

func (u unreadable) All(ctx context.Context, after volume.ID, limit int) ([]volume.Grant, error) {
	if err := u.fails("All"); err != nil {
		return nil, err
	}
	return u.Grants.All(ctx, after, limit)
}

func (u unreadable) Clients(ctx context.Context) ([]volume.Client, error) {
	if err := u.fails("Clients"); err != nil {
		return nil, err
	}
	return u.Grants.Clients(ctx)
}

// A volume whose grants cannot be read is not one without grants.
func TestUnreadableGrants(t *testing.T) {
	failing := ""
	rig := newPlugin(t, options{Grants: func(g csi.Grants) csi.Grants { return unreadable{g, &failing} }})
	v := rig.MustCreate(t, "v", mountCap())
	testkit.Must(t, testkit.Err(rig.Controller.ControllerPublishVolume(t.Context(), publishRequest(v, nodeID))))
	before := rig.State(t)
	for _, read := range []string{"Of", "Client"} {
		failing = read
		wantCode(t, testkit.Err(rig.Controller.DeleteVolume(t.Context(), &spec.DeleteVolumeRequest{VolumeId: v.GetVolumeId()})), codes.Unavailable)
		wantCode(t, testkit.Err(rig.Controller.ControllerGetVolume(t.Context(), &spec.ControllerGetVolumeRequest{VolumeId: v.GetVolumeId()})), codes.Unavailable)
	}
	for _, read := range []string{"All", "Clients"} {
		failing = read
		wantCode(t, testkit.Err(rig.Controller.ListVolumes(t.Context(), &spec.ListVolumesRequest{})), codes.Unavailable)
	}
	testkit.Diff(t, "state", before, rig.State(t))
}
