package csi_test

import (
	"context"
	"strings"
	"testing"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/cleatproject/cleat/csi"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/volume"
	"github.com/cleatproject/cleat/volume/access"
)

const (
	readers = spec.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY
	writers = spec.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER
)

func typed(fsType string) *spec.VolumeCapability {
	c := withAccess(mountCap(), writers)
	c.GetMount().FsType = fsType
	return c
}

// filling has the requests of Create, and volumes with some progress of a copy, or
// of a snapshot.
type filling struct {
	volume.Engine
	requests map[string]volume.CreateRequest
	progress volume.Progress
	readOnly bool
}

func (f *filling) Create(ctx context.Context, r volume.CreateRequest) (volume.Volume, error) {
	f.requests[r.Name] = r
	return f.Engine.Create(ctx, r)
}

func (f *filling) Get(ctx context.Context, id volume.ID) (volume.Volume, error) {
	v, err := f.Engine.Get(ctx, id)
	v.Progress, v.ReadOnly = f.progress, f.readOnly
	return v, err
}

// newSharedFS serves directories of a file system that all nodes mount.
func newSharedFS(t *testing.T) (*plugin, *filling) {
	t.Helper()
	f := &filling{requests: map[string]volume.CreateRequest{}}
	return newPlugin(t, options{
		Deployment: &csi.Deployment{Services: csi.Services{Controller: true}, ControllerPublish: true, MultiNode: true, SharedFS: "ceph"},
		Backend: func(b *volume.Backend) {
			f.Engine = b.Engine
			b.Engine, b.MultiNode, b.SharedFS = f, true, "ceph"
		},
	}), f
}

func TestCapabilitiesOfASharedFileSystem(t *testing.T) {
	rig, engine := newSharedFS(t)
	for name, c := range map[string]struct {
		capability *spec.VolumeCapability
		fsType     string // in the parameters
		readOnly   bool
		word       string // of the refusal; empty: accepted
	}{
		"writers":            {capability: withAccess(mountCap(), writers)},
		"readers":            {capability: withAccess(mountCap(), readers), readOnly: true},
		"one writer":         {capability: mountCap()},
		"one reader":         {capability: withAccess(mountCap(), spec.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY), readOnly: true},
		"its own type":       {capability: typed("ceph"), fsType: "ceph"},
		"a writer of many":   {capability: withAccess(mountCap(), spec.VolumeCapability_AccessMode_MULTI_NODE_SINGLE_WRITER), word: "MULTI_NODE_MULTI_WRITER"},
		"block":              {capability: withAccess(blockCap(), writers), word: "volumeMode: Filesystem"},
		"another type":       {capability: typed("xfs"), word: "remove csi.storage.k8s.io/fstype"},
		"type of the class":  {capability: mountCap(), fsType: "ext4", word: "remove csi.storage.k8s.io/fstype"},
		"type of local disk": {capability: typed("EXT4"), word: "EXT4"},
	} {
		r := createRequest(name, c.capability)
		r.Parameters = map[string]string{"csi.storage.k8s.io/fstype": c.fsType}
		answer, err := rig.Controller.CreateVolume(t.Context(), r)
		if c.word != "" {
			if wantCode(t, err, codes.InvalidArgument); !strings.Contains(status.Convert(err).Message(), c.word) {
				t.Errorf("%s: %v does not say %q", name, err, c.word)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if got := engine.requests[name]; got.Content != volume.Filesystem || got.FSType != "" || got.ReadOnly != c.readOnly {
			t.Errorf("%s: the engine got %+v", name, got)
		}
		if format, set := answer.GetVolume().GetVolumeContext()[access.KeyFormat]; set {
			t.Errorf("%s: a node is to create %s", name, format)
		}
		valid := testkit.Value(rig.Controller.ValidateVolumeCapabilities(t.Context(), &spec.ValidateVolumeCapabilitiesRequest{
			VolumeId: answer.GetVolume().GetVolumeId(), VolumeCapabilities: []*spec.VolumeCapability{c.capability},
		}))(t)
		if valid.GetConfirmed() == nil {
			t.Errorf("%s: not confirmed: %s", name, valid.GetMessage())
		}
	}
	both := createRequest("both", withAccess(mountCap(), readers))
	both.VolumeCapabilities = append(both.VolumeCapabilities, mountCap())
	testkit.Value(rig.Controller.CreateVolume(t.Context(), both))(t)
	if engine.requests["both"].ReadOnly {
		t.Error("a volume for readers and a writer is to be read-only")
	}
}

func TestNodesThatShareAFileSystem(t *testing.T) {
	rig, _ := newSharedFS(t)
	ctx, c := t.Context(), rig.Controller
	v := rig.MustCreate(t, "v", withAccess(mountCap(), writers))
	for _, step := range []struct {
		node       string
		capability *spec.VolumeCapability
		code       codes.Code
	}{
		{idOne, withAccess(mountCap(), writers), codes.OK},
		{idTwo, mountCap(), codes.FailedPrecondition},
		{idTwo, withAccess(mountCap(), readers), codes.FailedPrecondition},
		{idTwo, typed("ceph"), codes.OK},
	} {
		r := publishRequest(v, step.node)
		r.VolumeCapability = step.capability
		_, err := c.ControllerPublishVolume(ctx, r)
		wantCode(t, err, step.code)
	}
	rig.wantPublished(t, v, idOne, idTwo)
	// The storage enforces the size: nodes have no device that must learn it.
	grown := testkit.Value(c.ControllerExpandVolume(ctx, &spec.ControllerExpandVolumeRequest{
		VolumeId: v.GetVolumeId(), CapacityRange: &spec.CapacityRange{RequiredBytes: 16 << 20}, VolumeCapability: typed("ceph"),
	}))(t)
	if grown.GetCapacityBytes() != 16<<20 || grown.GetNodeExpansionRequired() {
		t.Errorf("expanded: %v", grown)
	}
}

// The directory of a copy exists before its content.
func TestPublishDuringACopy(t *testing.T) {
	rig, engine := newSharedFS(t)
	v := rig.MustCreate(t, "copy", mountCap())
	engine.progress = volume.Progress{Done: 3, Total: 8}
	_, err := rig.Controller.ControllerPublishVolume(t.Context(), publishRequest(v, idOne))
	if wantCode(t, err, codes.Aborted); !strings.Contains(status.Convert(err).Message(), "3 of 8 bytes") {
		t.Errorf("%v does not say how much is copied", err)
	}
	rig.wantPublished(t, v)
	engine.progress.Failed = "the pool is full"
	_, err = rig.Controller.ControllerPublishVolume(t.Context(), publishRequest(v, idOne))
	if wantCode(t, err, codes.FailedPrecondition); !strings.Contains(status.Convert(err).Message(), "the pool is full") {
		t.Errorf("%v does not say why the copy failed", err)
	}
	rig.wantPublished(t, v)
	engine.progress = volume.Progress{Done: 8, Total: 8}
	_, err = rig.Controller.ControllerPublishVolume(t.Context(), publishRequest(v, idOne))
	wantCode(t, err, codes.OK)
}

// A volume that shows a snapshot has only readers.
func TestVolumeOfASnapshot(t *testing.T) {
	rig, engine := newSharedFS(t)
	v := rig.MustCreate(t, "shown", withAccess(mountCap(), readers))
	engine.readOnly = true
	for capability, code := range map[*spec.VolumeCapability]codes.Code{
		withAccess(mountCap(), writers): codes.InvalidArgument, mountCap(): codes.InvalidArgument, withAccess(mountCap(), readers): codes.OK,
	} {
		valid := testkit.Value(rig.Controller.ValidateVolumeCapabilities(t.Context(), &spec.ValidateVolumeCapabilitiesRequest{
			VolumeId: v.GetVolumeId(), VolumeCapabilities: []*spec.VolumeCapability{capability},
		}))(t)
		if confirmed := valid.GetConfirmed() != nil; confirmed != (code == codes.OK) {
			t.Errorf("%v: confirmed %t", capability.GetAccessMode(), confirmed)
		}
		r := publishRequest(v, idOne)
		r.VolumeCapability = capability
		_, err := rig.Controller.ControllerPublishVolume(t.Context(), r)
		wantCode(t, err, code)
	}
}
