package request

import (
	"maps"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/proto"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/volume"
)

// everything is all that a plugin may announce.
var everything = Offer{Topology: true, SnapshotTopology: true, Modify: true}

// parse runs the check of one RPC over bytes from the wire.
type parse func(t *testing.T, data []byte)

// check makes a parse out of the check of one RPC and what must hold for what
// it lets through.
func check[M proto.Message, V any](empty M, parse func(M) (V, error), holds func(t *testing.T, r M, v V)) parse {
	return func(t *testing.T, data []byte) {
		r := proto.Clone(empty).(M)
		if proto.Unmarshal(data, r) != nil {
			return
		}
		before := proto.Clone(r)
		v, err := parse(r)
		if !proto.Equal(before, r) && err == nil {
			t.Error("the request was changed")
		}
		if Fingerprint(r) != Fingerprint(before) {
			t.Error("the fingerprint is not always the same")
		}
		if err == nil {
			holds(t, r, v)
			return
		}
		switch errs.KindOf(err) {
		case errs.Invalid, errs.OutOfRange, errs.BadToken, errs.Precondition:
		default:
			t.Errorf("%v has kind %q", err, errs.KindOf(err))
		}
		if len(err.Error()) > 2000 {
			t.Errorf("a message of %d bytes", len(err.Error()))
		}
	}
}

func fuzz(f *testing.F, seeds []proto.Message, checks []parse) {
	for i := range checks {
		f.Add(byte(i), []byte{})
		for _, seed := range seeds {
			data, err := proto.Marshal(seed)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(byte(i), data)
		}
	}
	f.Fuzz(func(t *testing.T, which byte, data []byte) { checks[int(which)%len(checks)](t, data) })
}

func holdID[M proto.Message, V ~string](t *testing.T, _ M, id V) {
	if id == "" || len(id) > MaxString {
		t.Errorf("id %q", id)
	}
}

func holdPath(t *testing.T, p string) {
	if !path.IsAbs(p) || path.Clean(p) != p || p == "/" || len(p) > 4095 || strings.Contains(p, "\x00") {
		t.Errorf("path %q", p)
	}
}

func holdCapability(t *testing.T, c Capability) {
	switch {
	case c.Mode < 1 || c.Mode > 7 || c.Mode > 2 && c.Mode < 6:
		t.Errorf("mode %v", c.Mode)
	case c.FSType != "" && !slices.Contains(FSTypes(), c.FSType):
		t.Errorf("file system %q", c.FSType)
	case c.Block && (c.FSType != "" || len(c.MountFlags) != 0):
		t.Errorf("block volume with %+v", c)
	}
}

func holdSize(t *testing.T, s volume.SizeRange) {
	if s.Required < 0 || s.Limit < 0 || s.Limit != 0 && s.Limit < s.Required {
		t.Errorf("size %+v", s)
	}
}

func holdParameters(t *testing.T, m map[string]string) {
	for key := range m {
		if strings.HasPrefix(key, reservedPrefix) || key == keyShortFSType {
			t.Errorf("parameter %q reached the engine", key)
		}
	}
}

func holdPage[M proto.Message](t *testing.T, _ M, p Page) {
	if p.Limit < 0 || p.After != "" && volume.CheckID(p.After) != nil {
		t.Errorf("page %+v", p)
	}
}

func holdMetadata[M proto.Message](t *testing.T, _ M, m Metadata) {
	if m.Snapshot == "" || m.From < 0 || m.Batch < 0 {
		t.Errorf("%+v", m)
	}
}

func holdMembers[M proto.Message](t *testing.T, _ M, g GroupMembers) {
	if g.Group == "" || !slices.IsSorted(g.Snapshots) {
		t.Errorf("%+v", g)
	}
}

func holdNewVolume(t *testing.T, _ *csi.CreateVolumeRequest, v NewVolume) {
	holdSize(t, v.Size)
	plain := maps.Clone(v.Parameters)
	for _, key := range v.Mutable {
		delete(plain, key) // the controller checks these against the engine's
	}
	holdParameters(t, plain)
	for _, c := range v.Capabilities {
		holdCapability(t, c)
		if !c.Block && v.Content != volume.Filesystem {
			t.Errorf("content %q for a mount", v.Content)
		}
	}
	switch {
	case v.Name == "" || len(v.Name) > MaxString || strings.ContainsFunc(v.Name, isBanned):
		t.Errorf("name %q", v.Name)
	case len(v.Capabilities) == 0 || v.Parameters == nil || v.Source.Volume != "" && v.Source.Snapshot != "":
		t.Errorf("%+v", v)
	case v.Content != volume.Raw && v.Content != volume.Filesystem, v.Content == volume.Raw && v.FSType != "":
		t.Errorf("content %q, file system %q", v.Content, v.FSType)
	}
}

func FuzzController(f *testing.F) {
	seeds := []proto.Message{
		&csi.CreateVolumeRequest{
			Name: "n", CapacityRange: &csi.CapacityRange{RequiredBytes: 1, LimitBytes: 2}, VolumeCapabilities: []*csi.VolumeCapability{mountCap(), blockCap()},
			Parameters: map[string]string{"fsType": "xfs", "provisioning": "thin"}, Secrets: map[string]string{"a": "b"},
			AccessibilityRequirements: &csi.TopologyRequirement{Requisite: []*csi.Topology{topology("a.b/zone", "z")}},
		},
		&csi.ListVolumesRequest{MaxEntries: 2, StartingToken: ListOfVolumes.Token("vol-1")},
		&csi.ControllerExpandVolumeRequest{VolumeId: "v", CapacityRange: &csi.CapacityRange{RequiredBytes: 1}},
	}
	nothing := func(*testing.T, *csi.ListSnapshotsRequest, SnapshotList) {}
	fuzz(f, seeds, []parse{
		check(&csi.CreateVolumeRequest{}, func(r *csi.CreateVolumeRequest) (NewVolume, error) { return CreateVolume(r, everything) }, holdNewVolume),
		check(&csi.DeleteVolumeRequest{}, DeleteVolume, holdID),
		check(&csi.ControllerGetVolumeRequest{}, ControllerGetVolume, holdID),
		check(&csi.ControllerGetVolumeHealthRequest{}, ControllerGetVolumeHealth, holdID),
		check(&csi.DeleteSnapshotRequest{}, DeleteSnapshot, holdID),
		check(&csi.GetSnapshotRequest{}, GetSnapshot, holdID),
		check(&csi.ListVolumesRequest{}, ListVolumes, holdPage),
		check(&csi.ControllerListVolumeHealthRequest{}, ControllerListVolumeHealth, holdPage),
		check(&csi.ListSnapshotsRequest{}, ListSnapshots, nothing),
		check(&csi.ValidateVolumeCapabilitiesRequest{}, ValidateVolumeCapabilities, func(t *testing.T, r *csi.ValidateVolumeCapabilitiesRequest, v Validation) {
			holdID(t, r, v.Volume)
			holdParameters(t, v.Parameters)
		}),
		check(&csi.ControllerExpandVolumeRequest{}, ControllerExpandVolume, func(t *testing.T, r *csi.ControllerExpandVolumeRequest, e Expansion) {
			holdID(t, r, e.Volume)
			holdSize(t, e.Size)
			if e.Size == (volume.SizeRange{}) {
				t.Error("no size")
			}
		}),
		check(&csi.ControllerModifyVolumeRequest{}, ControllerModifyVolume, func(t *testing.T, r *csi.ControllerModifyVolumeRequest, m Modification) {
			holdID(t, r, m.Volume)
			for key := range maps.Keys(m.Parameters) {
				if strings.HasPrefix(key, reservedPrefix) {
					t.Errorf("parameter %q reached the engine", key)
				}
			}
		}),
		check(&csi.GetCapacityRequest{}, func(r *csi.GetCapacityRequest) (Capacity, error) { return GetCapacity(r, everything) },
			func(t *testing.T, _ *csi.GetCapacityRequest, c Capacity) { holdParameters(t, c.Query.Parameters) }),
		check(&csi.CreateSnapshotRequest{}, func(r *csi.CreateSnapshotRequest) (NewSnapshot, error) { return CreateSnapshot(r, everything) },
			func(t *testing.T, r *csi.CreateSnapshotRequest, s NewSnapshot) { holdID(t, r, s.Source) }),
		check(&csi.ControllerPublishVolumeRequest{}, ControllerPublishVolume, func(t *testing.T, _ *csi.ControllerPublishVolumeRequest, p ControllerPublish) {
			holdCapability(t, p.Capability)
			if p.Node == "" || len(p.Node) > MaxNodeID {
				t.Errorf("node %q", p.Node)
			}
		}),
		check(&csi.ControllerUnpublishVolumeRequest{}, ControllerUnpublishVolume, func(t *testing.T, r *csi.ControllerUnpublishVolumeRequest, u ControllerUnpublish) {
			holdID(t, r, u.Volume)
		}),
	})
}

func FuzzNode(f *testing.F) {
	ephemeral := publishRequest()
	ephemeral.VolumeContext = map[string]string{keyEphemeral: "true", "size": "1Gi"}
	fuzz(f, []proto.Message{stageRequest(), publishRequest(), ephemeral}, []parse{
		check(&csi.NodeStageVolumeRequest{}, NodeStageVolume, func(t *testing.T, r *csi.NodeStageVolumeRequest, s NodeStage) {
			holdID(t, r, s.Volume)
			holdPath(t, s.Staging)
			holdCapability(t, s.Capability)
		}),
		check(&csi.NodePublishVolumeRequest{}, NodePublishVolume, func(t *testing.T, r *csi.NodePublishVolumeRequest, p NodePublish) {
			holdID(t, r, p.Volume)
			holdPath(t, p.Target)
			holdCapability(t, p.Capability)
			switch {
			case p.Ephemeral == nil:
				holdPath(t, p.Staging)
			case p.Locator != nil || p.Staging != "":
				t.Errorf("an ephemeral volume is at %q, %v", p.Staging, p.Locator)
			default:
				holdSize(t, p.Ephemeral.Size)
				holdParameters(t, p.Ephemeral.Parameters)
			}
		}),
		check(&csi.NodeUnstageVolumeRequest{}, NodeUnstageVolume, func(t *testing.T, r *csi.NodeUnstageVolumeRequest, u NodeUnstage) {
			holdID(t, r, u.Volume)
			if u.CheckPaths() == nil {
				holdPath(t, u.Staging)
			}
		}),
		check(&csi.NodeUnpublishVolumeRequest{}, NodeUnpublishVolume, func(t *testing.T, r *csi.NodeUnpublishVolumeRequest, u NodeUnpublish) {
			holdID(t, r, u.Volume)
			if u.CheckPaths() == nil {
				holdPath(t, u.Target)
			}
		}),
		check(&csi.NodeGetVolumeStatsRequest{}, NodeGetVolumeStats, func(t *testing.T, r *csi.NodeGetVolumeStatsRequest, s NodeStats) { holdID(t, r, s.Volume) }),
		check(&csi.NodeExpandVolumeRequest{}, NodeExpandVolume, func(t *testing.T, r *csi.NodeExpandVolumeRequest, e NodeExpand) {
			holdID(t, r, e.Volume)
			holdSize(t, e.Size)
		}),
		check(&csi.NodeGetVolumeHealthRequest{}, NodeGetVolumeHealth, func(t *testing.T, r *csi.NodeGetVolumeHealthRequest, h NodeHealth) { holdID(t, r, h.Volume) }),
	})
}

func FuzzGroupController(f *testing.F) {
	seeds := []proto.Message{&csi.CreateVolumeGroupSnapshotRequest{Name: "g", SourceVolumeIds: []string{"b", "a"}}}
	fuzz(f, seeds, []parse{
		check(&csi.CreateVolumeGroupSnapshotRequest{}, CreateVolumeGroupSnapshot, func(t *testing.T, _ *csi.CreateVolumeGroupSnapshotRequest, g volume.GroupRequest) {
			if g.Name == "" || len(g.Sources) == 0 || !slices.IsSorted(g.Sources) {
				t.Errorf("%+v", g)
			}
		}),
		check(&csi.DeleteVolumeGroupSnapshotRequest{}, DeleteVolumeGroupSnapshot, holdMembers),
		check(&csi.GetVolumeGroupSnapshotRequest{}, GetVolumeGroupSnapshot, holdMembers),
	})
}

func FuzzSnapshotMetadata(f *testing.F) {
	seeds := []proto.Message{&csi.GetMetadataDeltaRequest{BaseSnapshotId: "a", TargetSnapshotId: "b", StartingOffset: 4096, MaxResults: 3}}
	fuzz(f, seeds, []parse{
		check(&csi.GetMetadataAllocatedRequest{}, GetMetadataAllocated, holdMetadata),
		check(&csi.GetMetadataDeltaRequest{}, GetMetadataDelta, holdMetadata),
	})
}

// The requests of Identity have no fields: there is nothing to check but that
// foreign bytes in them do no harm on the way to a log or a fingerprint.
func FuzzIdentity(f *testing.F) {
	noCheck := func(proto.Message) (struct{}, error) { return struct{}{}, nil }
	holds := func(*testing.T, proto.Message, struct{}) {}
	fuzz(f, nil, []parse{
		check[proto.Message](&csi.GetPluginInfoRequest{}, noCheck, holds),
		check[proto.Message](&csi.GetPluginCapabilitiesRequest{}, noCheck, holds),
		check[proto.Message](&csi.ProbeRequest{}, noCheck, holds),
	})
}
