package client_test

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	"github.com/cleatproject/cleat/csi"
	"github.com/cleatproject/cleat/csi/client"
	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/ledger"
	"github.com/cleatproject/cleat/internal/op"
	"github.com/cleatproject/cleat/internal/store"
	"github.com/cleatproject/cleat/volume"
	"github.com/cleatproject/cleat/volume/enginetest"
)

const nodeID = "node-1"

// plainNode publishes by making a directory; the rest of the driver is the
// real one.
type plainNode struct {
	spec.UnimplementedNodeServer
	capabilities []spec.NodeServiceCapability_RPC_Type
}

func (n plainNode) NodeGetCapabilities(context.Context, *spec.NodeGetCapabilitiesRequest) (*spec.NodeGetCapabilitiesResponse, error) {
	out := &spec.NodeGetCapabilitiesResponse{}
	for _, c := range n.capabilities {
		out.Capabilities = append(out.Capabilities, &spec.NodeServiceCapability{Type: &spec.NodeServiceCapability_Rpc{Rpc: &spec.NodeServiceCapability_RPC{Type: c}}})
	}
	return out, nil
}

func (plainNode) NodeGetInfo(context.Context, *spec.NodeGetInfoRequest) (*spec.NodeGetInfoResponse, error) {
	return &spec.NodeGetInfoResponse{NodeId: nodeID, AccessibleTopology: &spec.Topology{Segments: map[string]string{"topology.csi.cleat.dev/node": nodeID}}}, nil
}

func (plainNode) NodePublishVolume(_ context.Context, r *spec.NodePublishVolumeRequest) (*spec.NodePublishVolumeResponse, error) {
	return &spec.NodePublishVolumeResponse{}, os.MkdirAll(r.GetTargetPath(), 0o700)
}

func (plainNode) NodeUnpublishVolume(_ context.Context, r *spec.NodeUnpublishVolumeRequest) (*spec.NodeUnpublishVolumeResponse, error) {
	return &spec.NodeUnpublishVolumeResponse{}, os.RemoveAll(r.GetTargetPath())
}

func (plainNode) NodeGetVolumeStats(context.Context, *spec.NodeGetVolumeStatsRequest) (*spec.NodeGetVolumeStatsResponse, error) {
	return &spec.NodeGetVolumeStatsResponse{Usage: []*spec.VolumeUsage{{Unit: spec.VolumeUsage_BYTES, Total: 100, Used: 40, Available: 60}}}, nil
}

func (plainNode) NodeGetVolumeHealth(_ context.Context, r *spec.NodeGetVolumeHealthRequest) (*spec.NodeGetVolumeHealthResponse, error) {
	return &spec.NodeGetVolumeHealthResponse{VolumeHealth: &spec.VolumeHealth{VolumeId: r.GetVolumeId(), HealthStatuses: []*spec.VolumeHealth_VolumeHealthEntry{
		{Status: spec.VolumeHealthErrorType_DEGRADED, Reason: "ReadOnly", Message: "mounted read-only after an error"},
	}}}, nil
}

// startCleat serves cleat's own controller services on the reference engine.
func startCleat(t *testing.T) (*enginetest.Reference, *client.Driver) {
	t.Helper()
	dir := t.TempDir()
	s, err := store.Open(t.Context(), filepath.Join(dir, "ledger.db"), store.Options{Role: "ledger", Version: 1})
	must(t, err)
	t.Cleanup(func() { must(t, s.Close()) })
	operations := op.New(context.WithoutCancel(t.Context()), time.Second)
	t.Cleanup(func() { must(t, operations.Close(context.Background())) })

	reference := enginetest.NewReference()
	backend := reference.Backend()
	deployment := csi.Deployment{
		Services: csi.Services{Controller: true, Node: true}, ControllerPublish: true,
		Topology: map[string]string{"topology.csi.cleat.dev/node": nodeID}, Nodes: []string{nodeID},
	}
	server := grpc.NewServer(grpc.UnaryInterceptor(func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		answer, err := handler(ctx, req)
		return answer, coded(err)
	}), grpc.StreamInterceptor(func(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		return coded(handler(srv, stream))
	}))
	spec.RegisterIdentityServer(server, &csi.Identity{
		Name: csi.DefaultName, Version: "test", Engine: "reference", Abilities: csi.AbilitiesOf(backend), Deployment: deployment,
	})
	csi.NewController(csi.ControllerConfig{Backend: backend, Deployment: deployment, Operations: operations, Grants: ledger.New(s)}).Register(server)
	spec.RegisterNodeServer(server, plainNode{capabilities: []spec.NodeServiceCapability_RPC_Type{
		spec.NodeServiceCapability_RPC_GET_VOLUME_STATS, spec.NodeServiceCapability_RPC_GET_VOLUME_HEALTH,
	}})
	socket := filepath.Join(dir, "csi.sock")
	l, err := net.Listen("unix", socket)
	must(t, err)
	done := make(chan struct{})
	go func() { defer close(done); _ = server.Serve(l) }()
	t.Cleanup(func() { server.Stop(); <-done })
	return reference, dial(t, client.Config{Endpoint: "unix://" + socket, StateDir: filepath.Join(dir, "state")})
}

func coded(err error) error {
	if err == nil {
		return nil
	}
	return status.Error(errs.Code(err), err.Error())
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// write puts bytes into a volume of the reference engine, as a workload would.
func write(t *testing.T, r *enginetest.Reference, id string, offset int64) {
	t.Helper()
	d, err := r.Open(volume.ID(id))
	must(t, err)
	_, err = d.WriteAt([]byte("written"), offset)
	must(t, err)
}

// TestLifeOnCleat walks a volume through its life on the real controller
// services, every call of the library at least once.
func TestLifeOnCleat(t *testing.T) {
	reference, d := startCleat(t)
	ctx, target := t.Context(), filepath.Join(t.TempDir(), "target")
	block := &client.Capability{Block: true}
	v, err := d.Create(ctx, client.CreateRequest{Name: "data", Size: volume.SizeRange{Required: 16 * mib}, Capability: block, Mutable: map[string]string{"readAheadKiB": "64"}})
	must(t, err)
	_, err = d.Create(ctx, client.CreateRequest{Name: "more", Size: volume.SizeRange{Required: 16 * mib}, Capability: block})
	must(t, err)
	if len(v.Topology) != 1 || v.Topology[0]["topology.csi.cleat.dev/node"] != nodeID {
		t.Errorf("topology %v", v.Topology)
	}
	attached, err := d.Attach(ctx, client.AttachRequest{Volume: "data", Target: target})
	must(t, err)
	if attached.Staging != "" || len(attached.Targets) != 1 {
		t.Errorf("attached as %+v", attached)
	}
	usage, err := d.Stats(ctx, "data")
	if err != nil || len(usage) != 1 || usage[0] != (client.Usage{Unit: "BYTES", Total: 100, Used: 40, Available: 60}) {
		t.Errorf("Stats: %+v, %v", usage, err)
	}
	capacity, err := d.Capacity(ctx, *block, nil)
	if err != nil || capacity.Available <= 0 {
		t.Errorf("Capacity: %+v, %v", capacity, err)
	}
	_, err = d.Modify(ctx, "data", map[string]string{"readAheadKiB": "256"})
	must(t, err)
	_, err = d.Modify(ctx, "data", map[string]string{"speed": "high"})
	wantKind(t, err, errs.Invalid, "speed")
	expanded, err := d.Expand(ctx, "data", volume.SizeRange{Required: 32 * mib})
	if err != nil || expanded.Size != 32*mib {
		t.Errorf("Expand: %+v, %v", expanded, err)
	}
	checkHealth(t, reference, d, v.ID)
	checkSnapshots(t, reference, d, v.ID)
	checkGroups(t, d)
	shown, err := d.Show(ctx, "data")
	if err != nil || shown.ID != v.ID || shown.Size != 32*mib || shown.Mutable["readAheadKiB"] != "256" || len(shown.Nodes) != 1 {
		t.Errorf("Show: %+v, %v", shown, err)
	}
	must(t, d.Detach(ctx, "data", target))
	for _, name := range []string{"data", "more", "clone", "restored"} {
		must(t, d.Delete(ctx, name))
	}
	if left := names(t, d); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
}

func checkHealth(t *testing.T, reference *enginetest.Reference, d *client.Driver, id string) {
	t.Helper()
	must(t, reference.Report(volume.ID(id), volume.Condition{Severity: volume.DataLoss, Reason: "FileGone", Message: "the file is gone"}))
	found, err := d.Health(t.Context(), "data")
	if err != nil || len(found) != 2 || found[0].Severity != volume.DataLoss || found[1].Reason != "ReadOnly" {
		t.Errorf("Health: %+v, %v", found, err)
	}
	all, err := d.List(t.Context())
	if err != nil || len(all) != 2 || len(all[0].Conditions) != 1 || len(all[1].Conditions) != 0 {
		t.Errorf("List does not show what is wrong: %+v, %v", all, err)
	}
	must(t, reference.Report(volume.ID(id)))
}

func checkSnapshots(t *testing.T, reference *enginetest.Reference, d *client.Driver, id string) {
	t.Helper()
	ctx := t.Context()
	write(t, reference, id, 0)
	one, err := d.CreateSnapshot(ctx, "one", "data", nil)
	must(t, err)
	write(t, reference, id, 8*mib)
	two, err := d.CreateSnapshot(ctx, "two", "data", nil)
	must(t, err)
	listed, err := d.Snapshots(ctx, "data")
	if err != nil || len(listed) != 2 || listed[0].ID != one.ID || listed[1].ID != two.ID {
		t.Errorf("Snapshots: %+v, %v", listed, err)
	}
	shown, err := d.ShowSnapshot(ctx, "two")
	if err != nil || shown.ID != two.ID || !shown.Ready || shown.Source != id {
		t.Errorf("ShowSnapshot: %+v, %v", shown, err)
	}
	var ranges []volume.Range
	collect := func(p client.BlockPage) error { ranges = append(ranges, p.Ranges...); return nil }
	must(t, d.Delta(ctx, one.ID, "two", 0, collect))
	must(t, d.Allocated(ctx, "one", 0, collect))
	if len(ranges) != 2 || ranges[0] != (volume.Range{Offset: 8 * mib, Length: 4096}) || ranges[1] != (volume.Range{Length: 4096}) {
		t.Errorf("changed, then allocated: %v", ranges)
	}
	restored, err := d.Create(ctx, client.CreateRequest{Name: "restored", FromSnapshot: "one"})
	if err != nil || !restored.Capability.Block || restored.Size != 32*mib {
		t.Errorf("restored: %+v, %v", restored, err)
	}
	_, err = d.Create(ctx, client.CreateRequest{Name: "clone", FromVolume: "data", Size: volume.SizeRange{Required: 64 * mib}})
	must(t, err)
	must(t, errors.Join(d.DeleteSnapshot(ctx, "one"), d.DeleteSnapshot(ctx, two.ID)))
}

func checkGroups(t *testing.T, d *client.Driver) {
	t.Helper()
	ctx := t.Context()
	g, err := d.CreateGroup(ctx, "both", []string{"more", "data"}, nil)
	must(t, err)
	again, err := d.CreateGroup(ctx, "both", []string{"data", "more"}, nil)
	if err != nil || again.ID != g.ID || len(g.Snapshots) != 2 || !g.Ready {
		t.Errorf("group %+v, again %+v, %v", g, again, err)
	}
	shown, err := d.ShowGroup(ctx, "both")
	if err != nil || shown.ID != g.ID || len(shown.Snapshots) != 2 || !shown.Snapshots[0].Capability.Block {
		t.Errorf("ShowGroup: %+v, %v", shown, err)
	}
	wantKind(t, d.DeleteSnapshot(ctx, g.Snapshots[0].ID), errs.Invalid, g.ID)
	member, err := d.Create(ctx, client.CreateRequest{Name: "of a member", FromSnapshot: g.Snapshots[1].ID})
	if err != nil || !member.Capability.Block {
		t.Errorf("restored from a member: %+v, %v", member, err)
	}
	must(t, d.Delete(ctx, "of a member"))
	all, err := d.Groups(ctx)
	if err != nil || len(all) != 1 {
		t.Errorf("Groups: %+v, %v", all, err)
	}
	must(t, d.DeleteGroup(ctx, "both"))
	wantKind(t, d.DeleteGroup(ctx, "both"), errs.NotFound, "both")
}
