package csi_test

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"testing"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"google.golang.org/grpc/codes"

	"github.com/cleatproject/cleat/csi"
	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/ledger"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/volume"
	"github.com/cleatproject/cleat/volume/access"
)

const idDPU = "dpu-1"

// granter is a storage that admits the nodes with a grant.
type granter struct {
	ledger *ledger.Ledger
	fail   error

	mu       sync.Mutex
	calls    int
	admitted map[volume.ID][]string
}

func (g *granter) Enforce(ctx context.Context, id volume.ID) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.calls++
	if g.fail != nil {
		return g.fail
	}
	admitted, err := g.ledger.Admitted(ctx, id)
	if err != nil {
		return err
	}
	g.admitted[id] = nil
	for _, a := range admitted {
		g.admitted[id] = append(g.admitted[id], a.Node)
	}
	return nil
}

func (g *granter) Revoke(ctx context.Context, id volume.ID, _ string) error {
	return g.Enforce(ctx, id)
}

func grantingDeployment(s csi.Services) csi.Deployment {
	return csi.Deployment{Services: s, ControllerPublish: true, MultiNode: true, StorageGrants: true, PlainNodeIDs: true}
}

// newGranting serves volumes of a storage that admits single nodes.
func newGranting(t *testing.T) (*plugin, *granter) {
	t.Helper()
	g := &granter{admitted: map[volume.ID][]string{}}
	deployment := grantingDeployment(csi.Services{Controller: true})
	rig := newPlugin(t, options{Deployment: &deployment, Backend: func(b *volume.Backend) {
		b.MultiNode, b.FormatOnNode, b.Granter = true, true, g
	}})
	g.ledger = rig.Ledger
	return rig, g
}

func TestStorageAdmitsWhatIsPublished(t *testing.T) {
	rig, g := newGranting(t)
	ctx, c := t.Context(), rig.Controller
	v := rig.MustCreate(t, "v", blockCap())
	want := func(step string, calls int, nodes ...string) {
		t.Helper()
		if got := g.admitted[volume.ID(v.GetVolumeId())]; !slices.Equal(got, nodes) || g.calls != calls {
			t.Errorf("%s: the storage admits %q after %d calls, want %q after %d", step, got, g.calls, nodes, calls)
		}
	}
	request := func(id string, readonly bool) *spec.ControllerPublishVolumeRequest {
		r := publishRequest(v, id)
		r.VolumeCapability = withAccess(blockCap(), spec.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER)
		r.Readonly = readonly
		return r
	}
	for i, r := range []*spec.ControllerPublishVolumeRequest{request(idDPU, false), request(idDPU, false), request(idOne, true)} {
		answer, err := c.ControllerPublishVolume(ctx, r)
		wantCode(t, err, codes.OK)
		want := map[string]string{}
		if r.GetReadonly() {
			want["grantedReadOnly"] = "true"
		}
		if diff := cmp.Diff(want, answer.GetPublishContext(), cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("publish %d: publish_context (-want +got):\n%s", i, diff)
		}
	}
	want("published", 3, idDPU, "node-1")
	rig.wantPublished(t, v, idDPU, idOne)
	unpublish := func(node string) error {
		_, err := c.ControllerUnpublishVolume(ctx, &spec.ControllerUnpublishVolumeRequest{VolumeId: v.GetVolumeId(), NodeId: node})
		return err
	}
	wantCode(t, unpublish(idDPU), codes.OK)
	want("unpublished", 4, "node-1")
	wantCode(t, unpublish(idDPU), codes.OK) // the first call can have failed after the record
	want("no grant", 5, "node-1")
	wantCode(t, unpublish(""), codes.OK)
	want("of all", 6)
	_, err := c.ControllerUnpublishVolume(ctx, &spec.ControllerUnpublishVolumeRequest{VolumeId: "absent", NodeId: idOne})
	wantCode(t, err, codes.OK)
}

// An error of the storage is returned, and a repeat completes the call.
func TestStorageThatFailsToAdmit(t *testing.T) {
	rig, g := newGranting(t)
	ctx, c := t.Context(), rig.Controller
	v := rig.MustCreate(t, "v", mountCap())
	unpublish := &spec.ControllerUnpublishVolumeRequest{VolumeId: v.GetVolumeId(), NodeId: idOne}
	for _, step := range []struct {
		fail error
		code codes.Code
	}{
		{errs.Errorf(errs.Unavailable, "target a does not answer"), codes.Unavailable},
		{errors.New("broken"), codes.Internal},
		{nil, codes.OK},
	} {
		g.fail = step.fail
		_, err := c.ControllerPublishVolume(ctx, publishRequest(v, idOne))
		wantCode(t, err, step.code)
		rig.wantPublished(t, v, idOne)
	}
	g.fail = errs.Errorf(errs.Unavailable, "target a does not answer")
	_, err := c.ControllerUnpublishVolume(ctx, unpublish)
	wantCode(t, err, codes.Unavailable)
	// The node can still be connected: no other node gets the volume.
	rig.wantPublished(t, v, idOne)
	_, err = c.ControllerPublishVolume(ctx, publishRequest(v, idDPU))
	wantCode(t, err, codes.FailedPrecondition)
	g.fail = nil
	_, err = c.ControllerUnpublishVolume(ctx, unpublish)
	wantCode(t, err, codes.OK)
	if got := g.admitted[volume.ID(v.GetVolumeId())]; len(got) != 0 {
		t.Errorf("the storage admits %q after an unpublish that was repeated", got)
	}
}

// Several nodes can read a file system, as no node can change it.
func TestReadersOfAFileSystem(t *testing.T) {
	rig, _ := newGranting(t)
	ctx, c := t.Context(), rig.Controller
	capability := withAccess(mountCap(), spec.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY)
	v := rig.MustCreate(t, "v", capability)
	request := func(id string, capability *spec.VolumeCapability) *spec.ControllerPublishVolumeRequest {
		r := publishRequest(v, id)
		r.VolumeCapability = capability
		return r
	}
	for _, step := range []struct {
		node       string
		capability *spec.VolumeCapability
		code       codes.Code
	}{
		{idOne, capability, codes.OK},
		{idDPU, mountCap(), codes.FailedPrecondition},
		{idDPU, withAccess(mountCap(), spec.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER), codes.InvalidArgument},
		{idDPU, capability, codes.OK},
	} {
		_, err := c.ControllerPublishVolume(ctx, request(step.node, step.capability))
		wantCode(t, err, step.code)
	}
}

// A DPU keeps its plain name in lists after the storage has reported its
// addresses, by which a fence finds it.
func TestPlainNodeIDs(t *testing.T) {
	rig, _ := newGranting(t)
	ctx, c := t.Context(), rig.Controller
	before, after := rig.MustCreate(t, "before", mountCap()), rig.MustCreate(t, "after", mountCap())
	_, err := c.ControllerPublishVolume(ctx, publishRequest(before, idDPU))
	wantCode(t, err, codes.OK)
	testkit.Must(t, rig.Ledger.RecordClient(ctx, volume.Client{Node: idDPU, Addrs: addrs("192.0.2.9")}))
	for _, v := range []*spec.Volume{before, after} {
		_, err = c.ControllerPublishVolume(ctx, publishRequest(v, idDPU))
		wantCode(t, err, codes.OK)
		rig.wantPublished(t, v, idDPU)
	}
	fence(t, rig.Ledger, "192.0.2.9/32")
	_, err = c.ControllerPublishVolume(ctx, publishRequest(after, idDPU))
	wantCode(t, err, codes.FailedPrecondition)
	for _, id := range []string{"@192.0.2.1", "a,b", "a b", "a@", "a@host"} {
		_, err = c.ControllerPublishVolume(ctx, publishRequest(after, id))
		wantCode(t, err, codes.NotFound)
	}
}

// A node of such a deployment stages a volume with an empty publish_context:
// the storage is asked, not the node.
func TestNodeOfAStorageThatAdmits(t *testing.T) {
	r := newNodeRig(t, nil, func(c *csi.NodeConfig) { c.Deployment = grantingDeployment(csi.Services{Node: true}) })
	s := r.stage("v", mountCap())
	testkit.Value(r.NodeStageVolume(t.Context(), s))(t)
	p := r.publish(s, "target")
	p.Readonly = true
	testkit.Value(r.NodePublishVolume(t.Context(), p))(t)
	r.undo(s, "target")
}

// described adds keys for node plugins of other drivers.
type described struct {
	volume.Engine
	context map[string]string
}

func (d described) Get(ctx context.Context, id volume.ID) (volume.Volume, error) {
	v, err := d.Engine.Get(ctx, id)
	v.Context = d.context
	return v, err
}

func TestFurtherKeysOfTheVolumeContext(t *testing.T) {
	further := map[string]string{"model": "0f0e0d0c-0b0a-4908-8706-050403020100", "lvstore": "lvs0", "lvolSize": "8388608", "targetType": "other", access.KeyName: "other"}
	given := maps.Clone(further)
	rig := newPlugin(t, options{Backend: func(b *volume.Backend) { b.Engine = described{b.Engine, given} }})
	plain := rig.MustCreate(t, "v", blockCap())
	want := maps.Clone(further)
	maps.Copy(want, plain.GetVolumeContext())
	v := testkit.Value(rig.Controller.ControllerGetVolume(t.Context(), &spec.ControllerGetVolumeRequest{VolumeId: plain.GetVolumeId()}))(t).GetVolume()
	if diff := cmp.Diff(want, v.GetVolumeContext()); diff != "" {
		t.Errorf("volume_context (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(further, given); diff != "" {
		t.Errorf("the engine's map was changed (-want +got):\n%s", diff)
	}
}
