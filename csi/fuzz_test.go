package csi

import (
	"context"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/op"
	"github.com/cleatproject/cleat/node"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/volume"
)

// call decodes a request and calls a method.
type call func(t *testing.T, data []byte)

// holds checks the answer.
func callOf[M proto.Message, A any](empty M, method func(M) (A, error), holds func(t *testing.T, r M, answer A)) call {
	return func(t *testing.T, data []byte) {
		r := proto.Clone(empty).(M)
		if proto.Unmarshal(data, r) != nil {
			return
		}
		before := proto.Clone(r)
		answer, err := method(r)
		if !proto.Equal(before, r) {
			t.Error("the request was changed")
		}
		if fingerprint(r) != fingerprint(before) {
			t.Error("the fingerprint is not always the same")
		}
		if err == nil {
			holds(t, r, answer)
			return
		}
		switch errs.KindOf(err) {
		case errs.Invalid, errs.OutOfRange, errs.BadToken, errs.Precondition, errs.Exhausted, errs.NotFound:
		default:
			t.Errorf("%v has kind %q", err, errs.KindOf(err))
		}
		if len(err.Error()) > 2000 {
			t.Errorf("a message of %d bytes", len(err.Error()))
		}
	}
}

func unary[M proto.Message, A any](empty M, method func(context.Context, M) (A, error)) call {
	return callOf(empty, func(r M) (A, error) { return method(context.Background(), r) }, func(*testing.T, M, A) {})
}

func fuzz(f *testing.F, seeds []proto.Message, calls func(*testing.T) []call) {
	for i := range calls(nil) {
		f.Add(byte(i), []byte{})
		for _, seed := range seeds {
			data := testkit.Value(proto.Marshal(seed))(f)
			f.Add(byte(i), data)
		}
	}
	f.Fuzz(func(t *testing.T, which byte, data []byte) {
		all := calls(t)
		all[int(which)%len(all)](t, data)
	})
}

func fuzzController(f *testing.F, seeds []proto.Message, calls func(*Controller) []call) {
	operations := op.New(context.Background(), time.Minute)
	f.Cleanup(func() {
		if err := operations.Close(context.Background()); err != nil {
			f.Error(err)
		}
	})
	fuzz(f, seeds, func(t *testing.T) []call {
		return slices.Concat(calls(checkingController(t, operations, "")), calls(checkingController(t, operations, "ceph")))
	})
}

func FuzzController(f *testing.F) {
	seeds := []proto.Message{
		&spec.CreateVolumeRequest{
			Name: "n", CapacityRange: &spec.CapacityRange{RequiredBytes: 1, LimitBytes: 2}, VolumeCapabilities: []*spec.VolumeCapability{mountCap(), blockCap()},
			Parameters: map[string]string{"fsType": "xfs", "provisioning": "thin"}, Secrets: map[string]string{"a": "b"},
			AccessibilityRequirements: &spec.TopologyRequirement{Requisite: []*spec.Topology{topology("a.b/zone", "z")}},
		},
		&spec.ListVolumesRequest{MaxEntries: 2, StartingToken: listOfVolumes.token("vol-1")},
		&spec.ControllerExpandVolumeRequest{VolumeId: "v", CapacityRange: &spec.CapacityRange{RequiredBytes: 1}},
		&spec.ControllerPublishVolumeRequest{VolumeId: "v", NodeId: "n", VolumeCapability: mountCap(), VolumeContext: locator()},
		&spec.ControllerPublishVolumeRequest{VolumeId: "v", NodeId: "n@192.0.2.1", VolumeCapability: withMode(mountCap(), spec.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER)},
	}
	fuzzController(f, seeds, func(c *Controller) []call {
		return []call{
			unary(&spec.CreateVolumeRequest{}, c.CreateVolume),
			unary(&spec.DeleteVolumeRequest{}, c.DeleteVolume),
			unary(&spec.ControllerGetVolumeRequest{}, c.ControllerGetVolume),
			unary(&spec.ControllerGetVolumeHealthRequest{}, c.ControllerGetVolumeHealth),
			unary(&spec.DeleteSnapshotRequest{}, c.DeleteSnapshot),
			unary(&spec.GetSnapshotRequest{}, c.GetSnapshot),
			unary(&spec.ListVolumesRequest{}, c.ListVolumes),
			unary(&spec.ControllerListVolumeHealthRequest{}, c.ControllerListVolumeHealth),
			unary(&spec.ListSnapshotsRequest{}, c.ListSnapshots),
			unary(&spec.ValidateVolumeCapabilitiesRequest{}, c.ValidateVolumeCapabilities),
			unary(&spec.ControllerExpandVolumeRequest{}, c.ControllerExpandVolume),
			unary(&spec.ControllerModifyVolumeRequest{}, c.ControllerModifyVolume),
			unary(&spec.GetCapacityRequest{}, c.GetCapacity),
			unary(&spec.CreateSnapshotRequest{}, c.CreateSnapshot),
			unary(&spec.ControllerPublishVolumeRequest{}, c.ControllerPublishVolume),
			unary(&spec.ControllerUnpublishVolumeRequest{}, c.ControllerUnpublishVolume),
		}
	})
}

func FuzzGroupController(f *testing.F) {
	seeds := []proto.Message{&spec.CreateVolumeGroupSnapshotRequest{Name: "g", SourceVolumeIds: []string{"b", "a"}}}
	fuzzController(f, seeds, func(c *Controller) []call {
		return []call{
			unary(&spec.CreateVolumeGroupSnapshotRequest{}, c.CreateVolumeGroupSnapshot),
			unary(&spec.DeleteVolumeGroupSnapshotRequest{}, c.DeleteVolumeGroupSnapshot),
			unary(&spec.GetVolumeGroupSnapshotRequest{}, c.GetVolumeGroupSnapshot),
		}
	})
}

type discard[M any] struct{ grpc.ServerStream }

func (discard[M]) Context() context.Context { return context.Background() }
func (discard[M]) Send(*M) error            { return nil }

func FuzzSnapshotMetadata(f *testing.F) {
	seeds := []proto.Message{&spec.GetMetadataDeltaRequest{BaseSnapshotId: "a", TargetSnapshotId: "b", StartingOffset: 4096, MaxResults: 3}}
	fuzzController(f, seeds, func(c *Controller) []call {
		return []call{
			unary(&spec.GetMetadataAllocatedRequest{}, func(_ context.Context, r *spec.GetMetadataAllocatedRequest) (struct{}, error) {
				return struct{}{}, c.GetMetadataAllocated(r, discard[spec.GetMetadataAllocatedResponse]{})
			}),
			unary(&spec.GetMetadataDeltaRequest{}, func(_ context.Context, r *spec.GetMetadataDeltaRequest) (struct{}, error) {
				return struct{}{}, c.GetMetadataDelta(r, discard[spec.GetMetadataDeltaResponse]{})
			}),
		}
	})
}

func holdPath(t *testing.T, p string) {
	if !path.IsAbs(p) || path.Clean(p) != p || p == "/" || len(p) > maxPath || strings.Contains(p, "\x00") {
		t.Errorf("path %q", p)
	}
}

func holdCapability(t *testing.T, c volume.Capability) {
	switch {
	case c.Mode == "", c.FSType != "" && !slices.Contains(fsTypes, c.FSType), c.Block && (c.FSType != "" || len(c.MountFlags) != 0):
		t.Errorf("%+v", c)
	}
}

// Only the checks: the methods change the kernel's state.
func FuzzNode(f *testing.F) {
	machine := testkit.Value(node.Open(f.Context(), node.Config{Store: filepath.Join(f.TempDir(), "node.db")}))(f)
	f.Cleanup(func() { _ = machine.Close() })
	service := NewNode(NodeConfig{Manager: machine})
	undone := func(t *testing.T, id, path string, known bool) {
		c := checker{t: t}
		if c.id(id); known {
			holdPath(t, path)
		}
	}
	ephemeral := soundPublish()
	ephemeral.VolumeContext = map[string]string{keyEphemeral: "true", "size": "1Gi"}
	fuzz(f, []proto.Message{soundStage(), soundPublish(), ephemeral}, func(t *testing.T) []call {
		c := checker{t: t}
		return []call{
			callOf(&spec.NodeStageVolumeRequest{}, service.stageRequest, func(t *testing.T, _ *spec.NodeStageVolumeRequest, s node.StageRequest) {
				c.id(string(s.Volume))
				holdPath(t, s.Staging)
				holdCapability(t, s.Capability)
			}),
			callOf(&spec.NodePublishVolumeRequest{}, service.publishRequest, func(t *testing.T, _ *spec.NodePublishVolumeRequest, p node.PublishRequest) {
				c.id(string(p.Volume))
				holdPath(t, p.Target)
				holdCapability(t, p.Capability)
				switch {
				case p.Inline == nil:
					holdPath(t, p.Staging)
				case p.Staging != "":
					t.Errorf("an ephemeral volume is staged at %q", p.Staging)
				default:
					c.size(p.Inline.Size)
					c.parameters(p.Inline.Parameters)
				}
			}),
			callOf(&spec.NodeExpandVolumeRequest{}, service.expandRequest, func(_ *testing.T, _ *spec.NodeExpandVolumeRequest, e node.ExpandRequest) {
				c.id(string(e.Volume))
				c.size(e.Size)
			}),
			callOf(&spec.NodeUnstageVolumeRequest{}, func(r *spec.NodeUnstageVolumeRequest) (known bool, err error) {
				return service.checkUndo(t.Context(), volume.ID(r.GetVolumeId()), "staging_target_path", r.GetStagingTargetPath())
			}, func(t *testing.T, r *spec.NodeUnstageVolumeRequest, known bool) {
				undone(t, r.GetVolumeId(), r.GetStagingTargetPath(), known)
			}),
			callOf(&spec.NodeUnpublishVolumeRequest{}, func(r *spec.NodeUnpublishVolumeRequest) (known bool, err error) {
				return service.checkUndo(t.Context(), volume.ID(r.GetVolumeId()), "target_path", r.GetTargetPath())
			}, func(t *testing.T, r *spec.NodeUnpublishVolumeRequest, known bool) {
				undone(t, r.GetVolumeId(), r.GetTargetPath(), known)
			}),
			unary(&spec.NodeGetVolumeStatsRequest{}, service.NodeGetVolumeStats),
			unary(&spec.NodeGetVolumeHealthRequest{}, service.NodeGetVolumeHealth),
		}
	})
}

// The requests have no fields: unknown bytes reach only logs and fingerprints.
func FuzzIdentity(f *testing.F) {
	i := &Identity{}
	fuzz(f, nil, func(*testing.T) []call {
		return []call{
			unary(&spec.GetPluginInfoRequest{}, i.GetPluginInfo),
			unary(&spec.GetPluginCapabilitiesRequest{}, i.GetPluginCapabilities),
			unary(&spec.ProbeRequest{}, i.Probe),
		}
	})
}
