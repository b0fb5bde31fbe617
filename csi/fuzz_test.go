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

	"github.com/cleatproject/cleat/attach"
	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/ledger"
	"github.com/cleatproject/cleat/internal/op"
	"github.com/cleatproject/cleat/volume"
	"github.com/cleatproject/cleat/volume/access"
)

// call calls a method with the bytes of a request from the wire.
type call func(t *testing.T, data []byte)

// callOf makes a call of a method, or of the check of its request. holds checks
// the answer.
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

// unary makes a call of a method of a service.
func unary[M proto.Message, A any](empty M, method func(context.Context, M) (A, error)) call {
	return callOf(empty, func(r M) (A, error) { return method(context.Background(), r) }, func(*testing.T, M, A) {})
}

func fuzz(f *testing.F, seeds []proto.Message, calls func(*testing.T) []call) {
	for i := range calls(nil) {
		f.Add(byte(i), []byte{})
		for _, seed := range seeds {
			data, err := proto.Marshal(seed)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(byte(i), data)
		}
	}
	f.Fuzz(func(t *testing.T, which byte, data []byte) {
		all := calls(t)
		all[int(which)%len(all)](t, data)
	})
}

// checker is a backend and a ledger that check what reaches them.
type checker struct {
	volume.Engine // not called
	t             *testing.T
}

func (c checker) id(id string) {
	if id == "" || len(id) > maxString {
		c.t.Errorf("id %q", id)
	}
}

func (c checker) name(name string) {
	if name == "" || len(name) > maxString || strings.ContainsFunc(name, isBanned) {
		c.t.Errorf("name %q", name)
	}
}

func (c checker) size(s volume.SizeRange) {
	if s.Required < 0 || s.Limit < 0 || s.Limit != 0 && s.Limit < s.Required {
		c.t.Errorf("size %+v", s)
	}
}

func (c checker) parameters(m map[string]string) {
	for key := range m {
		if strings.HasPrefix(key, reservedPrefix) {
			c.t.Errorf("parameter %q reached the engine", key)
		}
	}
}

func (c checker) content(content volume.Content, fsType string) {
	if fsType != "" && (content == volume.Raw || !slices.Contains(fsTypes, fsType)) {
		c.t.Errorf("content %q, file system %q", content, fsType)
	}
}

func (c checker) object(id volume.ID) (volume.Volume, error) {
	c.id(string(id))
	return volume.Volume{ID: id, Content: volume.Filesystem, FSType: "ext4", Locator: access.File{Pool: poolUUID, Name: "volumes/v"}}, nil
}

func (c checker) Create(_ context.Context, r volume.CreateRequest) (volume.Volume, error) {
	c.name(r.Name)
	c.size(r.Size)
	c.parameters(r.Parameters)
	c.content(r.Content, r.FSType)
	if r.Content != volume.Raw && r.Content != volume.Filesystem || r.Source.Volume != "" && r.Source.Snapshot != "" || r.Parameters == nil {
		c.t.Errorf("%+v", r)
	}
	return c.object("v")
}

func (c checker) Get(_ context.Context, id volume.ID) (volume.Volume, error) { return c.object(id) }

func (c checker) Delete(_ context.Context, id volume.ID) error {
	c.id(string(id))
	return nil
}

func (c checker) List(_ context.Context, after volume.ID, limit int) ([]volume.Volume, error) {
	if limit < 1 || after != "" && volume.CheckID(string(after)) != nil {
		c.t.Errorf("list %d after %q", limit, after)
	}
	return nil, nil
}

func (c checker) Expand(_ context.Context, id volume.ID, size volume.SizeRange) (volume.Volume, error) {
	if c.size(size); size == (volume.SizeRange{}) {
		c.t.Error("no size")
	}
	return c.object(id)
}

func (c checker) Capacity(_ context.Context, q volume.CapacityQuery) (volume.Capacity, error) {
	c.parameters(q.Parameters)
	c.content(q.Content, q.FSType)
	return volume.Capacity{}, nil
}

func (c checker) Modify(_ context.Context, id volume.ID, parameters map[string]string) (volume.Volume, error) {
	c.parameters(parameters)
	return c.object(id)
}

func (c checker) VolumeHealth(_ context.Context, id volume.ID) ([]volume.Condition, error) {
	c.id(string(id))
	return nil, nil
}

func (c checker) StorageHealth(context.Context) ([]volume.Condition, error) { return nil, nil }

func (c checker) CreateSnapshot(_ context.Context, r volume.SnapshotRequest) (volume.Snapshot, error) {
	c.name(r.Name)
	c.id(string(r.Source))
	c.parameters(r.Parameters)
	return volume.Snapshot{}, nil
}

func (c checker) DeleteSnapshot(_ context.Context, id volume.SnapshotID) error {
	c.id(string(id))
	return nil
}

func (c checker) GetSnapshot(_ context.Context, id volume.SnapshotID) (volume.Snapshot, error) {
	c.id(string(id))
	return volume.Snapshot{ID: id}, nil
}

func (c checker) ListSnapshots(_ context.Context, q volume.SnapshotQuery) ([]volume.Snapshot, error) {
	_, err := c.List(context.Background(), volume.ID(q.After), q.Limit)
	return nil, err
}

func (c checker) CreateGroup(_ context.Context, r volume.GroupRequest) (volume.Group, error) {
	c.name(r.Name)
	c.parameters(r.Parameters)
	if len(r.Sources) == 0 || !slices.IsSorted(r.Sources) {
		c.t.Errorf("%+v", r)
	}
	return volume.Group{}, nil
}

func (c checker) DeleteGroup(_ context.Context, id volume.GroupID) error {
	c.id(string(id))
	return nil
}

func (c checker) GetGroup(_ context.Context, id volume.GroupID) (volume.Group, error) {
	c.id(string(id))
	return volume.Group{ID: id}, nil
}

func (c checker) blocks(from int64, ids ...volume.SnapshotID) (volume.BlockMap, error) {
	for _, id := range ids {
		c.id(string(id))
	}
	if from < 0 {
		c.t.Errorf("offset %d", from)
	}
	return volume.BlockMap{Size: from, Ranges: func(func(volume.Range, error) bool) {}}, nil
}

func (c checker) Allocated(_ context.Context, id volume.SnapshotID, from int64) (volume.BlockMap, error) {
	return c.blocks(from, id)
}

func (c checker) Delta(_ context.Context, base, target volume.SnapshotID, from int64) (volume.BlockMap, error) {
	return c.blocks(from, base, target)
}

func (c checker) Enter(context.Context, volume.Client) (leave func(), err error) {
	return func() {}, nil
}

func (c checker) Grant(_ context.Context, g ledger.Grant) (ledger.Grant, error) {
	mode, kind, _ := strings.Cut(g.Mode, "/")
	if g.Client.Node != "n" || spec.VolumeCapability_AccessMode_Mode_value[mode] == 0 || kind != "block" && kind != "mount" {
		c.t.Errorf("%+v", g)
	}
	return g, nil
}

func (c checker) Revoke(_ context.Context, id volume.ID, node string) error {
	if c.id(string(id)); len(node) > maxNodeID {
		c.t.Errorf("node %q", node)
	}
	return nil
}

func (c checker) Of(context.Context, volume.ID) ([]ledger.Grant, error) { return nil, nil }

func (c checker) ByNode(context.Context, string) ([]ledger.Grant, error) { return nil, nil }

// everything is a controller that announces everything, over no engine.
func everything() *Controller {
	return checkingController(nil, nil)
}

// checkingController is a controller whose backend and ledger check what
// reaches them.
func checkingController(t *testing.T, o *op.Operations) *Controller {
	c := checker{t: t}
	return NewController(ControllerConfig{
		Backend: volume.Backend{
			Engine: c, Snapshots: c, Groups: c, Deltas: c, Modifier: c, Health: c, Clones: true, Mutable: []string{"provisioning"},
		},
		Deployment: Deployment{
			Services: Services{Controller: true}, ControllerPublish: true, Topology: map[string]string{"a.b/zone": "z"}, Nodes: []string{"n"},
		},
		Operations: o, Grants: c,
	})
}

// fuzzController calls methods of a controller.
func fuzzController(f *testing.F, seeds []proto.Message, calls func(*Controller) []call) {
	operations := op.New(context.Background(), time.Minute)
	f.Cleanup(func() {
		if err := operations.Close(context.Background()); err != nil {
			f.Error(err)
		}
	})
	fuzz(f, seeds, func(t *testing.T) []call { return calls(checkingController(t, operations)) })
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

// discard is a stream whose messages nobody reads.
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

// FuzzNode calls the checks of requests whose methods then work on the kernel.
func FuzzNode(f *testing.F) {
	machine, err := attach.Open(f.Context(), attach.Config{Store: filepath.Join(f.TempDir(), "node.db")})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = machine.Close() })
	node := NewNode(NodeConfig{Machine: machine})
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
			callOf(&spec.NodeStageVolumeRequest{}, stageRequest, func(t *testing.T, _ *spec.NodeStageVolumeRequest, s attach.StageRequest) {
				c.id(string(s.Volume))
				holdPath(t, s.Staging)
				holdCapability(t, s.Capability)
			}),
			callOf(&spec.NodePublishVolumeRequest{}, publishRequest, func(t *testing.T, _ *spec.NodePublishVolumeRequest, p attach.PublishRequest) {
				c.id(string(p.Volume))
				holdPath(t, p.Target)
				holdCapability(t, p.Capability)
				switch {
				case p.Ephemeral == nil:
					holdPath(t, p.Staging)
				case p.Staging != "":
					t.Errorf("an ephemeral volume is staged at %q", p.Staging)
				default:
					c.size(p.Ephemeral.Size)
					c.parameters(p.Ephemeral.Parameters)
				}
			}),
			callOf(&spec.NodeExpandVolumeRequest{}, expandRequest, func(_ *testing.T, _ *spec.NodeExpandVolumeRequest, e attach.ExpandRequest) {
				c.id(string(e.Volume))
				c.size(e.Size)
			}),
			callOf(&spec.NodeUnstageVolumeRequest{}, func(r *spec.NodeUnstageVolumeRequest) (known bool, err error) {
				return node.checkUndo(t.Context(), volume.ID(r.GetVolumeId()), "staging_target_path", r.GetStagingTargetPath())
			}, func(t *testing.T, r *spec.NodeUnstageVolumeRequest, known bool) {
				undone(t, r.GetVolumeId(), r.GetStagingTargetPath(), known)
			}),
			callOf(&spec.NodeUnpublishVolumeRequest{}, func(r *spec.NodeUnpublishVolumeRequest) (known bool, err error) {
				return node.checkUndo(t.Context(), volume.ID(r.GetVolumeId()), "target_path", r.GetTargetPath())
			}, func(t *testing.T, r *spec.NodeUnpublishVolumeRequest, known bool) {
				undone(t, r.GetVolumeId(), r.GetTargetPath(), known)
			}),
			unary(&spec.NodeGetVolumeStatsRequest{}, node.NodeGetVolumeStats),
			unary(&spec.NodeGetVolumeHealthRequest{}, node.NodeGetVolumeHealth),
		}
	})
}

// The requests of Identity have no fields: unknown bytes in them do no harm on
// the way to a log or a fingerprint.
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
