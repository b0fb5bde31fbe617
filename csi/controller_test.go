package csi_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/cleatproject/cleat/csi"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/volume"
	"github.com/cleatproject/cleat/volume/access"
)

func wantCode(t *testing.T, err error, want codes.Code) {
	t.Helper()
	if status.Code(err) != want {
		t.Errorf("got %v, want code %v", err, want)
	}
}

func wantEqual(t *testing.T, got, want proto.Message) {
	t.Helper()
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestVolumeLife(t *testing.T) {
	rig := newPlugin(t, options{})
	ctx, c := t.Context(), rig.Controller
	req := createRequest("data", mountCap())
	req.AccessibilityRequirements = &spec.TopologyRequirement{Requisite: []*spec.Topology{{Segments: fullDeployment().Topology}}}
	made := testkit.Value(c.CreateVolume(ctx, req))(t)
	v := made.GetVolume()
	again, err := c.CreateVolume(ctx, req)
	wantCode(t, err, codes.OK)
	wantEqual(t, again, made)
	wantEqual(t, v.GetAccessibleTopology()[0], &spec.Topology{Segments: fullDeployment().Topology})
	if v.GetCapacityBytes() != 8<<20 || v.GetContentSource() != nil {
		t.Errorf("volume %v", v)
	}
	kept, err := rig.Reference.Get(ctx, volume.ID(v.GetVolumeId()))
	if err != nil || kept.Content != volume.Filesystem {
		t.Errorf("%+v, %v", kept, err)
	}
	if a, err := access.Decode(v.GetVolumeContext()); err != nil || !access.Equal(a, kept.Locator) {
		t.Errorf("the locator alone must suffice: %v, %v", a, err)
	}
	grown, err := c.ControllerExpandVolume(ctx, &spec.ControllerExpandVolumeRequest{
		VolumeId: v.GetVolumeId(), CapacityRange: &spec.CapacityRange{RequiredBytes: 16 << 20}, VolumeCapability: mountCap(),
	})
	wantCode(t, err, codes.OK)
	wantEqual(t, grown, &spec.ControllerExpandVolumeResponse{CapacityBytes: 16 << 20, NodeExpansionRequired: true})
	got, err := c.ControllerGetVolume(ctx, &spec.ControllerGetVolumeRequest{VolumeId: v.GetVolumeId()})
	if err != nil || got.GetVolume().GetCapacityBytes() != 16<<20 || got.GetStatus() == nil {
		t.Errorf("%v, %v", got, err)
	}
	for range 2 {
		_, err = c.DeleteVolume(ctx, &spec.DeleteVolumeRequest{VolumeId: v.GetVolumeId()})
		wantCode(t, err, codes.OK)
	}
	_, err = c.ControllerGetVolume(ctx, &spec.ControllerGetVolumeRequest{VolumeId: v.GetVolumeId()})
	wantCode(t, err, codes.NotFound)
}

func TestDeleteOfAVolumeInUse(t *testing.T) {
	rig := newPlugin(t, options{})
	v := rig.MustCreate(t, "held", blockCap())
	release, err := rig.Reference.Hold(volume.ID(v.GetVolumeId()))
	testkit.Must(t, err)
	_, err = rig.Controller.DeleteVolume(t.Context(), &spec.DeleteVolumeRequest{VolumeId: v.GetVolumeId()})
	wantCode(t, err, codes.FailedPrecondition)
	release()
	_, err = rig.Controller.DeleteVolume(t.Context(), &spec.DeleteVolumeRequest{VolumeId: v.GetVolumeId()})
	wantCode(t, err, codes.OK)
}

func TestMutableParameters(t *testing.T) {
	rig := newPlugin(t, options{})
	ctx, c := t.Context(), rig.Controller
	req := createRequest("m", mountCap())
	req.Parameters = map[string]string{"provisioning": "thin", "csi.storage.k8s.io/pvc/name": "claim"}
	req.MutableParameters = map[string]string{"provisioning": "thick"}
	made, err := c.CreateVolume(ctx, req)
	testkit.Must(t, err)
	id := made.GetVolume().GetVolumeId()
	attribute := func(key, want string) {
		t.Helper()
		v, err := rig.Reference.Get(ctx, volume.ID(id))
		if err != nil || v.Attributes[key] != want {
			t.Errorf("%s is %q, %v; want %q", key, v.Attributes[key], err, want)
		}
	}
	attribute("provisioning", "thick")
	_, err = c.ControllerModifyVolume(ctx, &spec.ControllerModifyVolumeRequest{VolumeId: id, MutableParameters: map[string]string{
		"readAheadKiB": "512", "csi.storage.k8s.io/pv/name": "x",
	}})
	wantCode(t, err, codes.OK)
	attribute("readAheadKiB", "512")
	attribute("provisioning", "thick")

	perNode := csi.Deployment{Services: csi.Services{Controller: true}, PerNode: true}
	other := newPlugin(t, options{Deployment: &perNode})
	_, err = other.Controller.CreateVolume(ctx, req)
	wantCode(t, err, codes.InvalidArgument)
}

// An option with which no pod could start is refused before the volume exists.
func TestMountOptionsAtCreation(t *testing.T) {
	perNode := csi.Deployment{Services: csi.Services{Controller: true}, PerNode: true}
	here, elsewhere := newPlugin(t, options{Deployment: &perNode}), newPlugin(t, options{})
	for flag, want := range map[string][2]codes.Code{ // of one driver for each node, and of one for the cluster
		"noatime":             {codes.OK, codes.OK},
		"data=ordered":        {codes.InvalidArgument, codes.OK}, // of ext4
		"turbo":               {codes.InvalidArgument, codes.OK},
		"remount":             {codes.InvalidArgument, codes.InvalidArgument},
		"x-systemd.automount": {codes.OK, codes.OK},
	} {
		c := mountCap()
		c.GetMount().FsType, c.GetMount().MountFlags = "xfs", []string{flag}
		for i, p := range []*plugin{here, elsewhere} {
			_, err := p.Controller.CreateVolume(t.Context(), createRequest("with "+flag, c))
			wantCode(t, err, want[i])
		}
	}
}

func TestSources(t *testing.T) {
	rig := newPlugin(t, options{})
	v := rig.MustCreate(t, "source", mountCap())
	snap := rig.MustSnapshot(t, "snap", v.GetVolumeId())
	for name, source := range map[string]*spec.VolumeContentSource{
		"clone":   {Type: &spec.VolumeContentSource_Volume{Volume: &spec.VolumeContentSource_VolumeSource{VolumeId: v.GetVolumeId()}}},
		"restore": {Type: &spec.VolumeContentSource_Snapshot{Snapshot: &spec.VolumeContentSource_SnapshotSource{SnapshotId: snap.GetSnapshotId()}}},
	} {
		req := createRequest(name, mountCap())
		req.VolumeContentSource = source
		req.CapacityRange.RequiredBytes = 32 << 20
		made, err := rig.Controller.CreateVolume(t.Context(), req)
		testkit.Must(t, err)
		wantEqual(t, made.GetVolume().GetContentSource(), source)
		if made.GetVolume().GetCapacityBytes() != 32<<20 {
			t.Errorf("%s has %d bytes", name, made.GetVolume().GetCapacityBytes())
		}
		noAbility := newPlugin(t, options{Backend: func(b *volume.Backend) { b.Snapshots, b.Clones = nil, false }})
		_, err = noAbility.Controller.CreateVolume(t.Context(), req)
		wantCode(t, err, codes.InvalidArgument)
	}
}

func TestValidateVolumeCapabilities(t *testing.T) {
	rig := newPlugin(t, options{})
	v, block := rig.MustCreate(t, "fs", mountCap()), rig.MustCreate(t, "raw", blockCap())
	type request = spec.ValidateVolumeCapabilitiesRequest
	caps := func(all ...*spec.VolumeCapability) []*spec.VolumeCapability { return all }
	mode := func(c *spec.VolumeCapability, m spec.VolumeCapability_AccessMode_Mode) *spec.VolumeCapability {
		c.AccessMode.Mode = m
		return c
	}
	xfs := mountCap()
	xfs.GetMount().FsType = "xfs"
	context := v.GetVolumeContext()
	context["storage.kubernetes.io/csiProvisionerIdentity"] = "someone"
	for name, c := range map[string]struct {
		req       *request
		confirmed bool
	}{
		"mount":              {&request{VolumeId: v.GetVolumeId(), VolumeCapabilities: caps(mountCap())}, true},
		"as block too":       {&request{VolumeId: v.GetVolumeId(), VolumeCapabilities: caps(mountCap(), blockCap())}, true},
		"all single modes":   {&request{VolumeId: v.GetVolumeId(), VolumeCapabilities: caps(mode(mountCap(), 6), mode(mountCap(), 7), mode(mountCap(), 2))}, true},
		"context":            {&request{VolumeId: v.GetVolumeId(), VolumeCapabilities: caps(mountCap()), VolumeContext: context}, true},
		"parameters":         {&request{VolumeId: v.GetVolumeId(), VolumeCapabilities: caps(mountCap()), Parameters: map[string]string{"provisioning": "thin"}}, true},
		"foreign context":    {&request{VolumeId: v.GetVolumeId(), VolumeCapabilities: caps(mountCap()), VolumeContext: block.GetVolumeContext()}, false},
		"one of two":         {&request{VolumeId: v.GetVolumeId(), VolumeCapabilities: caps(mountCap(), mode(mountCap(), 5))}, false},
		"future mode":        {&request{VolumeId: v.GetVolumeId(), VolumeCapabilities: caps(mode(mountCap(), 50))}, false},
		"other file system":  {&request{VolumeId: v.GetVolumeId(), VolumeCapabilities: caps(xfs)}, false},
		"unknown fsType":     {&request{VolumeId: v.GetVolumeId(), VolumeCapabilities: caps(mountCap()), Parameters: map[string]string{"fsType": "zfs"}}, false},
		"unknown access":     {&request{VolumeId: v.GetVolumeId(), VolumeCapabilities: caps(mountCap()), VolumeContext: map[string]string{"targetType": "iscsi"}}, false},
		"mount a block":      {&request{VolumeId: block.GetVolumeId(), VolumeCapabilities: caps(mountCap())}, false},
		"other parameters":   {&request{VolumeId: v.GetVolumeId(), VolumeCapabilities: caps(mountCap()), Parameters: map[string]string{"provisioning": "thick"}}, false},
		"other mutable":      {&request{VolumeId: v.GetVolumeId(), VolumeCapabilities: caps(mountCap()), MutableParameters: map[string]string{"readAheadKiB": "1"}}, false},
		"unknown parameters": {&request{VolumeId: v.GetVolumeId(), VolumeCapabilities: caps(mountCap()), Parameters: map[string]string{"color": "red"}}, false},
	} {
		t.Run(name, func(t *testing.T) {
			r, err := rig.Controller.ValidateVolumeCapabilities(t.Context(), c.req)
			wantCode(t, err, codes.OK)
			if (r.GetConfirmed() != nil) != c.confirmed || (r.GetMessage() == "") != c.confirmed || len(r.GetMessage()) > 128 {
				t.Errorf("got %v", r)
			}
			if c.confirmed {
				wantEqual(t, r.GetConfirmed(), &spec.ValidateVolumeCapabilitiesResponse_Confirmed{
					VolumeContext: c.req.VolumeContext, VolumeCapabilities: c.req.VolumeCapabilities, Parameters: c.req.Parameters,
				})
			}
		})
	}
}

func TestCapacity(t *testing.T) {
	rig := newPlugin(t, options{})
	r, err := rig.Controller.GetCapacity(t.Context(), &spec.GetCapacityRequest{
		VolumeCapabilities: []*spec.VolumeCapability{mountCap()}, Parameters: map[string]string{"fsType": "xfs"},
		AccessibleTopology: &spec.Topology{Segments: fullDeployment().Topology},
	})
	if err != nil || r.GetAvailableCapacity() != 1<<40 || r.GetMaximumVolumeSize().GetValue() != 1<<40 || r.GetMinimumVolumeSize().GetValue() != 1<<20 {
		t.Errorf("%v, %v", r, err)
	}
	r, err = rig.Controller.GetCapacity(t.Context(), &spec.GetCapacityRequest{
		AccessibleTopology: &spec.Topology{Segments: map[string]string{"topology.csi.cleat.dev/node": "elsewhere"}},
	})
	wantCode(t, err, codes.OK)
	wantEqual(t, r, &spec.GetCapacityResponse{})
}

// Without capabilities, wrong parameters are refused only when a volume is
// created.
func TestCapacityForAScheduler(t *testing.T) {
	rig := newPlugin(t, options{})
	for _, parameters := range []map[string]string{{"colour": "red"}, {"fsType": "ext5"}, {"csi.storage.k8s.io/fstype": "ext5"}} {
		r, err := rig.Controller.GetCapacity(t.Context(), &spec.GetCapacityRequest{
			Parameters: parameters, AccessibleTopology: &spec.Topology{Segments: fullDeployment().Topology},
		})
		if err != nil || r.GetAvailableCapacity() != 1<<40 || r.GetMaximumVolumeSize().GetValue() != 1<<40 {
			t.Errorf("%v: %v, %v", parameters, r, err)
		}
		r, err = rig.Controller.GetCapacity(t.Context(), &spec.GetCapacityRequest{
			Parameters: parameters, AccessibleTopology: &spec.Topology{Segments: map[string]string{"topology.csi.cleat.dev/node": "elsewhere"}},
		})
		wantCode(t, err, codes.OK)
		wantEqual(t, r, &spec.GetCapacityResponse{})
		_, err = rig.Controller.GetCapacity(t.Context(), &spec.GetCapacityRequest{
			Parameters: parameters, VolumeCapabilities: []*spec.VolumeCapability{mountCap()},
		})
		wantCode(t, err, codes.InvalidArgument)
	}
	_, err := rig.Controller.GetCapacity(t.Context(), &spec.GetCapacityRequest{
		Parameters: map[string]string{"colour": "red"}, AccessibleTopology: &spec.Topology{Segments: map[string]string{"a b": "c"}},
	})
	wantCode(t, err, codes.InvalidArgument)
}

func TestHealth(t *testing.T) {
	rig := newPlugin(t, options{})
	ctx, c := t.Context(), rig.Controller
	var ids []string
	for i := range 6 {
		ids = append(ids, rig.MustCreate(t, fmt.Sprint("v", i), mountCap()).GetVolumeId())
	}
	sick := []string{ids[1], ids[2], ids[5]}
	for _, id := range sick {
		testkit.Must(t, rig.Reference.Report(volume.ID(id), volume.Condition{Severity: volume.DataLoss, Reason: "BackingFileMissing", Message: "gone"}))
	}
	well, err := c.ControllerGetVolumeHealth(ctx, &spec.ControllerGetVolumeHealthRequest{VolumeId: ids[0]})
	wantCode(t, err, codes.OK)
	wantEqual(t, well, &spec.ControllerGetVolumeHealthResponse{VolumeHealth: &spec.VolumeHealth{VolumeId: ids[0]}})
	var seen []string
	for token, pages := "", 0; pages == 0 || token != ""; pages++ {
		r, err := c.ControllerListVolumeHealth(ctx, &spec.ControllerListVolumeHealthRequest{MaxEntries: 2, StartingToken: token})
		wantCode(t, err, codes.OK)
		for _, e := range r.GetEntries() {
			seen = append(seen, e.GetVolumeId())
			wantEqual(t, e.GetHealthStatuses()[0], &spec.VolumeHealth_VolumeHealthEntry{
				Status: spec.VolumeHealthErrorType_DATA_LOSS, Reason: "BackingFileMissing", Message: "gone",
			})
		}
		token = r.GetNextToken()
	}
	if !slices.Equal(seen, sick) {
		t.Errorf("listed %q, want %q", seen, sick)
	}
}

// With one driver per node, external-provisioner returns a claim to the
// scheduler only for RESOURCE_EXHAUSTED.
func TestSourceInAnotherPool(t *testing.T) {
	const (
		own   = "7d1f5a52-3c77-4d43-8a1e-0123456789ab"
		other = "7d1f5a52-3c77-4d43-8a1e-ba9876543210"
	)
	perNode := csi.Deployment{Services: csi.Services{Controller: true}, PerNode: true}
	inOwnPool := func(b *volume.Backend) { b.Pool = own }
	nodes := newPlugin(t, options{Deployment: &perNode, Backend: inOwnPool})
	single := newPlugin(t, options{Backend: inOwnPool})
	for name, c := range map[string]struct {
		snapshot, volume string // ids
		want             codes.Code
	}{
		"of this pool, deleted":     {string(volume.NewSnapshotID(own)), string(volume.NewID(own)), codes.NotFound},
		"of another pool":           {string(volume.NewSnapshotID(other)), string(volume.NewID(other)), codes.ResourceExhausted},
		"of an id without pool":     {string(volume.NewSnapshotID("")), string(volume.NewID("")), codes.ResourceExhausted},
		"of an id that is not ours": {"fake-snap-id", "vol-0", codes.NotFound},
	} {
		for kind, source := range map[string]*spec.VolumeContentSource{
			"snapshot": {Type: &spec.VolumeContentSource_Snapshot{Snapshot: &spec.VolumeContentSource_SnapshotSource{SnapshotId: c.snapshot}}},
			"volume":   {Type: &spec.VolumeContentSource_Volume{Volume: &spec.VolumeContentSource_VolumeSource{VolumeId: c.volume}}},
		} {
			t.Run(kind+" "+name, func(t *testing.T) {
				req := createRequest("from "+kind+" "+name, mountCap())
				req.VolumeContentSource = source
				_, err := nodes.Controller.CreateVolume(t.Context(), req)
				wantCode(t, err, c.want)
				if text := status.Convert(err).Message(); c.want == codes.ResourceExhausted && !strings.Contains(text, own) {
					t.Errorf("%q does not say which pool was searched", text)
				}
				_, err = single.Controller.CreateVolume(t.Context(), req)
				wantCode(t, err, codes.NotFound)
			})
		}
	}
}
