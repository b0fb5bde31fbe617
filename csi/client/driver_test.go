package client_test

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/cleatproject/cleat/csi/client"
	"github.com/cleatproject/cleat/test/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// other is a foreign driver with the capabilities that a test gives it. It
// checks the caller.
type other struct {
	csi.UnimplementedIdentityServer
	csi.UnimplementedControllerServer
	csi.UnimplementedNodeServer
	csi.UnimplementedSnapshotMetadataServer
	csi.UnimplementedGroupControllerServer

	plugin     []csi.PluginCapability_Service_Type
	expansion  csi.PluginCapability_VolumeExpansion_Type
	controller []csi.ControllerServiceCapability_RPC_Type
	nodeRPCs   []csi.NodeServiceCapability_RPC_Type
	notReady   int    // answers before a snapshot is ready
	condition  []byte // of ControllerGetVolume
	pageLimit  int

	// around every call; an error replaces the answer
	before, after func(method string) error

	mu        sync.Mutex
	calls     []string        // methods, in order
	requests  []proto.Message // of the calls
	volumes   map[string]*otherVolume
	snapshots map[string]*csi.Snapshot
	groups    map[string]*csi.VolumeGroupSnapshot // by id: "group of " and the name
	next      int
}

type otherVolume struct {
	*csi.Volume
	name      string
	published bool // to the node
	staged    string
	targets   map[string]bool
	grown     int64
}

func newOther() *other {
	return &other{
		plugin:  []csi.PluginCapability_Service_Type{csi.PluginCapability_Service_CONTROLLER_SERVICE},
		volumes: map[string]*otherVolume{}, snapshots: map[string]*csi.Snapshot{}, groups: map[string]*csi.VolumeGroupSnapshot{},
		controller: []csi.ControllerServiceCapability_RPC_Type{csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME},
		before:     func(string) error { return nil }, after: func(string) error { return nil },
	}
}

func (o *other) serve(t *testing.T, socket string) (stop func()) {
	t.Helper()
	l := testkit.Value(net.Listen("unix", socket))(t)
	s := grpc.NewServer(grpc.UnaryInterceptor(o.intercept))
	csi.RegisterIdentityServer(s, o)
	csi.RegisterControllerServer(s, o)
	csi.RegisterNodeServer(s, o)
	csi.RegisterSnapshotMetadataServer(s, o)
	csi.RegisterGroupControllerServer(s, o)
	done := make(chan struct{})
	go func() { defer close(done); _ = s.Serve(l) }()
	stop = sync.OnceFunc(func() { s.Stop(); <-done })
	t.Cleanup(stop)
	return stop
}

func (o *other) intercept(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	method := info.FullMethod[strings.LastIndex(info.FullMethod, "/")+1:]
	o.mu.Lock()
	o.calls = append(o.calls, method)
	o.requests = append(o.requests, proto.Clone(req.(proto.Message)))
	o.mu.Unlock()
	if err := o.before(method); err != nil {
		return nil, err
	}
	answer, err := handler(ctx, req)
	if err == nil {
		err = o.after(method)
	}
	return answer, err
}

func (o *other) made(methods ...string) (out []string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, c := range o.calls {
		if len(methods) == 0 || slices.Contains(methods, c) {
			out = append(out, c)
		}
	}
	return out
}

func (o *other) asked(method string) (out []proto.Message) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for i, c := range o.calls {
		if c == method {
			out = append(out, o.requests[i])
		}
	}
	return out
}

// start also connects to the driver, with its own state directory.
func start(t *testing.T, o *other) (*client.Driver, client.Config) {
	t.Helper()
	dir := t.TempDir()
	socket := filepath.Join(dir, "csi.sock")
	o.serve(t, socket)
	config := client.Config{Endpoint: "unix://" + socket, StateDir: filepath.Join(dir, "state")}
	return dial(t, config), config
}

func dial(t *testing.T, config client.Config) *client.Driver {
	t.Helper()
	config.Patience = cmp.Or(config.Patience, time.Minute) // for loaded machines
	d := testkit.Open(client.Dial(t.Context(), config))(t)
	return d
}

func (o *other) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: "other.example.com", VendorVersion: "7"}, nil
}

func (o *other) Probe(context.Context, *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	return &csi.ProbeResponse{}, nil
}

func (o *other) GetPluginCapabilities(context.Context, *csi.GetPluginCapabilitiesRequest) (*csi.GetPluginCapabilitiesResponse, error) {
	out := &csi.GetPluginCapabilitiesResponse{}
	for _, c := range o.plugin {
		out.Capabilities = append(out.Capabilities, &csi.PluginCapability{Type: &csi.PluginCapability_Service_{Service: &csi.PluginCapability_Service{Type: c}}})
	}
	if o.expansion != 0 {
		out.Capabilities = append(out.Capabilities, &csi.PluginCapability{Type: &csi.PluginCapability_VolumeExpansion_{
			VolumeExpansion: &csi.PluginCapability_VolumeExpansion{Type: o.expansion}}})
	}
	return out, nil
}

func (o *other) ControllerGetCapabilities(context.Context, *csi.ControllerGetCapabilitiesRequest) (*csi.ControllerGetCapabilitiesResponse, error) {
	out := &csi.ControllerGetCapabilitiesResponse{}
	for _, c := range o.controller {
		out.Capabilities = append(out.Capabilities, &csi.ControllerServiceCapability{Type: &csi.ControllerServiceCapability_Rpc{Rpc: &csi.ControllerServiceCapability_RPC{Type: c}}})
	}
	return out, nil
}

func (o *other) NodeGetCapabilities(context.Context, *csi.NodeGetCapabilitiesRequest) (*csi.NodeGetCapabilitiesResponse, error) {
	out := &csi.NodeGetCapabilitiesResponse{}
	for _, c := range o.nodeRPCs {
		out.Capabilities = append(out.Capabilities, &csi.NodeServiceCapability{Type: &csi.NodeServiceCapability_Rpc{Rpc: &csi.NodeServiceCapability_RPC{Type: c}}})
	}
	return out, nil
}

func (o *other) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	return &csi.NodeGetInfoResponse{NodeId: "node-7"}, nil
}

func (o *other) CreateVolume(_ context.Context, r *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, v := range o.volumes {
		if v.name == r.GetName() {
			if v.GetCapacityBytes() < r.GetCapacityRange().GetRequiredBytes() {
				return nil, status.Error(codes.AlreadyExists, "it is there, and smaller")
			}
			return &csi.CreateVolumeResponse{Volume: v.Volume}, nil
		}
	}
	if r.GetParameters()["tier"] == "gold" {
		return nil, status.Error(codes.InvalidArgument, "there is no gold")
	}
	o.next++
	id := "id/" + strconv.Itoa(o.next)
	v := &otherVolume{name: r.GetName(), targets: map[string]bool{}, Volume: &csi.Volume{
		VolumeId: id, CapacityBytes: r.GetCapacityRange().GetRequiredBytes(), VolumeContext: map[string]string{"context": id}, ContentSource: r.GetVolumeContentSource(),
	}}
	o.volumes[id] = v
	return &csi.CreateVolumeResponse{Volume: v.Volume}, nil
}

func (o *other) DeleteVolume(_ context.Context, r *csi.DeleteVolumeRequest) (*csi.DeleteVolumeResponse, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if v := o.volumes[r.GetVolumeId()]; v != nil && (v.published || v.staged != "" || len(v.targets) > 0) {
		return nil, status.Error(codes.FailedPrecondition, "it is in use")
	}
	delete(o.volumes, r.GetVolumeId())
	return &csi.DeleteVolumeResponse{}, nil
}

func (o *other) ListVolumes(_ context.Context, r *csi.ListVolumesRequest) (*csi.ListVolumesResponse, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	out := &csi.ListVolumesResponse{}
	for _, id := range slices.Sorted(maps.Keys(o.volumes)) {
		if id <= r.GetStartingToken() {
			continue
		}
		if o.pageLimit > 0 && len(out.GetEntries()) == o.pageLimit {
			out.NextToken = out.GetEntries()[o.pageLimit-1].GetVolume().GetVolumeId()
			break
		}
		out.Entries = append(out.Entries, &csi.ListVolumesResponse_Entry{Volume: o.volumes[id].Volume})
	}
	return out, nil
}

func (o *other) ControllerPublishVolume(_ context.Context, r *csi.ControllerPublishVolumeRequest) (*csi.ControllerPublishVolumeResponse, error) {
	return &csi.ControllerPublishVolumeResponse{PublishContext: map[string]string{"device": "of " + r.GetVolumeId()}},
		o.with(r.GetVolumeId(), r.GetVolumeContext(), func(v *otherVolume) error {
			if r.GetNodeId() != "node-7" {
				return status.Error(codes.NotFound, "no such node")
			}
			v.published = true
			return nil
		})
}

func (o *other) ControllerUnpublishVolume(_ context.Context, r *csi.ControllerUnpublishVolumeRequest) (*csi.ControllerUnpublishVolumeResponse, error) {
	return &csi.ControllerUnpublishVolumeResponse{}, o.with(r.GetVolumeId(), nil, func(v *otherVolume) error {
		if v.staged != "" || len(v.targets) > 0 {
			return status.Error(codes.Internal, "the node still uses it")
		}
		v.published = false
		return nil
	})
}

// with checks the caller's context.
func (o *other) with(id string, context map[string]string, fn func(*otherVolume) error) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	v := o.volumes[id]
	if v == nil {
		return status.Error(codes.NotFound, "no such volume")
	}
	if context != nil && context["context"] != id {
		return status.Error(codes.InvalidArgument, "this is not the volume's context")
	}
	return fn(v)
}

func (o *other) has(c csi.ControllerServiceCapability_RPC_Type) bool {
	return slices.Contains(o.controller, c)
}

func (o *other) stages() bool {
	return slices.Contains(o.nodeRPCs, csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME)
}

func (o *other) checkPublishContext(id string, context map[string]string) error {
	if o.has(csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME) != (context["device"] == "of "+id) {
		return status.Error(codes.InvalidArgument, "this is not the publish context")
	}
	return nil
}

func (o *other) NodeStageVolume(_ context.Context, r *csi.NodeStageVolumeRequest) (*csi.NodeStageVolumeResponse, error) {
	return &csi.NodeStageVolumeResponse{}, o.with(r.GetVolumeId(), r.GetVolumeContext(), func(v *otherVolume) error {
		if info, err := os.Stat(r.GetStagingTargetPath()); err != nil || !info.IsDir() {
			return status.Error(codes.FailedPrecondition, "the staging directory must be there")
		}
		if v.staged != "" && v.staged != r.GetStagingTargetPath() {
			return status.Error(codes.FailedPrecondition, "a volume has one staging path")
		}
		if err := o.checkPublishContext(r.GetVolumeId(), r.GetPublishContext()); err != nil {
			return err
		}
		v.staged = r.GetStagingTargetPath()
		return nil
	})
}

func (o *other) NodeUnstageVolume(_ context.Context, r *csi.NodeUnstageVolumeRequest) (*csi.NodeUnstageVolumeResponse, error) {
	return &csi.NodeUnstageVolumeResponse{}, o.with(r.GetVolumeId(), nil, func(v *otherVolume) error {
		if len(v.targets) > 0 {
			return status.Error(codes.Internal, "it is still published")
		}
		v.staged = ""
		return nil
	})
}

func (o *other) NodePublishVolume(_ context.Context, r *csi.NodePublishVolumeRequest) (*csi.NodePublishVolumeResponse, error) {
	return &csi.NodePublishVolumeResponse{}, o.with(r.GetVolumeId(), r.GetVolumeContext(), func(v *otherVolume) error {
		if err := o.checkPublishContext(r.GetVolumeId(), r.GetPublishContext()); err != nil {
			return err
		}
		if o.stages() && (v.staged == "" || v.staged != r.GetStagingTargetPath()) {
			return status.Error(codes.FailedPrecondition, "it is not staged there")
		}
		if filepath.Base(r.GetTargetPath()) == "forbidden" {
			return status.Error(codes.PermissionDenied, "not there")
		}
		if r.GetVolumeCapability().GetBlock() != nil {
			if err := os.WriteFile(r.GetTargetPath(), nil, 0o600); err != nil {
				return status.Error(codes.Internal, err.Error())
			}
		} else if err := os.Mkdir(r.GetTargetPath(), 0o750); err != nil && !errors.Is(err, os.ErrExist) {
			return status.Error(codes.Internal, err.Error())
		}
		v.targets[r.GetTargetPath()] = true
		return nil
	})
}

func (o *other) NodeUnpublishVolume(_ context.Context, r *csi.NodeUnpublishVolumeRequest) (*csi.NodeUnpublishVolumeResponse, error) {
	return &csi.NodeUnpublishVolumeResponse{}, o.with(r.GetVolumeId(), nil, func(v *otherVolume) error {
		if err := os.Remove(r.GetTargetPath()); err != nil && !errors.Is(err, os.ErrNotExist) {
			return status.Error(codes.Internal, err.Error())
		}
		delete(v.targets, r.GetTargetPath())
		return nil
	})
}

func (o *other) ControllerExpandVolume(_ context.Context, r *csi.ControllerExpandVolumeRequest) (*csi.ControllerExpandVolumeResponse, error) {
	out := &csi.ControllerExpandVolumeResponse{CapacityBytes: r.GetCapacityRange().GetRequiredBytes(), NodeExpansionRequired: true}
	return out, o.with(r.GetVolumeId(), nil, func(v *otherVolume) error {
		v.Volume = proto.CloneOf(v.Volume) // an earlier answer can still be in flight
		v.CapacityBytes = out.GetCapacityBytes()
		return nil
	})
}

func (o *other) NodeExpandVolume(_ context.Context, r *csi.NodeExpandVolumeRequest) (*csi.NodeExpandVolumeResponse, error) {
	return &csi.NodeExpandVolumeResponse{CapacityBytes: r.GetCapacityRange().GetRequiredBytes()}, o.with(r.GetVolumeId(), nil, func(v *otherVolume) error {
		if !v.targets[r.GetVolumePath()] {
			return status.Error(codes.NotFound, "it is not published there")
		}
		v.grown = r.GetCapacityRange().GetRequiredBytes()
		return nil
	})
}

func (o *other) CreateSnapshot(_ context.Context, r *csi.CreateSnapshotRequest) (*csi.CreateSnapshotResponse, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	s := o.snapshots[r.GetName()]
	if s == nil {
		s = &csi.Snapshot{SnapshotId: "snap of " + r.GetName(), SourceVolumeId: r.GetSourceVolumeId(), SizeBytes: 1 << 20, CreationTime: timestamppb.Now()}
		o.snapshots[r.GetName()] = s
	}
	s = proto.CloneOf(s)
	s.ReadyToUse = o.notReady == 0
	o.notReady = max(0, o.notReady-1)
	return &csi.CreateSnapshotResponse{Snapshot: s}, nil
}

func (o *other) DeleteSnapshot(_ context.Context, r *csi.DeleteSnapshotRequest) (*csi.DeleteSnapshotResponse, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	maps.DeleteFunc(o.snapshots, func(_ string, s *csi.Snapshot) bool { return s.GetSnapshotId() == r.GetSnapshotId() })
	return &csi.DeleteSnapshotResponse{}, nil
}
